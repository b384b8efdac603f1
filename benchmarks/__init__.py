"""Covey measured against other libraries: ``python -m benchmarks --help``."""
