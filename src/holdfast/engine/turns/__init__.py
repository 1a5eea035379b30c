"""Turns from acceptance to answer, independent of the client's connection."""
