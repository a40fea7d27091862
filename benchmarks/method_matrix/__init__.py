"""Which method holds which layer: `python -m benchmarks.method_matrix`."""
