"""TODO src/holdfast/stores/cache."""
