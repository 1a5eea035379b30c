"""Decisions about tools that the gateway runs: which a request uses, and which calls are open."""
