"""Lanes, leases and runs: who may write to a session, and who waits for it."""
