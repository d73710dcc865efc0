"""Hardmax of one layer: channel, posterior, information."""
