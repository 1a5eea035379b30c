"""Commands for agents and their tools."""
