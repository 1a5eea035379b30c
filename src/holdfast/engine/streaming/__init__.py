"""Streams: live responses, journals, partial output and the feed of events."""
