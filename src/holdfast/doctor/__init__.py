"""The doctor: looks a store over, explains what it finds, and mends what it is told to."""
