"""Channels in SQL: statements, facts of decisions, changes and queries."""
