"""TODO src/holdfast/core/compaction."""
