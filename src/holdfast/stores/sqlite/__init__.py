"""TODO src/holdfast/stores/sqlite."""
