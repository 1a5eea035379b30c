"""TODO src/holdfast/stores/commit."""
