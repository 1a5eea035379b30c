"""HTTP: the APIs that clients already speak, on raw ASGI."""
