"""TODO src/holdfast/core/decisions."""
