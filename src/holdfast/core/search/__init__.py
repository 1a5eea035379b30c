"""Terms of items and of queries: full-text search in any language."""
