"""TODO src/holdfast/cli/client."""
