"""TODO src/holdfast/simulator/delivery."""
