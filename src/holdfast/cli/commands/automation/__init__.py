"""Commands for what acts without an API client: channels, the outbox and schedules."""
