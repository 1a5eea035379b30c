"""The HTTP client of the command line and its chat conversation."""
