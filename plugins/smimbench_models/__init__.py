"""The two ways in which a signal meets the inputs: one model per file."""
