"""TODO src/holdfast/engine/turns."""
