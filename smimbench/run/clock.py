"""The clock of a run: the time that its work took, on the wall, of the processor and on the device, added up; and what a
supervisor sees of it from outside, though the step that it waits for never returns.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from smimbench.backend.device import Backend

__all__ = [
    "STILL",
    "Clock",
    "Passed",
    "beat_to",
    "clock_seen",
    "iterations_made",
    "iterations_seen",
    "running",
    "timed",
]

T = TypeVar("T")


STILL = struct.pack("ddd", 0.0, 0.0, 0.0)
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


def iterations_made(iterations: int) -> None:
    """So many iterations of this run have been made."""
    if _shared is not None:
        struct.pack_into("d", _shared, 16, float(iterations))


def iterations_seen(memory: bytes) -> int:
    """Iterations made so far."""
    return int(struct.unpack("ddd", memory)[2])


def clock_seen(memory: bytes) -> float:
    """Seconds on the clock now; 0 while it stands still."""
    seconds, begun, _ = struct.unpack("ddd", memory)
    return float(seconds + time.monotonic() - begun) if begun else 0.0


class Passed(NamedTuple):
    """Time that some work took: on the wall, of the processor, on the device (None where it cannot be told)."""

    seconds: float
    cpu_seconds: float
    device_seconds: float | None

    def shared(self, count: int) -> Passed:
        """What of it falls to each of so many."""
        device = None if self.device_seconds is None else self.device_seconds / count
        return Passed(self.seconds / count, self.cpu_seconds / count, device)


def timed(work: Callable[[], T], backend: Backend, seconds: float) -> tuple[T, Passed]:
    """What ``work`` returns, and the time it took; a supervisor sees a clock running that has so many seconds on it."""
    cpu = time.process_time()
    stop = backend.stopwatch()
    with running(seconds):
        found = work()
    duration, on_device = stop()
    return found, Passed(duration, time.process_time() - cpu, on_device)


@dataclass
class Clock:
    """Time that the algorithm takes, see ``Passed``."""

    seconds: float
    cpu_seconds: float = 0.0
    device_seconds: float | None = 0.0
    durations: list[float] = field(default_factory=list)

    def add(self, passed: Passed) -> None:
        """Go on by what has passed."""
        self.seconds += passed.seconds
        self.cpu_seconds += passed.cpu_seconds
        before, on_device = self.device_seconds, passed.device_seconds
        self.device_seconds = None if before is None or on_device is None else before + on_device
        self.durations.append(passed.seconds)
