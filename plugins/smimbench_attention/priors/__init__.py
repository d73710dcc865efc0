"""Distributions of the signal."""
