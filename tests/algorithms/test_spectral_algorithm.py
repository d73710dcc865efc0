"""The spectral algorithm in the engine: both kinds of model, warnings, theory next to the runs, starts for others."""

import numpy as np
import pytest
from smimbench_attention.algorithms.gamp import Gamp
from smimbench_attention.algorithms.spectral import Spectral

from smimbench.backend.device import get_backend
from smimbench.problem.problem import Problem
from tests.helpers import run_once

LOW = Problem({"name": "sequence-multi-index", "tokens": 2}, "softmax", "gaussian")
EXTENSIVE = Problem(
    {"name": "attention-indexed", "tokens": 2},
    "softmax",
    {"name": "wishart", "rho": 0.5},
)


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
def test_one_step_and_done(kind):
    instance = LOW.instance(1.0, 120)
    attempt = run_once(LOW, instance, Spectral(kind=kind))
    assert attempt.status.value == "ok"
    assert attempt.iterations == 1
    assert attempt.trajectory["overlap"][0] == [0.0]  # the prior mean
    assert attempt.metrics["overlap"][0] > 0.2
    assert attempt.trajectory["samples"][-1] == 120


@pytest.mark.parametrize("dimension", [60, 200])
@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
def test_labels_that_say_nothing_of_second_moments_end_a_run_as_usual(kind, dimension):
    """Signs: the matrix of labels is zero, which has no eigenvector to look for."""
    problem = Problem({"name": "sequence-multi-index", "tokens": 1}, "sign", "gaussian")
    attempt = run_once(problem, problem.instance(2.0, dimension), Spectral(kind=kind))
    assert attempt.status.value == "ok"
    assert attempt.metrics["mse"][0] == pytest.approx(1.0, abs=0.6)


def test_eigenvalues_are_kept_beside_their_theory():
    def attempt(problem, algorithm, alpha, dimension, replicate=0):
        return run_once(
            problem, problem.instance(alpha, dimension, replicate), algorithm
        )

    key, asymmetric = "leading_eigenvalues", Spectral(kind="asymmetric")
    expected = Spectral().theory(LOW, 0.8).more[key]
    assert attempt(LOW, Spectral(), 0.8, 400).final[key] == pytest.approx(
        expected, rel=0.25
    )
    runs = [attempt(LOW, asymmetric, 0.1, 100, replicate) for replicate in range(6)]
    missing = ["no real outlier" in " ".join(one.warnings) for one in runs]
    assert any(missing)
    assert [one.final[key] == [None] for one in runs] == missing
    # No outlier below the transition; above it is alpha F with F = 6.
    assert asymmetric.theory(LOW, 0.1).more[key] == [None]
    assert asymmetric.theory(LOW, 0.5).more[key] == pytest.approx([3.0], rel=0.01)
    assert key not in Spectral().theory(EXTENSIVE, 0.1).more
    assert key not in attempt(EXTENSIVE, Spectral(), 0.1, 10).final


def test_gamp_goes_on_from_it():
    instance = LOW.instance(0.9, 400)
    data = instance.data(get_backend())
    start = Spectral().start(LOW, data, np.random.default_rng(0))
    alone = run_once(LOW, instance, Spectral())
    further = run_once(LOW, instance, Gamp(), start=start)
    assert further.status.value == "ok"
    assert further.metrics["mse"][0] < alone.metrics["mse"][0]
    assert further.metrics["overlap"][0] > 0.9
