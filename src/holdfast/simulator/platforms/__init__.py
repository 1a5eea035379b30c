"""Chat platforms that misbehave on command and are as strict as the real ones."""
