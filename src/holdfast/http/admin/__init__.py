"""Endpoints for operators: API keys, workers and lanes, usage, doctor's findings."""
