"""The kinds of command-line agents, each with its own protocol."""
