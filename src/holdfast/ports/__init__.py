"""Protocols of everything outside: stores, providers, platforms, time. Tests check each promise."""
