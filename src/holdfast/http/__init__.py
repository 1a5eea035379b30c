"""TODO src/holdfast/http."""
