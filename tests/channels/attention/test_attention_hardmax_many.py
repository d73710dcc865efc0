"""Hardmax with three or more tokens: exact integration and Gibbs against rejection, sums over labels and Bayes."""

import json
import math
from itertools import permutations, product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from smimbench_attention.channels.attention.hardmax import AttentionHardmax, information
from smimbench_attention.channels.attention.hardmax.exact import (
    label_classes,
    row_posterior,
)
from smimbench_attention.channels.attention.hardmax.gibbs import (
    chain_moments,
    gibbs_moments,
    truncated_normal,
)
from smimbench_attention.channels.attention.hardmax.information import (
    NODES,
    SCRAMBLES,
    SHIPPED_ESTIMATES,
    information_curve,
    node_estimates,
    small_error_constant,
)

from tests.helpers import scalar


def labelled(rng, n, q, v, tokens):
    channel = AttentionHardmax(tokens=tokens)
    omega = math.sqrt(q) * rng.standard_normal((n, 1, channel.sites))
    z = omega + math.sqrt(v) * rng.standard_normal(omega.shape)
    return channel, channel.forward(z), omega, z


def matrix_of(z, tokens):
    """Symmetric h (n, T, T) written out entry by entry."""
    h = np.empty((len(z), tokens, tokens))
    pairs = [(a, b) for a in range(tokens) for b in range(a, tokens)]
    for c, (a, b) in enumerate(pairs):
        h[:, a, b] = h[:, b, a] = z[:, c] * (math.sqrt(2) if a == b else 1)
    return h


def by_rejection(rng, y, omega, v, tokens, draws):
    """Posterior draws of one sample, and the probability of its label."""
    z = omega + math.sqrt(v) * rng.standard_normal((draws, omega.size))
    keep = np.all(matrix_of(z, tokens).argmax(-1) == y, axis=1)
    return z[keep], keep.mean()


def all_labels(tokens):
    return np.array(list(product(range(tokens), repeat=tokens)))


def is_possible(label):
    """By search: an order of the rows in which every maximum is at most that of the row it points at."""
    tokens = len(label)
    for order in permutations(range(tokens)):
        place = {a: i for i, a in enumerate(order)}
        mutual = [label[label[a]] == a for a in range(tokens)]
        if all(place[label[a]] <= place[a] or mutual[a] for a in range(tokens)):
            return True
    return False


@pytest.mark.parametrize(
    "centre", [-1e4, -300.0, -38.0, -29.0, -5.0, 0.0, 2.0, 31.0, 500.0]
)
def test_truncated_normal_is_the_inverse_of_its_distribution(centre, rng):
    scale = 1 / max(1.0, abs(centre))
    u = rng.uniform(1e-9, 1 - 1e-9, 400)
    low = centre + scale * rng.uniform(-3, 0, 400)
    high = centre + scale * rng.uniform(1e-3, 3, 400)
    low[:100] = -np.inf
    high[100:200] = np.inf
    draw, mean, second = truncated_normal(low, high, u)
    assert np.all((draw >= low) & (draw <= high))
    # integrate the density between the ends, relative to its value at the likelier one
    x, w = np.polynomial.legendre.leggauss(100)
    anchor = np.clip(0.0, low, high)
    reach = 40 / np.maximum(np.abs(anchor), 4.0)
    a = np.maximum(low, anchor - reach)
    b = np.minimum(high, anchor + reach)
    t = (a + b)[:, None] / 2 + (b - a)[:, None] / 2 * x
    f = (
        np.exp(-(t - anchor[:, None]) * (t + anchor[:, None]) / 2)
        * w
        * (b - a)[:, None]
        / 2
    )
    total = f.sum(1)
    assert_allclose(mean, (f * t).sum(1) / total, rtol=1e-8, atol=1e-9)
    assert_allclose(second, (f * t * t).sum(1) / total, rtol=1e-8, atol=1e-9)
    until = np.clip(draw, a, b)
    t = (a + until)[:, None] / 2 + (until - a)[:, None] / 2 * x
    f = (
        np.exp(-(t - anchor[:, None]) * (t + anchor[:, None]) / 2)
        * w
        * (until - a)[:, None]
        / 2
    )
    share = f.sum(1) / total
    # the draw rises with u on the side of small probabilities, and falls after mirroring
    assert_allclose(np.where(low + high > 0, 1 - share, share), u, atol=2e-7)


