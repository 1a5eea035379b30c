"""Counts of work per operation, which do not depend on the machine: calls, SQL and WAL frames."""
