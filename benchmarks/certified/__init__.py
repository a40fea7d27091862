"""Certified accuracy on CIFAR-10 at equal wall-clock time."""
