"""Protocols of everything outside the engine: stores, providers, platforms, time; all tested."""
