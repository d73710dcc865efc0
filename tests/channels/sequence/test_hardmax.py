"""Sequence hardmax against a grid, rejection, sums over all labels, Nishimori's identities and exact limits."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr
from smimbench_attention.channels.sequence.hardmax import SequenceHardmax
from smimbench_attention.channels.sequence.hardmax.information import (
    sampled_scaled_information,
    scaled_information,
    small_error_limit,
    two_token_information,
)

from smimbench.backend.arrays import to_host
from smimbench.problem.problem import Problem
from smimbench.theory.predictions import thresholds
from tests.helpers import scalar


def scores_argmax(z):
    """The definition, written out: the largest entry of every row of z z^T."""
    return (z[:, 0, :, None] * z[:, 0, None, :]).argmax(-1)


def every_label(tokens):
    """By looking at many latents."""
    z = np.random.default_rng(1).standard_normal((4000, 1, tokens))
    return np.unique(scores_argmax(z), axis=0)


def drawn(rng, n, q, v, tokens):
    omega = math.sqrt(q) * rng.standard_normal((n, 1, tokens))
    z = omega + math.sqrt(v) * rng.standard_normal(omega.shape)
    return scores_argmax(z), omega, z


@pytest.mark.parametrize("tokens", [2, 3])
def test_forward_is_the_argmax_of_the_scores(tokens, backend, rng):
    z = rng.standard_normal((200, 1, tokens))
    channel = SequenceHardmax(tokens=tokens)
    y = channel.forward(backend.asarray(z))
    assert np.array_equal(to_host(y), scores_argmax(z))
    assert np.array_equal(
        to_host(channel.forward(backend.asarray(-3.0 * z))), scores_argmax(z)
    )
    hot = to_host(channel.observable(y))
    assert np.array_equal(hot.argmax(-1), scores_argmax(z))
    assert np.array_equal(hot.sum(-1), np.ones((200, tokens)))


@pytest.mark.parametrize(
    ("tokens", "q", "v"), [(2, 0.7, 0.3), (3, 0.7, 0.3), (3, 1.0, 1e-4), (3, 1.0, 1e-8)]
)
def test_labels_exhaust_all_and_bayes_holds(tokens, q, v, rng):
    omega = math.sqrt(q) * rng.standard_normal((60, 1, tokens))
    omega[:20] *= math.sqrt(v / q)  # near the planes where labels change
    channel = SequenceHardmax(tokens=tokens)
    total = 0.0
    mean = 0.0
    second = 0.0
    for label in every_label(tokens):
        y = np.broadcast_to(label, (60, tokens))
        p = np.exp(channel.log_partition(y, omega, scalar(v)))
        found = channel.posterior(y, omega, scalar(v), second_moment=True)
        assert np.isfinite(found.second_moment).all()
        total = total + p
        mean = mean + p[:, None] * (found.mean - omega)[:, 0]
        second = second + p[:, None, None] * found.second_moment[:, 0, :, 0]
    assert_allclose(total, 1, atol=1e-8)
    assert_allclose(mean, 0, atol=1e-8 * math.sqrt(v) + 1e-12)
    prior = omega[:, 0, :, None] * omega[:, 0, None, :] + v * np.eye(tokens)
    assert_allclose(second, prior, atol=1e-8)


def test_two_tokens_of_equal_sign_have_an_orthant(rng):
    # z_1 > z_2 > 0 or the mirror image at omega = 0: two wedges of 45 degrees
    channel = SequenceHardmax(tokens=2)
    y = np.array([[0, 0], [1, 1], [0, 1]])
    p = np.exp(channel.log_partition(y, np.zeros((3, 1, 2)), scalar(2.0)))
    assert_allclose(p, [0.25, 0.25, 0.5], rtol=1e-12)
    # tokens of opposite sign: products of one-dimensional probabilities
    omega = rng.standard_normal((40, 1, 2))
    a, b = omega[:, 0].T
    p = np.exp(
        channel.log_partition(np.broadcast_to([0, 1], (40, 2)), omega, scalar(1.0))
    )
    assert_allclose(p, ndtr(a) * ndtr(-b) + ndtr(-a) * ndtr(b), rtol=1e-12)


def test_unlikely_labels_stay_finite(rng):
    channel = SequenceHardmax(tokens=3)
    omega = 300 * rng.standard_normal((50, 1, 3))
    for label in every_label(3):
        y = np.broadcast_to(label, (50, 3))
        found = channel.posterior(y, omega, scalar(1.0))
        assert np.isfinite(found.mean).all()
        assert found.covariance[0, 0] > 0
        assert np.isfinite(channel.log_partition(y, omega, scalar(1.0))).all()


@pytest.mark.slow
def test_information_equals_plain_sampling(rng):
    tokens = 3
    v = 0.1
    channel = SequenceHardmax(tokens=tokens)
    y, omega, z = drawn(rng, 10_000, 1 - v, v, tokens)
    shift = channel.posterior(y, omega, scalar(v)).mean - omega
    told = (shift**2).sum((1, 2)) / v**2
    error = told.std() / math.sqrt(len(told))
    # Nishimori: the truth is as far from omega, seen along the shift, as the shift itself
    other = (shift * (z - omega)).sum((1, 2)) / v**2 - told
    assert abs(other.mean()) < 4 * other.std() / math.sqrt(len(told))
    estimate = sampled_scaled_information(tokens, math.sqrt(v)) * (1 - v) / math.sqrt(v)
    spread = estimate.std(ddof=1) / math.sqrt(len(estimate))
    assert abs(told.mean() - estimate.mean()) < 4 * math.hypot(error, spread)
    assert spread < 1e-2 * estimate.mean()


@pytest.mark.slow
def test_information_curve_of_two_tokens_and_its_ends():
    channel = SequenceHardmax(tokens=2)
    for x in (0.015, 0.9):
        found = channel.information(scalar(2 * (1 - x)), scalar(2 * x))
        direct = (
            sampled_scaled_information(2, math.sqrt(x)) * (1 - x) / math.sqrt(x) / 2
        )
        tolerance = 4 * math.hypot(float(found.error[0, 0]), direct.std(ddof=1) / 2)
        assert float(found.value[0, 0]) == pytest.approx(direct.mean(), abs=tolerance)
    # first order in Q: the susceptibility
    q = 1e-7
    slope = float(channel.information(scalar(q), scalar(1 - q)).value[0, 0]) / q
    assert slope == pytest.approx(
        float(channel.susceptibility(scalar(0), scalar(1)).value[0, 0]), rel=1e-5
    )
    # small errors: only thin layers around the planes where labels change still tell something
    v = 1e-10
    found = float(channel.information(scalar(1), scalar(v)).value[0, 0]) * math.sqrt(v)
    assert found == pytest.approx(small_error_limit(2), rel=1e-3)
    assert channel.information(scalar(1), scalar(0)).value[0, 0] == math.inf
    assert channel.susceptibility(scalar(0.5), scalar(0.5)).value[0, 0] == 0


def test_small_error_constant_of_two_tokens_by_planes():
    # each line of the plane as long as it separates labels: two whole axes, and both halves of the diagonal
    k = np.linspace(-12, 12, 20001)
    tie = np.exp(-(k**2)) / (2 * math.pi) / (ndtr(k) * ndtr(-k))
    assert small_error_limit(2) == pytest.approx(
        3 * np.trapezoid(tie, k) / math.sqrt(2 * math.pi), rel=1e-9
    )


@pytest.mark.parametrize("tokens", [2, 3])
def test_weak_recovery_by_rejection(tokens, rng):
    channel = SequenceHardmax(tokens=tokens)
    z = rng.standard_normal((300_000, tokens))
    labels = scores_argmax(z[:, None])
    total = 0.0
    for label in every_label(tokens):
        here = z[(labels == label).all(1)]
        G = here.T @ here / len(here) - np.eye(tokens)
        noise = np.einsum("na,nb->nab", here, here).var(0).sum() / len(here)
        total += len(here) / len(z) * ((G**2).sum() - noise)
    assert float(
        channel.susceptibility(scalar(0), scalar(1)).value[0, 0]
    ) == pytest.approx(total, rel=0.02)


def test_what_is_refused():
    channel = SequenceHardmax(tokens=3)
    possible = {tuple(label) for label in every_label(3)}
    for label in itertools.product(range(3), repeat=3):
        y = np.array([label])
        omega = np.zeros((1, 1, 3))
        if label in possible:
            channel.posterior(y, omega, scalar(1))
        else:
            with pytest.raises(ValueError, match="labels"):
                channel.posterior(y, omega, scalar(1))
    with pytest.raises(ValueError, match="shape"):
        channel.forward(np.zeros((4, 1, 2)))


def exact(s):
    """The scaled information of which the channel makes a polynomial."""
    return two_token_information(s) / s / (1 - s * s)


@pytest.mark.slow
def test_against_a_plain_grid():
    s = 0.6
    width = math.sqrt(1 - s * s) / s
    channel = SequenceHardmax(tokens=2)
    side = np.linspace(-9, 9, 73)
    a = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    density = (
        np.exp(-(a**2).sum((1, 2)) / (2 * width**2))
        / (2 * math.pi * width**2)
        * (side[1] - side[0]) ** 2
    )
    total = 0.0
    for label in ([0, 0], [0, 1], [1, 1]):
        y = np.broadcast_to(label, (len(a), 2))
        shift = channel.posterior(y, a, np.eye(1)).mean - a
        total += density @ (
            np.exp(channel.log_partition(y, a, np.eye(1))) * (shift**2).sum((1, 2))
        )
    assert two_token_information(s) == pytest.approx(total, rel=1e-9)


def test_the_polynomial_is_as_good_as_it_says():
    found = scaled_information(2)
    s = np.array([0.004, 0.05, 0.17, 0.33, 0.52, 0.71, 0.88, 0.97])
    value, error = found(s)
    direct = np.array([exact(x) for x in s])
    assert (np.abs(value - direct) < error).all()
    assert (error < 1e-8).all()


@pytest.mark.slow
def test_sampling_is_unbiased():
    """The regression on what is known was fitted on its own points: 4 standard errors too high."""
    z = []
    for s in (0.95, 0.5, 0.2):
        found = sampled_scaled_information(2, s)
        z.append(
            (found.mean() - exact(s)) / (found.std(ddof=1) / math.sqrt(len(found)))
        )
    assert np.abs(z).max() < 4
    assert abs(np.mean(z)) < 1.5


def test_weak_recovery_has_a_formula():
    problem = Problem(
        {"name": "sequence-multi-index", "tokens": 2}, "hardmax", "gaussian"
    )
    assert thresholds(problem).perfect_recovery is None  # labels are discrete
    found = thresholds(problem).weak_recovery
    allowed = max(found.error, 1e-15)
    assert found.value == pytest.approx(math.pi**2 / 12, abs=allowed)
    assert found.error < 1e-10


@pytest.mark.parametrize("tokens", [2, 3])
def test_posterior_equals_a_grid(tokens, rng):
    v = 0.5
    y, omega, _ = drawn(rng, 4, 0.8, v, tokens)
    side = np.linspace(-5, 5, 801 if tokens == 2 else 121)
    # the middle of a cell is never on a boundary
    side = side + (side[1] - side[0]) / math.pi / 10
    grid = np.stack(np.meshgrid(*[side] * tokens, indexing="ij"), axis=-1).reshape(
        -1, 1, tokens
    )
    labels = scores_argmax(grid)
    channel = SequenceHardmax(tokens=tokens)
    found = channel.posterior(y, omega, scalar(v), second_moment=True)
    log = channel.log_partition(y, omega, scalar(v))
    spread = 0.0
    tolerance = 1e-2 if tokens == 2 else 8e-2
    for k in range(len(y)):
        here = grid[(labels == y[k]).all(1), 0]
        weight = np.exp(-((here - omega[k, 0]) ** 2).sum(1) / (2 * v))
        mass = (
            weight.sum()
            * (side[1] - side[0]) ** tokens
            / (2 * math.pi * v) ** (tokens / 2)
        )
        assert math.exp(log[k]) == pytest.approx(mass, rel=3 * tolerance)
        mean = weight @ here / weight.sum()
        second = np.einsum("n,na,nb->ab", weight, here, here) / weight.sum()
        assert_allclose(found.mean[k, 0], mean, atol=tolerance)
        assert_allclose(found.second_moment[k, 0, :, 0], second, atol=tolerance)
        spread += np.trace(second - np.outer(mean, mean)) / tokens / len(y)
    assert found.covariance[0, 0] == pytest.approx(spread, abs=tolerance)
