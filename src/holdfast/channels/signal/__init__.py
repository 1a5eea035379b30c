"""Signal, through the JSON-RPC daemon of signal-cli."""
