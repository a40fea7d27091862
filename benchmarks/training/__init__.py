"""Clipping during training, side by side with its peers: `python -m benchmarks.training`."""
