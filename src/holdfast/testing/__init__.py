"""The public contract kit: what any store or provider must pass, and the parts to test with."""
