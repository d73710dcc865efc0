"""Generalised approximate message passing."""
