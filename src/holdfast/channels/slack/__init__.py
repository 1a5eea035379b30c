"""Slack: events by socket mode or webhook, messages by the Web API."""
