"""TODO src/holdfast/engine/context."""
