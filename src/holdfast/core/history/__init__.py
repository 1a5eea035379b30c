"""Which part of a request is new: comparison of a client's history with the log."""
