"""Base class of wrappers that replace some members of a channel, prior or model and delegate all others to it."""

from __future__ import annotations

from typing import Any


class Delegate:
    """Base class of wrappers around a channel, prior or model, which supplies all members that they do not define.

    ``_original`` names the attribute that holds the wrapped object.
    """

    _original: str

    def __getattr__(self, name: str) -> Any:
        # Special methods are not the original's: copies and pickles would be of that.
        if name == self._original or name.startswith("__"):
            raise AttributeError(name)
        return getattr(getattr(self, self._original), name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, self._original)!r})"
