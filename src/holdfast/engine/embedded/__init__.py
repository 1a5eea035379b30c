"""TODO src/holdfast/engine/embedded."""
