"""Server processes that the benchmarks start: the gateway, the upstream stub and the peers."""
