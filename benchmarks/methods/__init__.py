"""The methods side by side: `python -m benchmarks.methods`."""
