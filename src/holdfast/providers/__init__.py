"""Adapters for model providers, and the routing of models to them."""
