"""JSON forms of chat completions and session objects."""
