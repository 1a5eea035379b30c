"""Unit tests of the provider simulator, file by file."""
