"""Commands for turns without an API client: channels, the outbox and schedules."""
