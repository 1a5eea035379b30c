"""TODO src/holdfast/cli/commands."""
