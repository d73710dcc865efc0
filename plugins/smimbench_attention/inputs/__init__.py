"""Inputs: distributions of the tokens."""
