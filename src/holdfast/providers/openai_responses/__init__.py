"""Upstreams that speak the Responses API."""
