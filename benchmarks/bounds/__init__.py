"""Certified bounds, how tight and how dear: `python -m benchmarks.bounds`."""
