"""Metrics and traces of a running gateway."""
