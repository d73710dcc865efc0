"""Online descent directly on attention matrices: the limit of two numbers, against matrix recursions, runs and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_attention.algorithms.gradient.online.direct import (
    is_direct,
    solve_direct_flow,
)
from smimbench_attention.algorithms.gradient.online.matrix_theory import (
    flow_moments,
    mean_trace,
)
from smimbench_attention.algorithms.gradient.online.riccati import Coefficients
from smimbench_attention.algorithms.sgd import Sgd

from smimbench.derive.derived_prior import SimulatedPrior
from smimbench.derive.prior import SpectrumPrior
from smimbench.interfaces import Conditions, Denoised, Law, Prior
from smimbench.problem import Problem
from tests.helpers import assert_runs_follow

LINEAR_SITES = 3


class Skewed(Prior):
    """Symmetric matrices of eigenvalues -1, -1 and 2 over sqrt(2), moved by ``shift``."""

    name = "skewed"

    def __init__(self, shift: float = 0.7) -> None:
        eigenvalues = np.repeat([-1.0, -1.0, 2.0], 40) / np.sqrt(2) + shift
        self.law = Law(eigenvalues=eigenvalues)


class Untied(Prior):
    """Gaussian matrices without symmetry, by their sampler and denoiser."""

    name = "untied"

    def sample(self, rng, components, dimension):
        return rng.standard_normal((components, dimension, dimension)) / np.sqrt(
            dimension
        )

    def denoise(self, R, Qhat):
        gain = np.diagonal(Qhat) / (1 + np.diagonal(Qhat))
        return Denoised(gain[:, None, None] * R, np.diag(1 - gain))


def direct(channel, tokens: int = 2, shift: float = 0.7) -> Problem:
    """Symmetric matrices without a factor."""
    model = {"name": "attention-indexed", "tokens": tokens}
    problem = Problem(model, channel, {"name": "wishart", "rho": 1.0})
    problem.prior = SpectrumPrior(Skewed(shift))
    return problem


def untied(channel, tokens: int = 3) -> Problem:
    """Matrices without symmetry and without a factor."""
    model = {"name": "attention-indexed", "tokens": tokens, "symmetric": False}
    problem = Problem(model, channel, {"name": "bilinear", "rho": 1.0})
    problem.prior = SimulatedPrior(Untied(), problem.model)
    return problem


LINEAR = direct({"name": "linear", "noise": 0.2})
SOFTMAX = direct("softmax", shift=-0.4)
UNTIED = untied("softmax")


def test_linear_labels_in_closed_form() -> None:
    """``x = exp(-(C + gamma) t)`` and ``y = C / (C + gamma) (1 - x)``."""
    times, decay, trace, moment = np.linspace(0, 2, 7), 0.3, -0.4, 1.7

    def coefficients(cross, self_overlap) -> Coefficients:
        return Coefficients(
            np.full(len(cross), 1.0 * LINEAR_SITES),
            np.full(len(cross), -1.0 * LINEAR_SITES),
        )

    moments = solve_direct_flow(coefficients, times, 2, trace, moment, decay)
    rate = LINEAR_SITES + decay
    of_start = np.exp(-rate * times)
    of_teacher = LINEAR_SITES / rate * (1 - of_start)
    expected = (
        of_teacher * trace,
        of_teacher * moment,
        of_start**2 + of_teacher**2 * moment,
    )
    for found, values in zip(moments, expected):
        np.testing.assert_allclose(found, np.stack([values] * 2, 1), atol=1e-7)


def test_which_factors_are_the_signal_itself() -> None:
    assert is_direct(LINEAR)
    assert is_direct(UNTIED)
    model = {"name": "attention-indexed", "tokens": 3}
    assert not is_direct(Problem(model, "softmax", {"name": "wishart", "rho": 1.0}))
    untied_model = model | {"symmetric": False}
    bilinear = {"name": "bilinear", "rho": 0.5}
    assert not is_direct(Problem(untied_model, "softmax", bilinear))


def test_trace_of_the_teacher_has_its_sign() -> None:
    assert mean_trace(LINEAR) == pytest.approx(0.7, rel=1e-6)
    assert mean_trace(SOFTMAX) == pytest.approx(-0.4, rel=1e-6)
    assert mean_trace(UNTIED) == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_time_is_the_same_in_all_dimensions() -> None:
    algorithm = Sgd(online=True, steps=20, learning_rate=1e-3, batch=100)
    limits = [
        flow_moments(algorithm, LINEAR, "squared", [0, 10, 20], D) for D in (40, 4000)
    ]
    np.testing.assert_array_equal(np.stack(limits[0]), np.stack(limits[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "rate", "decay"),
    [(LINEAR, 1e-3, 0.0), (SOFTMAX, 6e-3, 0.5), (UNTIED, 6e-3, 0.0)],
    ids=["linear", "softmax", "without symmetry"],
)
def test_matrix_recursion_in_large_dimension(
    problem: Problem, rate: float, decay: float
) -> None:
    """Draws of large batches at D = 200 follow the limit up to terms of order 1/D."""
    algorithm = Sgd(
        online=True, steps=100, learning_rate=rate, batch=10**9, weight_decay=decay
    )
    prediction = algorithm.theory(
        problem, 1.0, Conditions(dimension=200, trajectory=True)
    )
    assert not isinstance(prediction, str)
    trajectory = prediction.trajectory
    assert isinstance(trajectory, dict)
    assert np.ptp(trajectory["mse_limit"]) > 0.3
    for name in ("mse", "overlap", "trace", "overlap_beyond_chance"):
        drawn, error = (
            np.array(trajectory[column])[:, 0] for column in (name, f"{name}_error")
        )
        limit = np.array(trajectory[f"{name}_limit"])
        assert (np.abs(drawn - limit) < 4 * error + 0.02).all(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "rate"),
    [(LINEAR, 1.5e-3), (SOFTMAX, 1e-2), (UNTIED, 1.5e-2)],
    ids=["linear", "softmax", "without symmetry"],
)
def test_runs_follow_the_draws(problem: Problem, rate: float) -> None:
    algorithm = Sgd(online=True, steps=50, learning_rate=rate, batch=200)
    assert_runs_follow(problem, algorithm, dimension=60, seeds=12)
