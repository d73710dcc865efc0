"""Measures of the quality of an estimate, one per file."""
