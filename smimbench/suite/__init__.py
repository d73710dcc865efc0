"""Suites: from TOML to problems, algorithms and cells."""
