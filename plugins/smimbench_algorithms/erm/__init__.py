"""Convex empirical risk minimisation on signals of low rank."""
