"""Two layers of two tokens: adaptive quadrature. ``posterior`` chooses among ``quadrature``, ``compiled`` and ``cuda``."""
