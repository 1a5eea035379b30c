"""The state of the simulated provider: scenario, memory, identities and recorded calls."""
