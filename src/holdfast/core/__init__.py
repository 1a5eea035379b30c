"""What is true: pure values and decisions. No input or output, no clock, no randomness."""
