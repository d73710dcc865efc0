"""Caches: for functions of small arrays, compared by value, and for numbers that are stored on an object."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from smimbench.interfaces import Host

T = TypeVar("T")


class _HashableArray:
    """Hashable wrapper of a host array that compares by entries, shape and type. ``key`` is its content as bytes, with shape
    and type.
    """

    __slots__ = ("array", "key")

    def __init__(self, array: Host) -> None:
        """Wrap an array and compute its key."""
        self.array = np.array(array, order="C")
        self.array.flags.writeable = False
        self.key = self.array.shape, self.array.dtype.str, self.array.tobytes()

    def __eq__(self, other: object) -> bool:
        """Whether two wrapped arrays have equal entries, shape and type."""
        return isinstance(other, _HashableArray) and self.key == other.key

    def __hash__(self) -> int:
        """Hash of the array's entries, shape and type."""
        return hash(self.key)


def _hashable(argument: object) -> object:
    """Wrap a host array so that it can be hashed; return any other argument unchanged."""
    return _HashableArray(argument) if isinstance(argument, np.ndarray) else argument


def _unwrapped(argument: object) -> object:
    """Host array of a wrapper; any other argument unchanged."""
    return argument.array if isinstance(argument, _HashableArray) else argument


def by_value(maxsize: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator that caches a function like ``functools.lru_cache``, with at most ``maxsize`` results, but compares
    small host arrays among the arguments by their entries.

    The function gets read-only copies of them. Where another argument cannot be hashed (an item of a plugin that is a
    dataclass, say) nothing is kept and the function is called each time.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        """Return ``function`` with a cache of at most ``maxsize`` results, which compares array arguments by value."""

        @lru_cache(maxsize=maxsize)
        def cached(*arguments: object) -> T:
            """Call the function on unwrapped arguments; ``lru_cache`` stores the result."""
            return function(*map(_unwrapped, arguments))

        @wraps(function)
        def call(*arguments: Any) -> T:
            """Call the cached function with arrays wrapped as hashable arguments."""
            hashable_arguments = tuple(map(_hashable, arguments))
            try:
                hash(hashable_arguments)
            except TypeError:
                return function(*arguments)
            return cached(*hashable_arguments)

        return call

    return decorate


def cached_on(
    owner: object, name: str, compute: Callable[[], T], key: Hashable = None
) -> T:
    """Return ``compute()``, called once for each ``name`` and ``key`` and stored on the object ``owner``; later calls with the
    same name and key return the stored result.
    """
    cached_results: dict[Hashable, T] = vars(owner).setdefault(f"_cached_{name}", {})
    if key not in cached_results:
        cached_results[key] = compute()
    return cached_results[key]
