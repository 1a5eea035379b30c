"""TODO src/holdfast/core/history."""
