"""Command-line agents as providers: each session has a directory, and at most one process."""
