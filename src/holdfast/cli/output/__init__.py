"""TODO src/holdfast/cli/output."""
