"""TODO src/holdfast/transfer."""
