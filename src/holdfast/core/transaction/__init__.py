"""The vocabulary of one transaction: commands in, facts read, changes written."""
