"""What we need from the world: protocols; each docstring is a promise that a test checks."""
