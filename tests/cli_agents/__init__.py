"""Command-line agents behind the gateway, with their real programs and no network."""
