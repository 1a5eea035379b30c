"""Bounded in-memory copies of lanes and transcripts."""
