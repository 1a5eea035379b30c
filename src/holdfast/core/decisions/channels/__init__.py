"""Decisions of channels: bursts of messages, the outbox, pairings, receivers."""
