"""Gateways with channels are killed at every step: nothing is lost or answered twice."""
