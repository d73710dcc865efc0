"""The clock of a run: the time that its work took, on the wall, of the processor and on the device; and the heartbeat by which a
supervisor sees it from outside, though the step that it waits for never returns.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from smimbench.backend.device import Backend

T = TypeVar("T")

STILL = struct.pack("dd", 0.0, 0.0)
"""The heartbeat of a process with nothing to do: the moment at which its clock would have read 0 (0: it stands still), and the
iterations made.
"""

_shared: mmap.mmap | None = None


def beat_to(path: Path) -> None:
    """Beat into this file from now on; in a worker, once."""
    global _shared
    with open(path, "r+b") as file:
        _shared = mmap.mmap(file.fileno(), len(STILL))


def _beat(offset: int, value: float) -> None:
    if _shared is not None:
        struct.pack_into("d", _shared, offset, value)


def iterations_made(iterations: int) -> None:
    """So many iterations of this run have been made."""
    _beat(8, iterations)


@contextlib.contextmanager
def running(seconds: float) -> Iterator[None]:
    """The algorithm's clock, which has so many seconds on it, runs meanwhile."""
    _beat(0, time.monotonic() - seconds)
    try:
        yield
    finally:
        _beat(0, 0.0)


def read_beat(path: Path) -> tuple[float, int]:
    """Seconds on the clock of a process (0 while it stands still), and iterations made."""
    origin, iterations = struct.unpack("dd", path.read_bytes())
    return time.monotonic() - origin if origin else 0.0, int(iterations)


@dataclass
class Clock:
    """Time that an algorithm takes: on the wall, of the processor, and on the device (None where that cannot be told)."""

    seconds: float
    cpu_seconds: float = 0.0
    device_seconds: float | None = 0.0
    durations: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], T], backend: Backend) -> T:
        """What ``work`` returns; the time that it takes is added."""
        cpu = time.process_time()
        stop = backend.stopwatch()
        with running(self.seconds):
            found = work()
        duration, on_device = stop()
        self.seconds += duration
        self.cpu_seconds += time.process_time() - cpu
        self.device_seconds = (
            None if self.device_seconds is None or on_device is None else self.device_seconds + on_device
        )
        self.durations.append(duration)
        return found
