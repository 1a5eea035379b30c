"""The public contract kit: tests for any store or provider, and what they need."""
