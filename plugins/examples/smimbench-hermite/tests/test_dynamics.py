"""What online SGD learns from Hermite labels: all of them from a factor, h1 alone directly on the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_attention.algorithms.gradient.online.matrix_theory import (
    flow_moments,
    mean_trace,
)
from smimbench_attention.algorithms.sgd import Sgd

import smimbench
from smimbench.backend import get_backend

RHO = 1.0


def problem_of(label: str, prior: str) -> smimbench.Problem:
    """Labels of latents whose variance is 1 after scaling."""
    return smimbench.Problem(
        {"name": "attention-indexed", "tokens": 1},
        {"name": label, "variance": 1 + RHO},
        {"name": prior, "rho": RHO},
    )


def overlaps(label: str, prior: str, learning_rate: float, steps: int) -> np.ndarray:
    """Overlap beyond chance in the limit, over its value 1 for the teacher itself, at eight times."""
    problem = problem_of(label, prior)
    algorithm = Sgd(online=True, steps=steps, learning_rate=learning_rate, batch=512)
    recorded_steps = [steps * i // 8 for i in range(9)]
    moments = flow_moments(algorithm, problem, "squared", recorded_steps, 400)
    assert not isinstance(moments, str)
    return (moments.cross - moments.trace * mean_trace(problem)).mean(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["h1", "h2", "h3"])
def test_figure_2_of_the_paper(label):
    """The limit at d = 400, learning rate 0.005 of half the squared loss and batches of 512, with which its S is W W^T."""
    d, paper_rate, steps = 400, 0.005, 160_000
    from_factor = overlaps(label, "wishart", paper_rate * RHO**0.5 / (2 * d), steps)
    from_matrix = overlaps(label, "wishart-spectrum", paper_rate / (4 * d), steps)
    assert from_factor[0] == pytest.approx(0, abs=1e-6)
    assert from_factor[-1] == pytest.approx(1, abs=0.08)
    if label == "h1":
        assert from_matrix[-1] > 0.6
    else:
        assert np.abs(from_matrix).max() < 0.02


@pytest.mark.parametrize("side", ["left", "right"])
def test_entries_of_reproduce_are_suites(side):
    name = f"2609.03858-fig2-{side}"
    suite = smimbench.load_suite(name)
    assert suite.figure.package == "smimbench-hermite"
    assert [curve.label for curve in suite.figure.curves] == ["h1", "h2", "h3"]
    quick = smimbench.load_suite(name, suite.figure.quick)
    assert {cell.dimension for cell in quick.cells("numpy")} == {100}


def run(label: str, prior: str, learning_rate: float, steps: int) -> dict:
    """Metrics of one run at d = 60 with batches of 2500 samples, in the time of the suite."""
    problem, d, batch = problem_of(label, prior), 60, 2500
    algorithm = Sgd(online=True, steps=steps, learning_rate=learning_rate, batch=batch)
    instance = problem.instance(problem.model.sample_ratio(batch, d), d, 0)
    data = instance.data(get_backend("numpy"))
    state = algorithm.init(problem, data, np.random.default_rng(0))
    for _ in range(steps):
        state, _ = algorithm.step(problem, data, state)
    return instance.metrics(state.signal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "learning_rate", "steps"),
    [("h1", 1 / 600, 180), ("h2", 1 / 600, 180), ("h3", 3e-4, 1000)],
)
def test_runs_learn_what_the_limit_says(label, learning_rate, steps):
    """The errors begin at 2 and 3; the matrix has the overlap 2 p, with p the overlap beyond chance."""
    assert run(label, "wishart", learning_rate, steps)["mse"][0] < 0.3
    overlap = run(label, "wishart-spectrum", learning_rate, steps)["overlap"][0]
    if label == "h1":
        assert overlap / 2 > 0.4
    else:
        assert abs(overlap) / 2 < 0.1
