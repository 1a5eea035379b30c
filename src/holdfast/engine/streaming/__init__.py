"""TODO src/holdfast/engine/streaming."""
