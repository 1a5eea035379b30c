"""Connections to MCP servers; imported only if a server is configured and used."""
