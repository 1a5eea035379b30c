"""TODO src/holdfast/providers/openai_responses."""
