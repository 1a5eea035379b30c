"""Endpoints of tools that the gateway runs: what there is, and which calls wait for approvals."""
