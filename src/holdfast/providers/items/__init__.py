"""TODO src/holdfast/providers/items."""
