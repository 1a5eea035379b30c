"""Run and control the provider simulator from tests."""
