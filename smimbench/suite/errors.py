"""What is raised when a suite is wrong."""

from __future__ import annotations

__all__ = ["SuiteError"]


class SuiteError(ValueError):
    """A suite is wrong; the message names the file, the key and what would be right."""

    def __init__(self, file: str, key: str, message: str) -> None:
        super().__init__(f"{file}: {key}: {message}" if key else f"{file}: {message}")
