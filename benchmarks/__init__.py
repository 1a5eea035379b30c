"""Benchmarks of Holdfast beside bare parts and other systems; `python -m benchmarks` runs them."""
