"""The HTTP server: protocol, request and response types, SSE, WebSocket and errors."""
