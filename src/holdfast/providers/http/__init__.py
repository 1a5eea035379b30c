"""The HTTP client for upstreams: connections, SSE, relaying and redaction."""
