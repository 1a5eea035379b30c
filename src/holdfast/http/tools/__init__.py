"""Endpoints for agents and their tools: the list of tools, approvals, and full-text search."""
