"""Presentation of results: rows, tables, figures."""
