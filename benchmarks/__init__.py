"""Benchmarks: ours beside the bare parts and the peers, in one run, as ratios."""
