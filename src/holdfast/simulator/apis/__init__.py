"""The simulated APIs: each reads a call, validates it like the real server, and answers."""
