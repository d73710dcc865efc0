"""What a supervisor sees from outside: how long an algorithm's clock has run, though the step that it waits for never returns,
and how many iterations it has made.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["STILL", "beat_to", "clock_seen", "iterations_seen", "made", "running"]

_FORMAT = "ddd"

STILL = struct.pack(_FORMAT, 0.0, 0.0, 0.0)
"""The heartbeat of a process with nothing to do. Its numbers: seconds on the clock when it was last started, the moment of that
start (0: it stands still), and iterations made.
"""

_shared: mmap.mmap | None = None


def beat_to(path: Path) -> None:
    """Beat into this file from now on; in a worker, once."""
    global _shared
    with open(path, "r+b") as file:
        _shared = mmap.mmap(file.fileno(), len(STILL))


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


def made(iterations: int) -> None:
    """So many iterations of this run have been made."""
    if _shared is not None:
        struct.pack_into("d", _shared, 16, float(iterations))


def iterations_seen(memory: bytes) -> int:
    """Iterations made so far."""
    return int(struct.unpack(_FORMAT, memory)[2])


def clock_seen(memory: bytes) -> float:
    """Seconds on the clock now; 0 while it stands still."""
    seconds, begun, _ = struct.unpack(_FORMAT, memory)
    return float(seconds + time.monotonic() - begun) if begun else 0.0
