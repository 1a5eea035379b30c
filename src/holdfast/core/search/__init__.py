"""Words of items and of queries: how text is found, whatever its language."""
