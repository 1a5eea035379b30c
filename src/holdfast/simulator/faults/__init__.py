"""The catalogue of faults, which requests they match and what they do."""