@pytest.mark.parametrize(("tokens", "v"), [(3, 1.0), (3, 0.05), (4, 0.5), (5, 1.0)])
def test_probabilities_of_all_labels_sum_to_one(tokens, v, rng):
    labels = all_labels(tokens)
    labels = (
        labels[[is_possible(label) for label in labels]]
        if tokens < 5
        else possible_labels(tokens)
    )
    omega = rng.standard_normal((1, 1, tokens * (tokens + 1) // 2))
    found = AttentionHardmax(tokens=tokens).log_partition(
        labels, np.repeat(omega, len(labels), 0), scalar(v)
    )
    assert np.exp(found).sum() == pytest.approx(1, abs=1e-5)


def possible_labels(tokens):
    """All labels without a ring, generated from their classes by renaming the tokens."""
    found = set()
    for label in label_classes(tokens)[0]:
        for p in permutations(range(tokens)):
            renamed = [0] * tokens
            for a in range(tokens):
                renamed[p[a]] = p[label[a]]
            found.add(tuple(renamed))
    return np.array(sorted(found))


@pytest.mark.parametrize("tokens", [3, 4])
def test_classes_of_labels(tokens):
    _, count = label_classes(tokens)
    expected = {tuple(label) for label in all_labels(tokens) if is_possible(label)}
    assert {tuple(label) for label in possible_labels(tokens)} == expected
    assert count.sum() == len(expected)


@pytest.mark.parametrize("v", [1.0, 0.1])
def test_three_tokens_agree_with_rejection(v, rng):
    channel, y, omega, _ = labelled(rng, 6, 0.8, v, 3)
    found = channel.posterior(y, omega, scalar(v), second_moment=True)
    log_z = channel.log_partition(y, omega, scalar(v))
    scores = []
    for i in range(6):
        draws, probability = by_rejection(rng, y[i], omega[i, 0], v, 3, 200_000)
        if len(draws) < 2000:
            continue
        spread = math.sqrt(probability * (1 - probability) / 200_000)
        scores.append((math.exp(log_z[i]) - probability) / spread)
        scores += list(
            (draws.mean(0) - found.mean[i, 0]) / draws.std(0) * math.sqrt(len(draws))
        )
        products = np.einsum("nc,nd->ncd", draws, draws)
        error = products.std(0) / math.sqrt(len(draws))
        gap = (products.mean(0) - found.second_moment[i, 0, :, 0]) / error
        scores += list(gap[np.triu_indices(6)])
    scores = np.array(scores)
    assert len(scores) > 60
    assert np.abs(scores).max() < 5
    assert 0.7 < np.sqrt(np.mean(scores**2)) < 1.3


@pytest.mark.parametrize("v", [1.0, 0.03, 1e-4, 1e-8])
def test_the_rule_has_converged(v, rng):
    for tokens in (2, 3, 4, 5):
        _, y, omega, _ = labelled(rng, 60, 1.0, v, tokens)
        found = row_posterior(y, omega[:, 0], np.asarray(v), tokens)
        finer = row_posterior(
            y,
            omega[:, 0],
            np.asarray(v),
            tokens,
            window_half_width=9.0,
            panels_per_window=2,
        )
        difference = np.sqrt(np.mean((found.shift - finer.shift) ** 2))
        assert difference < 1e-5
        assert np.sqrt(np.mean((found.square - finer.square) ** 2)) < 3e-5


def test_two_tokens_agree_with_the_closed_form(rng):
    channel, y, omega, _ = labelled(rng, 500, 1.0, 0.3, 2)
    closed = channel.posterior(y, omega, scalar(0.3))
    nested = row_posterior(y, omega[:, 0], np.asarray(0.3), 2)
    assert_allclose(
        omega[:, 0] + math.sqrt(0.3) * nested.shift, closed.mean[:, 0], atol=1e-5
    )
    assert_allclose(
        nested.log_partition, channel.log_partition(y, omega, scalar(0.3)), atol=1e-5
    )


@pytest.mark.parametrize(("tokens", "v"), [(3, 1.0), (4, 0.05), (5, 0.5)])
def test_gibbs_agrees_with_integration_within_its_error(tokens, v, rng):
    n, full = (1000, True) if tokens == 3 else (300, False)
    channel, y, omega, _ = labelled(rng, n, 1.0, v, tokens)
    exact = channel.posterior(y, omega, scalar(v), second_moment=full)
    arguments = y, omega[:, 0], np.asarray(v), tokens
    found = gibbs_moments(*arguments, rng, full, sweeps=32)
    mean = (exact.mean - omega)[:, 0] / math.sqrt(v)
    difference = found.shift - mean
    error = math.sqrt(found.square_error.mean())
    assert 0.85 < np.sqrt(np.mean(difference**2)) / error < 1.15
    assert error < 0.1
    # no bias: the noise is not correlated with what it disturbs
    along = np.sum(difference * mean, axis=1)
    assert abs(along.mean()) < 4 * along.std() / math.sqrt(n)
    variance = exact.covariance[0, 0] / v
    assert found.variance.mean() == pytest.approx(variance, abs=0.02 * (1 - variance))
    if full:
        shift = exact.mean[:, 0, :, None] - omega[:, 0, :, None]
        outer = (
            exact.second_moment[:, 0, :, 0]
            - omega[:, 0, :, None] * omega[:, 0, None]
            - (
                shift * omega[:, 0, None]
                + omega[:, 0, :, None] * shift.transpose(0, 2, 1)
            )
        )
        gap = found.outer - outer / v
        assert np.abs(gap.mean(0) / (gap.std(0) / math.sqrt(n) + 1e-6)).max() < 5
    finer = gibbs_moments(*arguments, rng, False, sweeps=256)
    assert 2 < error / math.sqrt(finer.square_error.mean()) < 4


def test_gibbs_is_reproducible(rng):
    channel, y, omega, _ = labelled(rng, 50, 1.0, 0.5, 6)
    first = channel.posterior(y, omega, scalar(0.5)).mean
    assert_array_equal(first, channel.posterior(y, omega, scalar(0.5)).mean)
    other = channel.posterior(y, omega, scalar(0.5), rng=np.random.default_rng(5)).mean
    assert np.abs(other - first).max() > 1e-3
    again = channel.posterior(y, omega, scalar(0.5), rng=np.random.default_rng(5)).mean
    assert_array_equal(other, again)


@pytest.mark.parametrize("tokens", [2, 3, 7])
@pytest.mark.parametrize("v", [1e-2, 1e-6, 1e-12])
def test_labels_against_all_odds_give_the_projection(tokens, v):
    """One row that contradicts omega: its maximum and the entry above it meet where that costs least."""
    channel = AttentionHardmax(tokens=tokens)
    omega = -20.0 * np.ones((1, 1, channel.sites))
    sites = {}
    pairs = [(a, b) for a in range(tokens) for b in range(a, tokens)]
    for c, (a, b) in enumerate(pairs):
        sites[a, b] = c
        omega[0, 0, c] = (5.0 + a if a == b else -20.0) / (
            math.sqrt(2) if a == b else 1
        )
    y = np.arange(tokens)[None, :].copy()
    omega[0, 0, sites[0, 0]] = -5 / math.sqrt(2)
    omega[0, 0, sites[0, 1]] = (
        1.0  # row 0 says that h_00 = -5 exceeds h_01 = 1; row 1 agrees with h_11 = 6
    )
    level = (-5 / 2 + 1) / (1 / 2 + 1)
    found = channel.posterior(y, omega, scalar(v), rng=np.random.default_rng(1))
    mean = matrix_of(found.mean[:, 0], tokens)[0]
    assert mean[0, 0] == pytest.approx(level, abs=5 * math.sqrt(v))
    assert mean[0, 1] == pytest.approx(level, abs=5 * math.sqrt(v))
    assert mean[1, 1] == pytest.approx(6, abs=5 * math.sqrt(v))
    # two entries are tied: one direction is lost for certain, the common one may be found or not
    assert (
        1 - 2.2 / channel.sites < found.covariance[0, 0] / v < 1 - 0.8 / channel.sites
    )
    assert tokens != 3 or found.error >= 0.1


def test_curve_of_two_tokens_agrees_with_quadrature():
    v = np.geomspace(1e-8, 1, 60)
    exact = (
        AttentionHardmax(tokens=2)
        .information((1 - v)[:, None, None], v[:, None, None])
        .value[:, 0, 0]
    )
    value, error = information_curve(2, 1 << 12, 1 - v, v)
    assert np.all(np.abs(value - exact) < 4 * error)
    assert np.all(error < 5e-3 * exact)
    assert abs(value[-1] / exact[-1] - 1) < 1e-6


SHIPPED = json.loads(SHIPPED_ESTIMATES.read_text())


@pytest.mark.parametrize(("tokens", "index"), [
    (3, 0), (3, 2), (3, 6), *(pytest.param(tokens, 3, marks=pytest.mark.slow) for tokens in range(4, 9)),
])  # fmt: skip
def test_shipped_estimates_are_those_of_the_code(tokens, index):
    shipped = SHIPPED[str(tokens)]
    found = node_estimates(tokens, shipped["samples"], index)
    assert_allclose(found, shipped["estimates"][index], rtol=1e-8)


def test_shipped_estimates_are_read_and_others_are_made(monkeypatch):
    assert list(map(int, SHIPPED)) == list(range(3, 9))
    information._polynomials.cache_clear()
    made = []

    def record(tokens, samples, index):
        made.append(tokens)
        return np.linspace(1.0, 1.1, SCRAMBLES)

    monkeypatch.setattr(information, "node_estimates", record)
    for tokens in range(3, 10):
        channel = AttentionHardmax(tokens=tokens)
        assert np.isfinite(channel.information(scalar(0.5), scalar(0.5)).value)
    channel = AttentionHardmax(tokens=3, samples=192)
    assert np.isfinite(channel.information(scalar(0.5), scalar(0.5)).value)
    assert made == [9] * NODES + [3] * NODES
    information._polynomials.cache_clear()


def test_information_without_an_overlap_is_a_sum_over_labels(rng):
    """By rejection: at omega = 0 the posterior mean of every one of the 25 possible labels of three tokens."""
    z = rng.standard_normal((300_000, 6))
    code = matrix_of(z, 3).argmax(-1) @ [1, 3, 9]
    total = 0.0
    noise = 0.0
    for k in np.unique(code):
        draws = z[code == k]
        total += len(draws) / 3e5 * np.sum(draws.mean(0) ** 2)
        noise += len(draws) / 3e5 * np.sum(draws.var(0)) / len(draws)
    found = (
        AttentionHardmax(tokens=3, samples=128)
        .information(scalar(0), scalar(1))
        .value[0, 0]
    )
    assert found == pytest.approx(total - noise, rel=6e-3)


@pytest.mark.parametrize("tokens", [3, 5])
def test_constant_of_the_small_error_law(tokens, rng):
    """Count near ties of the two largest entries of a row, in units of the width of their difference."""
    n = 400_000
    width = 0.05
    h = rng.standard_normal((n, tokens)) * np.where(
        np.arange(tokens) == 0, math.sqrt(2), 1
    )
    order = np.argsort(h, axis=1)[:, -2:]
    two = np.take_along_axis(h, order, axis=1)
    spread = np.where((order == 0).any(1), math.sqrt(3), math.sqrt(2))
    near = (two[:, 1] - two[:, 0] < width * spread).mean() / (2 * width)
    x = np.linspace(-12, 12, 20_001)
    hazard = np.sum(np.exp(-(x**2)) / (2 * math.pi) / stats.norm.cdf(x)) * (x[1] - x[0])
    # a pair at distance k tells phi^2 / (Phi(k) Phi(-k)), whose integral is twice that of phi^2 / Phi
    expected = tokens * near * 2 * hazard
    noise = math.sqrt(1 / (near * 2 * width * n))
    assert small_error_constant(tokens) == pytest.approx(expected, rel=4 * noise + 0.02)


def test_small_error_law_is_met(rng):
    channel = AttentionHardmax(tokens=3, samples=1 << 11)
    for second in (1.05, 2.0):
        found = channel.information(scalar(second - 1e-10), scalar(1e-10))
        limit = small_error_constant(3) / math.sqrt(second * 1e-10)
        assert found.value[0, 0] == pytest.approx(limit, rel=1e-3)
    assert np.isinf(channel.information(scalar(1), scalar(0)).value[0, 0])


@pytest.mark.parametrize("tokens", [3, 6])
def test_refuses_labels_that_no_matrix_has(tokens):
    y = np.arange(tokens)[None, :].copy()
    y[0, :3] = [1, 2, 0]
    channel = AttentionHardmax(tokens=tokens)
    with pytest.raises(ValueError, match="cycle"):
        channel.posterior(y, np.zeros((1, 1, channel.sites)), scalar(1))


def test_true_start_leaves_the_posterior_invariant(rng):
    """Short chains without burn-in from the true latents reproduce the mean over (y, z)."""
    _, y, omega, z = labelled(rng, 4000, 0.8, 0.5, 3)
    chains = chain_moments(
        y,
        omega[:, 0],
        np.asarray(0.5),
        3,
        sweeps=2,
        burn_in=0,
        chains=1,
        rng=rng,
        start=z[:, 0],
    )
    exact = row_posterior(y, omega[:, 0], np.asarray(0.5), 3)
    gap = chains.shift[0] - exact.shift
    assert np.abs(gap.mean(0) / gap.std(0) * math.sqrt(4000)).max() < 4.5
