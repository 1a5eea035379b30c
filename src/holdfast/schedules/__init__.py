"""Schedules: turns that the clock begins."""
