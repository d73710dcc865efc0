"""Numerical methods that know nothing of attention: integrals, random points, linear algebra."""
