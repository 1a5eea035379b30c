"""A model provider that misbehaves on command. Imports nothing else of ours."""
