"""TODO src/holdfast/http/request."""
