"""TODO src/holdfast/simulator/faults."""
