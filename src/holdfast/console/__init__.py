"""The web console: static files that use the public API only."""
