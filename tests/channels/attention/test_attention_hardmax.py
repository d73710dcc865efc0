"""Two-token hardmax against dense integrals, rejection sampling, identities of Bayes and limits."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate
from smimbench_attention.channels.attention.hardmax import AttentionHardmax

from smimbench.backend.arrays import to_host
from tests.conftest import assert_placed
from tests.helpers import scalar

PAIR = AttentionHardmax(tokens=2)
ROOT2 = math.sqrt(2)


def labelled(rng, n, q, v, channel=PAIR):
    omega = math.sqrt(q) * rng.standard_normal((n, 1, channel.sites))
    z = omega + math.sqrt(v) * rng.standard_normal(omega.shape)
    return channel.forward(z), omega, z


RULE = np.polynomial.legendre.leggauss(120)


def integrated(y, omega, v, half=10.0):
    """Partition, mean and second moment of z for one sample, by one integral over z_12.

    Given z_12 the two rows are independent and one-dimensional.
    """
    from scipy.special import ndtr

    x, w = RULE
    t = omega[1] + math.sqrt(v) * half * x
    weight = (
        math.sqrt(v)
        * half
        * w
        * np.exp(-((t - omega[1]) ** 2) / (2 * v))
        / math.sqrt(2 * math.pi * v)
    )
    moments = []
    for row, mean in ((0, omega[0]), (1, omega[2])):
        edge = (t / ROOT2 - mean) / math.sqrt(v)
        side = 1.0 if y[row] == row else -1.0
        p = ndtr(-side * edge)
        density = np.exp(-(edge**2) / 2) / math.sqrt(2 * math.pi)
        first = mean * p + math.sqrt(v) * side * density
        second = (mean**2 + v) * p + math.sqrt(v) * side * density * (mean + t / ROOT2)
        moments.append((p, first, second))
    (p1, a1, s1), (p2, a2, s2) = moments
    total = weight @ (p1 * p2)
    mean = (
        np.array([weight @ (a1 * p2), weight @ (t * p1 * p2), weight @ (p1 * a2)])
        / total
    )
    second = (
        np.array(
            [
                [weight @ (s1 * p2), weight @ (t * a1 * p2), weight @ (a1 * a2)],
                [
                    weight @ (t * a1 * p2),
                    weight @ (t * t * p1 * p2),
                    weight @ (t * p1 * a2),
                ],
                [weight @ (a1 * a2), weight @ (t * p1 * a2), weight @ (p1 * s2)],
            ]
        )
        / total
    )
    return total, mean, second


@pytest.mark.parametrize("tokens", [2, 3, 5, 16])
def test_labels_are_the_row_maxima(tokens, rng, backend):
    channel = AttentionHardmax(tokens=tokens)
    z = rng.standard_normal((40, 1, channel.sites))
    y = channel.forward(backend.asarray(z))
    h = np.empty((40, tokens, tokens))
    pairs = [(a, b) for a in range(tokens) for b in range(a, tokens)]
    for c, (a, b) in enumerate(pairs):
        h[:, a, b] = h[:, b, a] = z[:, 0, c] * (ROOT2 if a == b else 1)
    assert_array_equal(to_host(y), h.argmax(-1))
    hot = to_host(channel.observable(y))
    assert hot.dtype == np.float64
    assert_array_equal(hot.argmax(-1), h.argmax(-1))
    assert_array_equal(hot.sum(-1), 1)
    with pytest.raises(ValueError, match="shape"):
        channel.forward(backend.asarray(z[:, :, 1:]))


@pytest.mark.parametrize(("q", "v"), [(0.0, 1.0), (0.7, 0.8), (1.4, 0.1), (1.5, 1e-4)])
def test_posterior_agrees_with_a_dense_integral(q, v, rng, backend):
    y, omega, _ = labelled(rng, 60, q, v)
    found = PAIR.posterior(
        *(backend.asarray(a) for a in (y, omega, scalar(v))), second_moment=True
    )
    assert_placed(found.mean, backend, (60, 1, 3))
    assert_placed(found.covariance, backend, (1, 1))
    assert_placed(found.second_moment, backend, (60, 1, 3, 1, 3))
    log_z = to_host(
        PAIR.log_partition(*(backend.asarray(a) for a in (y, omega, scalar(v))))
    )
    spread = 0.0
    for i in range(60):
        total, mean, second = integrated(y[i], omega[i, 0], v)
        assert_allclose(log_z[i], math.log(total), atol=1e-10)
        assert_allclose(to_host(found.mean)[i, 0], mean, atol=1e-9 * math.sqrt(v))
        assert_allclose(to_host(found.second_moment)[i, 0, :, 0], second, atol=1e-9)
        spread += np.trace(second - np.outer(mean, mean)) / 3 / 60
    assert to_host(found.covariance)[0, 0] == pytest.approx(
        spread, rel=1e-7 if v > 1e-3 else 1e-5
    )
    assert found.error < 1e-10


def margins(y, omega, v):
    """Margins of the two rows in standard deviations, and the directions in which the label pushes z."""
    signs = np.stack(
        [np.where(y[:, 0] == 0, 1, -1), np.where(y[:, 1] == 1, 1, -1)], axis=1
    )
    rows = signs[:, :, None] * np.array([[ROOT2, -1, 0], [0, -1, ROOT2]])
    return np.einsum("nic,nc->ni", rows, omega[:, 0]) / math.sqrt(3 * v), rows


def ratio_posterior(y, omega, v):
    """The wrong posterior mean with density over distribution function of the pair in place of a gradient."""
    kappa, rows = margins(y, omega, v)
    r = np.einsum("nc,nc->n", rows[:, 0], rows[:, 1]) / 3
    form = (kappa[:, 0] ** 2 + kappa[:, 1] ** 2 - 2 * r * kappa[:, 0] * kappa[:, 1]) / (
        1 - r * r
    )
    density = np.exp(-form / 2) / (2 * math.pi * np.sqrt(1 - r * r))
    ratio = density / np.exp(PAIR.log_partition(y, omega, scalar(v)))
    shift = math.sqrt(v / 3) * ratio[:, None] * rows.sum(1)
    return omega + shift[:, None, :]


def information_by_quad(q, v):
    """The same number by adaptive quadrature over the margins of the first answer pattern of each kind."""
    from scipy.special import ndtr, owens_t

    total = 0.0
    for r in (1 / 3, -1 / 3):
        s = math.sqrt(1 - r * r)

        def gain(k, h, r=r, s=s):
            h = h or 1e-200
            k = k or 1e-200
            half = 0.5 if h * k < 0 else 0.0
            both = (ndtr(h) + ndtr(k)) / 2 - half
            both -= owens_t(h, (k - r * h) / (h * s)) + owens_t(
                k, (h - r * k) / (k * s)
            )
            if both < 1e-13:
                return 0.0
            b1 = math.exp(-h * h / 2) / math.sqrt(2 * math.pi) * ndtr((k - r * h) / s)
            b2 = math.exp(-k * k / 2) / math.sqrt(2 * math.pi) * ndtr((h - r * k) / s)
            ratio = q / v
            law = math.exp(-(h * h + k * k - 2 * r * h * k) / (2 * ratio * s * s)) / (
                2 * math.pi * ratio * s
            )
            return law * (3 * b1 * b1 + 3 * b2 * b2 + 6 * r * b1 * b2) / both

        reach = 8.5 * math.sqrt(q / v)
        low = min(reach, 7.0)
        panels = [-low, -1.0, 1.0, low, reach] if reach > 8 else [-low, 0.01, low]
        for a in range(len(panels) - 1):
            for b in range(len(panels) - 1):
                box = panels[a], panels[a + 1], panels[b], panels[b + 1]
                total += 2 * integrate.dblquad(gain, *box, epsabs=1e-8, epsrel=1e-7)[0]
    return total / (3 * v)


@pytest.mark.parametrize(("q", "v"), [(0.3, 1.2), (0.9, 0.8), (1.2, 0.2)])
def test_information_agrees_with_adaptive_quadrature(q, v):
    found = PAIR.information(scalar(q), scalar(v))
    assert found.value[0, 0] == pytest.approx(information_by_quad(q, v), rel=2e-6)


@pytest.mark.parametrize("v", [1.0, 0.3, 2.0])
def test_information_of_the_prior_mean_in_closed_form(v):
    same = 0.25 + math.asin(1 / 3) / (2 * math.pi)
    opposite = 0.25 - math.asin(1 / 3) / (2 * math.pi)
    expected = (4 / (3 * v)) * (1 / (math.pi * same) + 1 / (2 * math.pi * opposite)) / 2
    found = PAIR.information(scalar(0), scalar(v))
    assert found.value[0, 0] == pytest.approx(expected, rel=1e-12)
    # continuous, although the rule changes with the overlap
    near = PAIR.information(scalar(1e-9 * v), scalar(v))
    assert near.value[0, 0] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("second", [1.05, 1.5, 3.0])
def test_small_error_law(second):
    """2 information sqrt(V) -> 8 I / sqrt(2 pi Q0), I = int phi^2 / Phi: a tie is one-dimensional."""
    from scipy.special import log_ndtr

    density = integrate.quad(
        lambda x: math.exp(-x * x - log_ndtr(x)) / (2 * math.pi), -30, 12
    )[0]
    limit = 8 * density / math.sqrt(2 * math.pi * second)
    for v, tolerance in (
        (1e-4, 2e-2),
        (1e-6, 2e-3),
        (1e-8, 2e-4),
        (1e-12, 2e-6),
        (1e-16, 1e-7),
    ):
        found = PAIR.information(scalar(second - v), scalar(v)).value[0, 0]
        assert 2 * found * math.sqrt(v) == pytest.approx(limit, rel=tolerance)


def test_generalization_error_in_closed_form(backend):
    q = np.array([0.0, 0.4, 1.0, 1.5])
    v = np.array([1.0, 0.6, 0.5, 1e-14])
    found = PAIR.generalization_error(
        backend.asarray(q[:, None, None]), backend.asarray(v[:, None, None])
    )
    assert_placed(found["bayes"].value, backend, (4,))
    bayes, plugin, constant = (
        to_host(found[k].value) for k in ("bayes", "plugin", "constant")
    )
    assert_allclose(bayes[:3], 2 * np.arccos(q / (q + v))[:3] / math.pi, rtol=1e-12)
    assert_allclose(
        plugin[:3], 4 * np.arccos(np.sqrt(q / (q + v)))[:3] / math.pi, rtol=1e-12
    )
    assert_allclose(constant, 1, rtol=1e-12)
    # at large alpha the ratio is 1 / sqrt 2, and neither loses its digits
    assert plugin[3] == pytest.approx(4 * math.sqrt(1e-14 / 1.5) / math.pi, rel=1e-10)
    assert bayes[3] / plugin[3] == pytest.approx(math.sqrt(0.5), rel=1e-10)


def test_deep_in_the_tail_the_mean_is_the_projection():
    """With V -> 0 a label that contradicts omega puts z on the nearest boundary."""
    omega = np.array([[[-1.0, 1.0, 2.0]]])
    y = np.array(
        [[0, 1]]
    )  # row 1 says sqrt(2) z_11 > z_12: false by 1 + sqrt 2; row 2 is right
    normal = np.array([ROOT2, -1, 0]) / math.sqrt(3)
    projected = omega[0, 0] - (normal @ omega[0, 0]) * normal
    for v in (1e-4, 1e-8, 1e-16):
        found = PAIR.posterior(y, omega, scalar(v), second_moment=True)
        assert_allclose(found.mean[0, 0], projected, atol=3 * v)
        centred = found.second_moment[0, 0, :, 0] - np.outer(
            found.mean[0, 0], found.mean[0, 0]
        )
        if v == 1e-4:
            assert_allclose(
                centred / v, np.eye(3) - np.outer(normal, normal), atol=1e-3
            )
        assert found.covariance[0, 0] == pytest.approx(v * 2 / 3, rel=1e-3)


def test_information_of_a_batch(backend):
    v = np.concatenate([np.geomspace(1e-6, 1.0, 40), [1e-3, 1.2]])
    q = np.concatenate([1.5 - v[:40], [0.0, 0.3]])
    found = PAIR.information(
        backend.asarray(q[:, None, None]), backend.asarray(v[:, None, None])
    )
    assert_placed(found.value, backend, (42, 1, 1))
    assert_placed(found.error, backend, (42, 1, 1))
    alone = [PAIR.information(scalar(a), scalar(b)).value[0, 0] for a, b in zip(q, v)]
    assert_allclose(to_host(found.value)[:, 0, 0], alone, rtol=1e-13)
    assert np.all(to_host(found.error) <= 1e-9 * to_host(found.value))
    assert np.all(np.diff(to_host(found.value)[:40, 0, 0]) < 0)
    # nothing happens where one rule takes over from the other
    q = np.array([1.2 - 1e-9, 1.2 + 1e-9])[:, None, None]
    pair = PAIR.information(q, np.ones_like(q)).value
    assert pair[1, 0, 0] == pytest.approx(pair[0, 0, 0], rel=1e-8)
