"""asv benchmarks of smimbench; README.md says how to run them."""
