"""Two tokens where the last layer, and at most one before it, has an overlap: information from tables."""
