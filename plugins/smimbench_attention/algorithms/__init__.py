"""Algorithms, one per file or folder."""
