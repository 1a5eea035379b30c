"""Gateways with channels that are killed at every step: nothing is lost or answered twice."""
