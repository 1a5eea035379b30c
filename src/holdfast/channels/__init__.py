"""Chat platforms in front of sessions: who writes, what is sent back, and how it looks."""
