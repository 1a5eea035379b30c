"""Child processes: start, identify and end the processes of agents and tool servers."""
