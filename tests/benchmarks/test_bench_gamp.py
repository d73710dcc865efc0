"""How long things take, on one core. Skipped unless asked for: ``pytest -o addopts= tests/benchmarks --benchmark-only``.

Bounds are on the fastest round, which a busy machine disturbs least; SMIMBENCH_NO_TIME_LIMITS=1 reports without judging.
"""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest
from smimbench_algorithms.adam import Adam
from smimbench_algorithms.gamp.algorithm import Gamp
from threadpoolctl import threadpool_limits

from smimbench.backend.device import get_backend
from smimbench.problem.problem import Problem
from smimbench.theory.scalar import ScalarCurve
from tests.helpers import ATTENTION, command, environment, write_suite


@pytest.fixture(autouse=True)
def _one_core():
    with threadpool_limits(limits=1):
        yield


def within(benchmark, seconds: float) -> None:
    if not os.environ.get("SMIMBENCH_NO_TIME_LIMITS"):
        assert benchmark.stats.stats.min < seconds


def attention(channel="softmax", **parameters) -> Problem:
    return Problem(
        {"name": "attention-indexed", "tokens": 2}, {"name": channel, **parameters}, {"name": "wishart", "rho": 0.5}
    )


def stepping(problem, alpha, dimension, algorithm):
    """A step from a state that is a few steps old, as most are."""
    data = problem.instance(alpha, dimension).data(get_backend("numpy"))
    state = algorithm.init(problem, data, np.random.default_rng(0))
    for _ in range(3):
        state, _ = algorithm.step(problem, data, state)
    return lambda: algorithm.step(problem, data, state)


@pytest.mark.benchmark(group="one iteration")
@pytest.mark.parametrize("channel", ["softmax", "linear"])
def test_gamp_attention(benchmark, channel):
    """d = 100, T = 2, alpha = 0.1: at most 10 ms."""
    benchmark(stepping(attention(channel), 0.1, 100, Gamp()))
    within(benchmark, 0.010)


@pytest.mark.benchmark(group="one iteration")
def test_gamp_sequence(benchmark):
    problem = Problem({"name": "sequence-multi-index", "tokens": 2}, "softmax", "gaussian")
    benchmark(stepping(problem, 0.3, 1000, Gamp()))
    within(benchmark, 0.010)


@pytest.mark.benchmark(group="one iteration")
def test_adam_attention(benchmark):
    """PyTorch takes about twice as long: plugins/examples/smimbench-torch/benchmark_step.py."""
    benchmark(stepping(attention(), 0.1, 100, Adam()))
    within(benchmark, 0.003)


@pytest.mark.benchmark(group="theory")
def test_curve_of_128_points(benchmark):
    """Set up and solved; the command below adds the start of the program."""
    alphas = np.linspace(0.005, 0.25, 128)
    problem = attention()
    points = benchmark(lambda: ScalarCurve(problem).competing(alphas))
    assert len(points) == 128
    within(benchmark, 1.0)


@pytest.mark.benchmark(group="command line")
def test_curve_of_128_points_from_the_command_line(benchmark, tmp_path):
    suite = write_suite(tmp_path, ATTENTION)
    alphas = [word for alpha in np.linspace(0.005, 0.25, 128) for word in ("--alpha", f"{alpha:.6f}")]

    def call():
        done = subprocess.run(
            command("theory", suite, "--json", *alphas), capture_output=True, text=True, env=environment(), check=True
        )
        return json.loads(done.stdout)

    (document,) = benchmark.pedantic(call, rounds=3)
    assert len(document["points"]) == 128
    within(benchmark, 2.0)


@pytest.mark.benchmark(group="command line")
def test_help(benchmark):
    def call():
        return subprocess.run(command("--help"), capture_output=True, env=environment(), check=True)

    benchmark.pedantic(call, rounds=5)
    within(benchmark, 0.5)
