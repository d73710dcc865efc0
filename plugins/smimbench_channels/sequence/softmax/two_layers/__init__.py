"""Two layers and two tokens: posterior by adaptive quadrature."""
