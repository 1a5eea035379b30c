"""Failovers of a PostgreSQL cluster of Patroni under two gateways and their clients."""
