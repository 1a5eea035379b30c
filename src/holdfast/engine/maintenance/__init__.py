"""Background maintenance: retention and the search index."""
