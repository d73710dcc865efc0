"""Priors: distributions of the signal."""
