"""Two layers of two tokens: adaptive quadrature. ``kernel`` integrates a sample, on the host and on a ``device``."""
