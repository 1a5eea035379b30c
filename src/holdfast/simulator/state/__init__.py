"""TODO src/holdfast/simulator/state."""
