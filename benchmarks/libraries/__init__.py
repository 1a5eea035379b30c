"""One script per library that stores sessions; each runs in that library's environment."""
