"""Algorithms that find a posterior, one a module."""
