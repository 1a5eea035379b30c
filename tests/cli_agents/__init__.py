"""Command-line agents as upstreams of the gateway, with their real programs and no network."""
