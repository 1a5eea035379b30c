"""TODO src/holdfast/engine/maintenance."""
