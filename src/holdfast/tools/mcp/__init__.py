"""Connections to MCP servers; loaded only where a server is configured and used."""
