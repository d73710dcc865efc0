"""Moments of a posterior in up to twelve latent dimensions, from its likelihood alone."""
