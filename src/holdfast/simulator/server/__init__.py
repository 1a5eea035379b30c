"""TODO src/holdfast/simulator/server."""
