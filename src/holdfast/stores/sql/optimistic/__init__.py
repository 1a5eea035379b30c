"""Commands that are planned from cached lanes, without a read."""
