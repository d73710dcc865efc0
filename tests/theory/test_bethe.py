"""Free entropy of one instance: exact evidence, what it is stationary in, and theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from smimbench_algorithms.gamp.algorithm import Gamp

from smimbench.backend.device import get_backend
from smimbench.theory.bethe import FixedPoint, _evidence_of_labels, free_entropy
from smimbench.theory.free_entropy import free_entropy_between
from smimbench.theory.information import information_at, prior_moments
from smimbench.theory.predictions import solve
from tests.helpers import attention, sequence

LINEAR = {"channel": "linear", "noise": 0.1}


def arrive(problem, alpha, dimension, replicate=0, steps=60):
    """Data and where GAMP stands after so many steps."""
    instance = problem.instance(alpha, dimension, replicate)
    data = instance.data(get_backend("numpy"))
    algorithm = Gamp()
    state = algorithm.init(problem, data, np.random.default_rng(replicate))
    for _ in range(steps):
        state, _ = algorithm.step(problem, data, state)
    onsager = state.V if state.onsager is None else state.onsager
    shift = -np.einsum("pq,nqc->npc", onsager, state.g)
    point = FixedPoint(state.estimate, state.V, shift, state.Qhat, state.total)
    assert algorithm.free_entropy(problem, data, state) == pytest.approx(free_entropy(problem, data, point), abs=1e-12)
    return instance, data, point


def in_theory(problem, alpha):
    """Free entropy of state evolution at its fixed point, less that at the prior mean."""
    found = solve(problem, [alpha])[0]
    Qhat = problem.model.kappa * alpha * information_at(problem, found.Q, found.V).value
    return free_entropy_between(problem, alpha, np.zeros_like(Qhat), Qhat)[0]


@pytest.mark.parametrize("replicate", range(3))
def test_gaussian_labels_have_their_exact_evidence(replicate):
    """``log N(y; 0, XX^T + noise) - log N(y; 0, 1 + noise)`` of this very instance, up to one over D."""
    dimension = 150
    instance, data, point = arrive(sequence(**LINEAR), 1.0, dimension, replicate)
    x = instance.inputs.reshape(-1, dimension)
    basis = [data.inputs, np.eye(dimension)]
    z = np.stack([sequence(**LINEAR).model.forward(basis[0], e[None])[:, 0, :].ravel() for e in basis[1]], axis=1)
    assert z.shape == x.shape
    covariance, y = z @ z.T + 0.1 * np.eye(len(z)), instance.labels.ravel()
    exact = -0.5 * (np.linalg.slogdet(covariance)[1] + y @ np.linalg.solve(covariance, y))
    exact += 0.5 * (len(y) * math.log(1.1) + y @ y / 1.1)
    assert free_entropy(sequence(**LINEAR), data, point) == pytest.approx(exact / dimension, abs=1 / dimension)


PROBLEMS = {
    "linear": (sequence(**LINEAR), 0.7, 60, 1e-4),
    "two components": (sequence("linear", components=2, noise=0.1), 0.7, 60, 1e-4),
    "hardmax": (sequence("hardmax"), 3.0, 30, 1e-3),
    "attention": (attention("linear", noise=0.1), 0.15, 40, 3e-2),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_stationary_where_message_passing_stands(name):
    """A small change of any argument changes it by second order only.

    ``slack`` is in units of what the same change would do to one term alone. For extensive rank the evidence knows a spectrum by
    first order, so that it is stationary in Qhat up to what D eigenvalues fluctuate.
    """
    problem, alpha, dimension, slack = PROBLEMS[name]
    _, data, point = arrive(problem, alpha, dimension, steps=100)
    rng = np.random.default_rng(1)
    h = 1e-3
    P = problem.components
    noise = problem.model.draw_noise(rng, P, dimension)
    size = math.sqrt(float(np.trace(point.V)))
    R_moves = np.einsum("pq,q...->p...", point.Qhat, size * noise)

    def along(change):
        values = [free_entropy(problem, data, point._replace(**change(sign * h))) for sign in (1, -1)]
        return (values[0] - values[1]) / (2 * h)

    def shift(t):  # of the estimate, at the same omega and R: z moves with it
        moved = t * size * noise
        z = problem.model.forward(data.inputs, moved)
        total = point.total - np.einsum("pq,q...->p...", point.Qhat, moved)
        return {"estimate": point.estimate + moved, "shift": point.shift - z, "total": total}

    def information(t):  # at the same Qhat R
        Qhat = point.Qhat * (1 + t)
        return {"Qhat": Qhat, "total": point.total - t * np.einsum("pq,q...->p...", point.Qhat, point.estimate)}

    moves = {
        "estimate": shift,
        "omega": lambda t: {"shift": point.shift + t * size * rng_shift},
        "R": lambda t: {"total": point.total + t * R_moves},
        "V": lambda t: {"V": point.V * (1 + t)},
        "Qhat": information,
    }
    rng_shift = rng.standard_normal(point.shift.shape)
    terms = float(np.trace(point.Qhat @ point.V)) + 1
    for what, change in moves.items():
        assert abs(along(change)) < slack * terms, (what, along(change), terms)


@pytest.mark.parametrize(
    ("problem", "alpha", "dimension", "runs"),
    [(sequence("sign"), 2.5, 100, 6), (attention(**LINEAR), 0.1, 60, 3), (attention("softmax"), 0.1, 50, 3)],
)
def test_its_mean_tends_to_the_free_entropy_of_theory(problem, alpha, dimension, runs):
    found = [free_entropy(problem, *arrive(problem, alpha, dimension, r, 60)[1:]) for r in range(runs)]
    error = np.std(found, ddof=1) / math.sqrt(runs) + 2 / dimension * abs(in_theory(problem, alpha))
    assert abs(np.mean(found) - in_theory(problem, alpha)) < 4 * error


@pytest.mark.parametrize("channel", [LINEAR, {"channel": "hardmax"}])
def test_labels_are_normalised_as_the_channel_does_it(channel):
    """The integral of posterior means is the difference of the channel's own ``log_partition``."""
    problem = sequence(**channel)
    _, data, point = arrive(problem, 2.0, 50, steps=30)
    second, known = prior_moments(problem)
    z = problem.model.forward(data.inputs, point.estimate)
    exact = problem.channel.log_partition(data.labels, z + point.shift, point.V)
    exact = exact - problem.channel.log_partition(data.labels, 0 * z, second - known)
    quadratic = 0.5 * np.sum(point.shift**2) / point.V[0, 0] / len(z)
    assert _evidence_of_labels(problem, data, point, point.V) - quadratic == pytest.approx(np.mean(exact), rel=1e-6)


def test_without_means_over_the_spectrum_it_says_so(monkeypatch):
    problem = attention(**LINEAR)
    _, data, point = arrive(problem, 0.1, 20, steps=5)
    monkeypatch.delattr(type(problem.prior), "spectral_means")
    with pytest.raises(ValueError, match="spectral_means"):
        free_entropy(problem, data, point)
