"""TODO src/holdfast/engine/model_call."""
