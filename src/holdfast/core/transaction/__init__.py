"""TODO src/holdfast/core/transaction."""
