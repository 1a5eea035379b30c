"""Faults that the tests must detect: changes that are applied to a copy of the code one by one."""
