"""Training by several processes, which share the work on the layers."""
