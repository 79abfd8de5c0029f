"""Quadruply stochastic Gaussian processes and relevance vector machines."""
