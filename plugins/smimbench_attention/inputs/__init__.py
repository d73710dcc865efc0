"""Laws of the tokens."""
