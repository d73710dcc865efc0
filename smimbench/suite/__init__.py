"""Suites: reading a TOML file and turning it into problems, algorithms and cells."""

from __future__ import annotations

from smimbench.files import ForeseenError, printable

__all__ = ["SuiteError"]


class SuiteError(ForeseenError, ValueError):
    """A suite has a mistake; the message names the file and the key, and says what would be right."""

    def __init__(self, file: str, key: str, message: str) -> None:
        file, key = printable(file, 300), printable(key, 200)
        message = printable(message, 1000)
        super().__init__(f"{file}: {key}: {message}" if key else f"{file}: {message}")
