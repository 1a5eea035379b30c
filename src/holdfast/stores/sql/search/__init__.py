"""Views that follow the log: the search index, and sessions by last activity."""
