"""Committee and parity machines: the published checks, and the engine's integrals of the likelihood against sums over hidden
signs.
"""

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
    """Committee and parity machines pass every published check."""

    check()


def by_hidden_signs(vote, y, omega, v):
    """Posterior mean of independent latents of means omega and variances v given labels y: a sum over the signs s of the latents
    for which ``vote(s)`` is the label, each a product of Gaussians cut off at 0.
    """
    total_probability, weighted_mean = np.zeros(len(y)), np.zeros(omega.shape[:2])
    for signs in itertools.product((-1.0, 1.0), repeat=omega.shape[1]):
        s = np.array(signs)
        cut_off = s * omega[:, :, 0] / np.sqrt(v)
        probability = np.prod(ndtr(cut_off), axis=1) * (vote(s) == y[:, 0])
        mean_on_half_lines = omega[:, :, 0] + np.sqrt(v) * s * np.exp(
            -cut_off * cut_off / 2
        ) / math.sqrt(2 * math.pi) / ndtr(cut_off)
        total_probability += probability
        weighted_mean += probability[:, None] * mean_on_half_lines
    return weighted_mean / total_probability[:, None]


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
    """The engine's posterior of the latents N(omega, v) given labels y of this channel, from its likelihood, agrees with the sum
    over hidden signs; ``vote`` maps signs to the label.
    """

    rng = np.random.default_rng(8)
    P = channel.components
    v = np.array([0.3, 0.8, 0.5])[:P]
    omega = rng.standard_normal((60, P, 1))
    y = channel.forward(omega + np.sqrt(v)[:, None] * rng.standard_normal(omega.shape))
    posterior = complete_channel(channel, MODEL).posterior(y, omega, np.diag(v))
    scaled_difference = (
        posterior.mean[:, :, 0] - by_hidden_signs(vote, y, omega, v)
    ) / np.sqrt(v)
    assert np.sqrt(np.mean(scaled_difference**2)) < 0.02
    assert np.sqrt(np.mean(scaled_difference**2)) < 5 * posterior.error + 1e-3


def test_the_perceptron_both_ways():
    """A parity machine with one hidden sign is a perceptron: from its likelihood alone, the engine gives the error of the closed
    form to three digits, and its posterior given labels y of latents N(omega, V).
    """
    model = {"name": "sequence-multi-index", "tokens": 1}
    integrated = smimbench.Problem(
        model, {"name": "sign-product", "components": 1}, "gaussian"
    )
    closed_form = smimbench.Problem(model, "sign", "gaussian")
    for integrated_point, closed_form_point in zip(
        solve(integrated, [0.5, 2.0]), solve(closed_form, [0.5, 2.0])
    ):
        assert integrated_point.mse[0] == pytest.approx(
            closed_form_point.mse[0], abs=1e-3
        )
    rng = np.random.default_rng(9)
    omega, V = rng.standard_normal((100, 1, 1)), np.array([[0.4]])
    y = Sign().forward(omega + math.sqrt(0.4) * rng.standard_normal(omega.shape))
    integrated_posterior, exact_posterior = (
        integrated.channel.posterior(y[:, 0, :], omega, V),
        closed_form.channel.posterior(y, omega, V),
    )
    assert np.abs(integrated_posterior.mean - exact_posterior.mean).max() < 1e-3
    assert integrated_posterior.covariance[0, 0] == pytest.approx(
        exact_posterior.covariance[0, 0], abs=1e-3
    )


def test_a_parity_says_nothing_about_one_direction_alone():
    """Without any overlap the parity's posterior mean of every latent is zero, so that nothing is learned from the prior mean."""
    channel = complete_channel(SignProduct(), MODEL)
    posterior = channel.posterior(
        np.array([[1.0], [-1.0]]), np.zeros((2, 2, 1)), np.eye(2), second_moment=True
    )
    assert np.abs(posterior.mean).max() < 1e-2
    # Both signs equal: E[z_1 z_2] = 2/pi.
    assert posterior.second_moment[:, 0, 0, 1, 0] == pytest.approx(
        [2 / math.pi, -2 / math.pi], abs=1e-2
    )


def test_a_committee_settles_before_its_members_are_told_apart():
    """State evolution of a committee converges at a sample ratio where labels determine the sum of the hidden units, but not
    their differences.
    """
    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1}, Committee.name, "gaussian"
    )
    (theory_point,) = solve(problem, [1.0])
    assert "not enough" not in theory_point.method
    assert (theory_point.error < 2e-3).all()
    assert np.ptp(theory_point.Q) < 5e-3


def test_bad_parameters_are_named():
    """Too many latents and too few components raise errors that say so."""

    with pytest.raises(smimbench.ParameterError, match="at most 12"):
        SignProduct(components=5, tokens=3)
    with pytest.raises(smimbench.ParameterError, match="components"):
        Committee(components=0)
