"""Upstreams that speak the Chat Completions API."""
