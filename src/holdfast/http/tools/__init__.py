"""Endpoints for agents and their tools: which there are, approvals, and full-text search."""
