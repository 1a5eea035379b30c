"""Child processes: how agents and tool servers are started, identified and ended."""
