"""The parts of an iteration, timed by pytest-benchmark on four of the problems that asv follows, and whether 20% more is seen.

python -m pytest -o addopts=--import-mode=importlib tests/benchmarks --benchmark-only --benchmark-autosave
# the same with --benchmark-compare --benchmark-compare-fail=min:15% fails if one became slower on this machine
"""

import time

import numpy as np
import pytest
from smimbench_attention.algorithms.gamp.message_pass import multiply_components
from threadpoolctl import threadpool_limits

from suites.asv.cases import Case, problems
from suites.asv.kernels import Kernels
from tests.benchmarks.conftest import SMOKE

PARTS = ("forward", "posterior", "adjoint", "denoise", "step")


def part_of(suite, part):
    """A call of one part of an iteration of GAMP, or of the whole, on the first problem of a suite."""
    problem = next(name for name in problems() if name.startswith(f"{suite}:"))
    if part == "step":
        return Case(problem).begun("gamp")
    kernels = Kernels()
    kernels.setup(problem)
    return lambda: getattr(kernels, f"time_{part}")(problem)


@pytest.mark.parametrize(
    "suite", ["aim-softmax", "aim-hardmax", "quickstart", "smi-two-layers"]
)
@pytest.mark.parametrize("part", PARTS)
def test_part(benchmark, suite, part):
    with threadpool_limits(limits=1):
        benchmark(part_of(suite, part))


@pytest.mark.parametrize("components", [2, 4, 16])
def test_latents_between_components(benchmark, components):
    """Products of 400,000 latents of two tokens with a matrix between components."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200_000 // components, components, 2))
    with threadpool_limits(limits=1):
        benchmark(multiply_components, rng.standard_normal((components, components)), z)


def least_ratio(call, unit):
    """CPU time of a call over that of a unit of work in turns with it, the least of many of each: what others do is left out."""
    times = []
    for _ in range(2 if SMOKE else 200):
        for work in (call, unit):
            begin = time.process_time()
            work()
            times.append(time.process_time() - begin)
    return min(times[::2]) / min(times[1::2])


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_20_percent_slower_is_flagged(benchmark, judge, part):
    """The same code twice differs by less than 15%, and a fifth more work by more."""
    numbers = np.random.default_rng(0).standard_normal(8192)

    def slowed():
        begin = time.process_time()
        call()
        end = time.process_time()
        while time.process_time() < end + 0.2 * (end - begin):
            pass

    with threadpool_limits(limits=1):
        call = part_of("aim-hardmax", part)
        benchmark.pedantic(call, rounds=3)
        before, again, after = (
            least_ratio(work, lambda: np.exp(numbers)) for work in (call, call, slowed)
        )
    assert not judge or again < 1.15 * before < after
