"""Tools that the gateway runs: built-in ones and those of MCP servers."""
