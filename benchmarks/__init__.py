"""Benchmarks. Run ``python -m benchmarks`` or one of the modules from the repository's root."""
