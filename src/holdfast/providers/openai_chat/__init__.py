"""TODO src/holdfast/providers/openai_chat."""
