"""Audits of whole models, how long and how much memory: `python -m benchmarks.audit`."""
