"""What the simulated provider knows: scenario, memory, identities and recorded calls."""
