"""Upstreams with the Responses API."""
