"""Chat platforms connected to sessions: access, messages in both directions, and rendering."""
