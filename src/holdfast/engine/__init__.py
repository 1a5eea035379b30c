"""What happens: read facts, let core decide, write facts."""
