"""Decides about tools that the gateway runs: which a request uses, and what is left to do."""
