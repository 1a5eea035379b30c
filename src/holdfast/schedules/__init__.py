"""Schedules: turns that start at configured times."""
