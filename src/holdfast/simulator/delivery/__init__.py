"""How an answer leaves the simulator, with the faults of its exchange applied."""
