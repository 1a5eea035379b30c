"""Values of the domain: sessions, turns, runs, items, records and requests."""
