"""TODO src/holdfast/core/model."""
