"""One model call of a turn: projection, attempts, heals, fallbacks, and compaction to fit."""
