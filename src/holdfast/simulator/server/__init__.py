"""The simulator's HTTP and WebSocket server, its routes and control endpoints."""
