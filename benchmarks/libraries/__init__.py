"""One script per library that stores sessions; each runs in the environment of that library."""
