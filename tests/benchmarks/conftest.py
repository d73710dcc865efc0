"""Benchmarks as ratios: every kernel is timed in turn with a piece of work that only measures the machine."""

import os
import time
from typing import NamedTuple

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

JUDGED = not os.environ.get("SMIMBENCH_NO_TIME_LIMITS")
# Where nothing is judged it is enough that everything runs; a size that is asked for is measured all the same.
SMOKE = not JUDGED and "SMIMBENCH_BENCH_NUMBERS" not in os.environ


class Calibration:
    """Three pieces of work of a few milliseconds: matrix products, transcendental functions, reading memory."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._square = rng.standard_normal((512, 512))
        self._numbers = rng.standard_normal(8192)
        self._found = np.empty_like(self._numbers)
        self._large = rng.standard_normal(8_000_000)

    def gemm(self) -> None:
        """A product of square matrices: 0.27 GFLOP."""
        self._square @ self._square

    def exp(self) -> None:
        """A million exponentials of numbers in the first-level cache; fresh pages would cost as much as the functions."""
        for _ in range(128):
            np.exp(self._numbers, out=self._found)

    def read(self) -> None:
        """Reading 64 MB."""
        self._large.sum()


class Paired(NamedTuple):
    """Seconds of a kernel and of its calibration: the best of many turns, side by side."""

    seconds: float
    calibration: float

    @property
    def ratio(self) -> float:
        """What is comparable between machines."""
        return self.seconds / self.calibration


def best_pair(work, calibrate, *, seconds: float = 1.0, least: int = 7) -> Paired:
    """Time two pieces of work in turns, in CPU seconds of this one thread.

    The best of many short turns is what the code needs; anything longer is what the machine did meanwhile.
    """
    if SMOKE:
        seconds, least = 0.0, 1
    work()
    calibrate()
    end = time.monotonic() + seconds
    found: tuple[list[float], list[float]] = ([], [])
    while len(found[0]) < least or (time.monotonic() < end and len(found[0]) < 2000):
        for times, call in zip(found, (work, calibrate)):
            begin = time.process_time()
            call()
            times.append(time.process_time() - begin)
    return Paired(min(found[0]), min(found[1]))


@pytest.fixture(scope="session")
def calibration() -> Calibration:
    """The machine's measuring stick."""
    return Calibration()


@pytest.fixture
def judge() -> bool:
    """Whether times may be judged here; a shared machine says no by SMIMBENCH_NO_TIME_LIMITS=1."""
    return JUDGED


@pytest.fixture
def ratio(benchmark, calibration):
    """``ratio(work, by)``: benchmark, and put the ratio to the calibration ``by`` into its extra information."""

    def measure(work, by: str) -> float:
        with threadpool_limits(limits=1):
            benchmark(work)
            pair = best_pair(work, getattr(calibration, by))
        benchmark.extra_info.update(calibration=by, ratio=pair.ratio)
        return pair.ratio

    return measure
