"""The clock of an algorithm, and the heartbeat by which a supervisor sees from outside how long a call lasts, though it never
returns.

The clock counts time on the wall and on the device while code of the algorithm runs. CPU time is that of all threads, whenever
they work.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from smimbench.backend.device import Backend

T = TypeVar("T")

STILL = struct.pack("dd", 0.0, 0.0)
"""The heartbeat of a process with nothing to do: the moment at which its clock would have read 0 (0: it stands still), and the
iterations made.
"""

_shared: mmap.mmap | None = None


def start_heartbeat(path: Path) -> None:
    """Write heartbeats (seconds on the clock, iterations) of this process to a file from now on; called once in a worker."""
    global _shared
    with open(path, "r+b") as file:
        _shared = mmap.mmap(file.fileno(), len(STILL))


def write_heartbeat(offset: int, number: float) -> None:
    """Write a number to the heartbeat file of this process, which its parent reads, if there is one: at offset 0 the moment at
    which the algorithm's clock would have read 0 (0: it stands still), at 8 the iterations of the current run.
    """
    if _shared is not None:
        struct.pack_into("d", _shared, offset, number)


def read_heartbeat(path: Path) -> tuple[float, int]:
    """Read the heartbeat file of a process: seconds on its clock (0 while it is stopped) and iterations."""
    clock_zero, iterations = struct.unpack("dd", path.read_bytes())
    return time.monotonic() - clock_zero if clock_zero else 0.0, int(iterations)


class Clock:
    """Stopwatch of an algorithm, which runs only while the algorithm's own code runs.

    Attributes
    ----------
    seconds : float
        On the wall, from ``initial_seconds`` on, while the clock runs.
    device_seconds : float or None
        On the device; None where that cannot be told.
    """

    def __init__(self, initial_seconds: float) -> None:
        """Start the clock at ``initial_seconds``, stopped."""
        self.seconds = initial_seconds
        self.device_seconds: float | None = 0.0
        self._timed_here = 0.0
        self._process, self._thread = time.process_time(), time.thread_time()

    def time(self, timed_function: Callable[[], T], backend: Backend) -> T:
        """Call ``timed_function`` and add its duration, with waiting for the backend's device, to the clock."""
        cpu_start = time.thread_time()
        stop_stopwatch = backend.stopwatch()
        write_heartbeat(0, time.monotonic() - self.seconds)
        try:
            return_value = timed_function()
        finally:
            write_heartbeat(0, 0.0)
        duration, device_duration = stop_stopwatch()
        self.seconds += duration
        self._timed_here += time.thread_time() - cpu_start
        self.device_seconds = (
            None
            if self.device_seconds is None or device_duration is None
            else self.device_seconds + device_duration
        )
        return return_value

    def add(self, seconds: float, cpu_seconds: float) -> None:
        """Add time that was measured elsewhere, on the wall and of the processor."""
        self.seconds += seconds
        self._timed_here += cpu_seconds

    def cpu_seconds(self) -> float:
        """CPU time of this thread while the clock ran, plus that of all other threads since the clock was created."""
        process_seconds = time.process_time() - self._process
        other_thread_seconds = process_seconds - (time.thread_time() - self._thread)
        return self._timed_here + other_thread_seconds
