"""Spectral methods and their limits."""
