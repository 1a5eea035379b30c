"""Chat platforms that misbehave: strict where the real ones are."""
