"""TODO src/holdfast/http/formats."""
