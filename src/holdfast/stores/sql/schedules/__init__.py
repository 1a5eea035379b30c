"""Schedules in SQL: statements, facts, changes and queries."""
