"""TODO src/holdfast/providers/http."""
