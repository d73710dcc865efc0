"""Theory of online descent, whose every step draws fresh samples."""
