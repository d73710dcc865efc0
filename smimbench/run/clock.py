"""The clock of a run: the time that a piece of its work took, on the wall, of the processor and on the device, added up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from smimbench.run import heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.backend.device import Backend

__all__ = ["Clock", "Passed", "timed"]

T = TypeVar("T")


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
    with heartbeat.running(seconds):
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
