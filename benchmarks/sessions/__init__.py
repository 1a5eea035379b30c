"""One script for each library that keeps sessions; each runs in an environment of its own."""
