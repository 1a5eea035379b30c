"""Background upkeep: retention."""
