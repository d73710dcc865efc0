"""Three tokens or more."""
