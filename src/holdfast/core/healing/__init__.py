"""TODO src/holdfast/core/healing."""
