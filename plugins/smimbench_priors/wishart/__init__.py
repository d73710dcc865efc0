"""The Wishart prior of attention-indexed models."""
