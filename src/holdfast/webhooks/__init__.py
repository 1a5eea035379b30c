"""Webhooks: facts of the log, signed and sent to servers through the outbox."""
