"""Endpoints for operators: channels, the outbox and schedules."""
