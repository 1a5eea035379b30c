"""TODO src/holdfast/testing/simulator."""
