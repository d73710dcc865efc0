"""Reads suites: TOML files that define problems, algorithms and the runs (cells) to make."""

from __future__ import annotations

from smimbench.files import ForeseenError, printable

__all__ = ["SuiteError"]


class SuiteError(ForeseenError, ValueError):
    """Raised for a mistake in a suite; the message names file and key, and says what would be right."""

    def __init__(self, file: str, key: str, message: str) -> None:
        """Make the message from the suite's file, the key (path of names) and what is wrong with it."""
        file = printable(file, 300)
        key = printable(key, 200)
        message = printable(message, 1000)
        super().__init__(f"{file}: {key}: {message}" if key else f"{file}: {message}")
