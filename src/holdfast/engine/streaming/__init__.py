"""Streams: live responses, journals, partial output and the event feed."""
