"""The chapters of the store contract about channels and schedules."""
