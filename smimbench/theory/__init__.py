"""State evolution, thresholds and prediction errors: pure mathematics, no clock, no printing, no files."""
