"""Fitting a history into a model's context window by compaction."""
