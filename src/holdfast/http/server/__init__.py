"""TODO src/holdfast/http/server."""
