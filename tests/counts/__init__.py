"""Limits on the work per operation, as counts that do not depend on the machine."""
