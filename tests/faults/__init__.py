"""Faults that the suite must notice, kept as a list and put into a copy of the code one by one."""
