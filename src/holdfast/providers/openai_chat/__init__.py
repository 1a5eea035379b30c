"""Upstreams with the Chat Completions API."""
