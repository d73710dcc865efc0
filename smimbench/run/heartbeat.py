"""What a supervisor sees from outside: how long an algorithm's clock has run, though the step that it waits for never returns."""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["SIZE", "beat_to", "clock_seen", "running"]

SIZE = struct.calcsize("dd")
"""Bytes of a heartbeat: seconds on the clock when it was last started, and the moment of that start (0: it stands still)."""

_shared: mmap.mmap | None = None


def beat_to(path: Path) -> None:
    """Beat into this file from now on; in a worker, once."""
    global _shared
    with open(path, "r+b") as file:
        _shared = mmap.mmap(file.fileno(), SIZE)


@contextlib.contextmanager
def running(seconds: float) -> Iterator[None]:
    """The algorithm's clock, which has so many seconds on it, runs meanwhile."""
    if _shared is None:
        yield
        return
    struct.pack_into("d", _shared, 0, seconds)
    struct.pack_into("d", _shared, 8, time.monotonic())
    try:
        yield
    finally:
        struct.pack_into("d", _shared, 8, 0.0)


def clock_seen(memory: bytes) -> float:
    """Seconds on the clock now; 0 while it stands still."""
    seconds, begun = struct.unpack("dd", memory)
    return float(seconds + time.monotonic() - begun) if begun else 0.0
