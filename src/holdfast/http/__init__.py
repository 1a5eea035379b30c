"""The HTTP API: server protocol, request parsing, endpoints and response formats."""
