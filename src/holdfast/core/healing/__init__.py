"""How to handle a provider's failure, and what must not be logged or passed on."""
