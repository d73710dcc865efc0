"""Channels of attention-indexed models."""
