"""Benchmarks of Holdfast, bare parts and other systems; `python -m benchmarks` runs them."""
