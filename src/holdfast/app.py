"""How it is put together: a URL becomes a store, a store becomes a running engine."""
