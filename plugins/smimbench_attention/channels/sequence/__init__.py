"""Channels of sequence multi-index models."""
