"""TODO src/holdfast/http/api."""
