"""The public contract kit: tests for any store or provider, and their helpers."""
