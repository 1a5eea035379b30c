"""Import of sessions from other systems and export of our own."""
