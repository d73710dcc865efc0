"""Committee and parity machines: the published checks, and what the engine integrates against sums over hidden signs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr
from smimbench_glm import Committee, Sign, SignProduct

import smimbench
from smimbench.derive import complete_channel
from smimbench.registry import get_registry
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve

MODEL = get_registry().get("model", "sequence-multi-index").item(tokens=1)


@parametrize_with_checks([Committee(), Committee(components=2), SignProduct()])
def test_contract(check):
    check()


def by_hidden_signs(vote, y, omega, v):
    """Posterior mean for independent latents: a sum over the signs that give the label, each a product of half-lines."""
    total, mean = np.zeros(len(y)), np.zeros(omega.shape[:2])
    for signs in itertools.product((-1.0, 1.0), repeat=omega.shape[1]):
        s = np.array(signs)
        u = s * omega[:, :, 0] / np.sqrt(v)
        chance = np.prod(ndtr(u), axis=1) * (vote(s) == y[:, 0])
        inside = omega[:, :, 0] + np.sqrt(v) * s * np.exp(-u * u / 2) / math.sqrt(
            2 * math.pi
        ) / ndtr(u)
        total += chance
        mean += chance[:, None] * inside
    return mean / total[:, None]


@pytest.mark.parametrize(
    ("channel", "vote"),
    [
        (Committee(), lambda s: np.sign(s.sum())),
        (Committee(components=2), lambda s: np.sign(s.sum())),
        (SignProduct(), np.prod),
        (SignProduct(components=3), np.prod),
    ],
)
def test_posterior_is_the_sum_over_hidden_signs(channel, vote):
    rng = np.random.default_rng(8)
    P = channel.components
    v = np.array([0.3, 0.8, 0.5])[:P]
    omega = rng.standard_normal((60, P, 1))
    y = channel.forward(omega + np.sqrt(v)[:, None] * rng.standard_normal(omega.shape))
    found = complete_channel(channel, MODEL).posterior(y, omega, np.diag(v))
    gap = (found.mean[:, :, 0] - by_hidden_signs(vote, y, omega, v)) / np.sqrt(v)
    assert np.sqrt(np.mean(gap**2)) < 0.02
    assert np.sqrt(np.mean(gap**2)) < 5 * found.error + 1e-3


def test_the_perceptron_both_ways():
    """A product of one sign: the engine's integral of the likelihood gives the closed form's error to three digits."""
    table = {"name": "sequence-multi-index", "tokens": 1}
    given = smimbench.Problem(
        table, {"name": "sign-product", "components": 1}, "gaussian"
    )
    closed = smimbench.Problem(table, "sign", "gaussian")
    for one, other in zip(solve(given, [0.5, 2.0]), solve(closed, [0.5, 2.0])):
        assert one.mse[0] == pytest.approx(other.mse[0], abs=1e-3)
    rng = np.random.default_rng(9)
    omega, V = rng.standard_normal((100, 1, 1)), np.array([[0.4]])
    y = Sign().forward(omega + math.sqrt(0.4) * rng.standard_normal(omega.shape))
    found, exact = (
        given.channel.posterior(y[:, 0, :], omega, V),
        closed.channel.posterior(y, omega, V),
    )
    assert np.abs(found.mean - exact.mean).max() < 1e-3
    assert found.covariance[0, 0] == pytest.approx(exact.covariance[0, 0], abs=1e-3)


def test_a_parity_says_nothing_about_one_direction_alone():
    """Without any overlap the posterior mean of every direction is zero: nothing is learned from the prior mean."""
    channel = complete_channel(SignProduct(), MODEL)
    found = channel.posterior(
        np.array([[1.0], [-1.0]]), np.zeros((2, 2, 1)), np.eye(2), second_moment=True
    )
    assert np.abs(found.mean).max() < 1e-2
    # Both signs equal: E[z_1 z_2] = 2/pi.
    assert found.second_moment[:, 0, 0, 1, 0] == pytest.approx(
        [2 / math.pi, -2 / math.pi], abs=1e-2
    )


def test_a_committee_settles_before_its_members_are_told_apart():
    """Labels see the sum of the members only: what is known of their differences is noise, whose logarithm never settles."""
    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1}, Committee.name, "gaussian"
    )
    (point,) = solve(problem, [1.0])
    assert "not enough" not in point.method
    assert (point.error < 2e-3).all()
    assert np.ptp(point.Q) < 5e-3


def test_bad_parameters_are_named():
    with pytest.raises(smimbench.ParameterError, match="at most 12"):
        SignProduct(components=5, tokens=3)
    with pytest.raises(smimbench.ParameterError, match="components"):
        Committee(components=0)
