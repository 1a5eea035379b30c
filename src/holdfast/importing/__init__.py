"""Sessions of other places: readers that turn their files into past turns, and the taking over."""
