"""Endpoints for agents and their tools: full-text search."""
