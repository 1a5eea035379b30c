"""TODO src/holdfast/core/projection."""
