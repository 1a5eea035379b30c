"""TODO src/holdfast/engine/sessions."""
