"""Perceptrons: Q(alpha) by SciPy's quadrature, and deep tails."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from smimbench_attention.channels.sequence.perceptron import Probit, Sign

import smimbench
from smimbench.theory.predictions import solve, thresholds
from tests.helpers import scalar

MODEL = {"name": "sequence-multi-index", "tokens": 1}


def overlap_by_quadrature(alpha: float, noise: float) -> float:
    """Root Q of ``Q = Qhat / (1 + Qhat)`` with ``Qhat = alpha E g^2``, labels +1 and -1 summed, by SciPy's integrals."""

    def qhat(q: float) -> float:
        width = 1 - q + noise

        def density(x: float) -> float:
            u = math.sqrt(q / width) * x
            # phi(u)^2 / Phi(u) for one label; the other one is its mirror image.
            return (
                math.exp(-u * u - log_ndtr(u) - x * x / 2)
                / (2 * math.pi)
                / math.sqrt(2 * math.pi)
            )

        return (
            alpha
            * 2
            * quad(density, -12, 12, epsabs=1e-13, epsrel=1e-11, limit=200)[0]
            / width
        )

    return brentq(lambda q: qhat(q) / (1 + qhat(q)) - q, 1e-9, 1 - 1e-9, xtol=1e-12)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_overlap_is_the_fixed_point_by_quadrature(alpha, noise):
    channel = {"name": "probit", "noise": noise} if noise else "sign"
    point = solve(smimbench.Problem(MODEL, channel, "gaussian"), [alpha])[0]
    assert point.Q[0, 0] == pytest.approx(overlap_by_quadrature(alpha, noise), rel=1e-7)


def test_learning_starts_at_once_and_never_ends():
    found = thresholds(smimbench.Problem(MODEL, "sign", "gaussian"))
    assert found.weak_recovery.value == 0
    assert found.perfect_recovery is None


def test_several_tokens_are_as_many_samples():
    one = solve(smimbench.Problem(MODEL, "sign", "gaussian"), [1.2])[0]
    three = solve(smimbench.Problem({**MODEL, "tokens": 3}, "sign", "gaussian"), [0.4])[
        0
    ]
    assert three.Q[0, 0] == pytest.approx(one.Q[0, 0], rel=1e-9)


@pytest.mark.parametrize("u", [-200.0, -31.0, -29.0, -5.0, 0.0, 4.9, 5.1, 30.0])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_labels_against_all_odds_keep_their_digits(u, noise):
    """Mean and variance of z > 0 by quadrature on the scale of the tail."""
    V = 0.3
    omega = u * math.sqrt(V + noise)
    if noise:
        peak = omega if u > 0 else omega * noise / (V + noise)
        low, high = peak - 12, peak + 12
    else:
        low = max(0.0, omega - 12 * math.sqrt(V))
        high = max(0.0, omega) + 45 * V / max(math.sqrt(V), -omega)
    x, w = np.polynomial.legendre.leggauss(400)
    z = (low + high) / 2 + (high - low) / 2 * x
    seen = log_ndtr(z / math.sqrt(noise)) if noise else 0.0
    logs = seen - (z - omega) ** 2 / (2 * V)
    w = w * np.exp(logs - logs.max())
    mean = w @ z / w.sum()
    variance = w @ (z - mean) ** 2 / w.sum()
    channel = Probit(noise=noise) if noise else Sign()
    found = channel.posterior(np.ones((1, 1, 1)), np.full((1, 1, 1), omega), scalar(V))
    assert found.mean[0, 0, 0] == pytest.approx(mean, rel=1e-6, abs=1e-9)
    assert found.covariance[0, 0] == pytest.approx(variance, rel=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize(("Q", "V"), [(0.0, 1.0), (0.3, 0.7), (1.2, 1e-3)])
def test_errors_of_prediction(noise, Q, V):
    """Against the definition, with nodes: the mean label is ``2 Phi(z / sqrt(noise)) - 1``."""
    found = _errors(noise, Q, V)
    nodes = np.linspace(-9, 9, 18000)
    weights = np.exp(-(nodes**2) / 2) / np.exp(-(nodes**2) / 2).sum()

    def mean(z, spread):
        return np.where(z >= 0, 1.0, -1.0) if spread == 0 else 2 * ndtr(z / spread) - 1

    square = weights @ mean(math.sqrt(Q + V) * nodes, math.sqrt(noise)) ** 2
    omega = math.sqrt(Q) * nodes
    bayes = mean(omega, math.sqrt(V + noise))
    plugin = mean(omega, math.sqrt(noise))
    assert_allclose(found["constant"], 2 * square, rtol=1e-9)
    assert_allclose(found["bayes"], 2 * (square - weights @ bayes**2), rtol=1e-6)
    assert_allclose(
        found["plugin"],
        2 * (square + weights @ (plugin**2 - 2 * bayes * plugin)),
        rtol=1e-4,
    )


def test_errors_of_prediction_as_the_error_vanishes():
    """What is left is the chance that two signs differ, or the slope of the mean label: no digit is lost."""
    V = 1e-13
    signs = _errors(0.0, 1.0, V)
    slope = V / (0.3 * math.sqrt(1 + 2 / 0.3))
    assert_allclose(signs["plugin"], 8 / math.pi * math.sqrt(V), rtol=1e-10)
    assert_allclose(signs["bayes"], 8 / math.pi * math.sqrt(V / 2), rtol=1e-10)
    assert_allclose(
        [_errors(0.3, 1.0, V)[kind] for kind in ("bayes", "plugin")],
        4 / math.pi * slope,
        rtol=1e-10,
    )


def _errors(noise, Q, V):
    channel = Probit(tokens=2, noise=noise) if noise else Sign(tokens=2)
    found = channel.generalization_error(scalar(Q), scalar(V))
    return {kind: float(entry.value) for kind, entry in found.items()}
