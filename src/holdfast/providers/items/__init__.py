"""Items on the way to and from an upstream: ids, replay, accumulation of deltas."""
