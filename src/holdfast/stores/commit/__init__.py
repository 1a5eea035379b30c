"""Group commit: commands that arrive together share one transaction."""
