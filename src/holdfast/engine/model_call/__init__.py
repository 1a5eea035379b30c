"""One model call of a turn: projection, attempts, heals and fallbacks."""
