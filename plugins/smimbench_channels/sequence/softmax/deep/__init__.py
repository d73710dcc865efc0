"""More layers or tokens: posterior by importance sampling."""
