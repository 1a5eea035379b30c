"""What to do about a provider's failure, and what must not be repeated or logged."""
