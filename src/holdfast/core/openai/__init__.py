"""TODO src/holdfast/core/openai."""
