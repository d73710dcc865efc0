"""Adaptive Gaussian integrals on many lines, against closed forms of truncated, tilted and mixed normal laws."""

import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import log_ndtr, logsumexp

from smimbench.backend.arrays import namespace, to_host
from smimbench.numerics.quadrature import IMPOSSIBLE, line_moments
from tests.conftest import assert_placed

TOLERANCE = 1e-3


def moments(log_weight, count, tolerance=TOLERANCE, **options):
    return line_moments(
        log_weight, count, namespace(np.empty(0)), None, tolerance=tolerance, **options
    )


def near(found, log_norm, mean, square, tolerance=TOLERANCE):
    """Norm, mean and second moment agree, and the error that is claimed is not below the one that is made."""
    assert np.abs(found.log_norm - log_norm).max() < 10 * tolerance
    assert np.abs(found.mean - mean).max() < tolerance
    assert np.abs(found.square - square).max() < 10 * tolerance * (
        1 + np.abs(square).max()
    )
    assert (np.abs(found.mean - mean) <= np.maximum(found.error, 1e-12)).all()


def test_nothing_known_gives_the_gaussian_itself():
    near(moments(lambda t, lines: 0 * t, 3), 0.0, 0.0, 1.0)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-9])
def test_half_lines_wherever_they_begin(tolerance):
    edge = np.linspace(-9, 9, 101)
    found = moments(
        lambda t, lines: np.where(t > edge[lines][:, None], 0.0, -np.inf),
        101,
        tolerance,
    )
    ratio = np.exp(stats.norm.logpdf(edge) - stats.norm.logsf(edge))
    near(found, stats.norm.logsf(edge), ratio, 1 + edge * ratio, tolerance)


def test_two_narrow_peaks_share_the_mass(rng):
    place = rng.uniform(-2, 2, 50)
    gap = rng.uniform(1, 3, 50)
    width = 10 ** rng.uniform(-3, -1, 50)
    centres = np.stack([place - gap / 2, place + gap / 2])

    def log_weight(t, lines):
        return logsumexp(
            [
                -(((t - c[lines][:, None]) / width[lines][:, None]) ** 2) / 2
                for c in centres
            ],
            axis=0,
        )

    found = moments(log_weight, 50)
    log_mass = -(centres**2) / (1 + width**2) / 2
    share = np.exp(log_mass - logsumexp(log_mass, axis=0))
    means = centres / (1 + width**2)
    variance = width**2 / (1 + width**2)
    log_norm = logsumexp(log_mass, axis=0) + np.log(width / np.sqrt(1 + width**2))
    near(
        found, log_norm, (share * means).sum(0), (share * (variance + means**2)).sum(0)
    )


def test_boxes_narrower_than_the_first_cells(rng):
    centre = rng.uniform(-4, 4, 300)
    half = 10 ** rng.uniform(-2, 0, 300)

    def log_weight(t, lines):
        return np.where(
            np.abs(t - centre[lines][:, None]) < half[lines][:, None], 0.0, -np.inf
        )

    found = moments(log_weight, 300)
    law = stats.truncnorm(centre - half, centre + half)
    norm = stats.norm.cdf(centre + half) - stats.norm.cdf(centre - half)
    near(found, np.log(norm), law.mean(), law.var() + law.mean() ** 2)


def test_a_smooth_weight_far_out_in_the_tail(rng):
    slope = rng.uniform(0.5, 20, 40)
    shift = rng.uniform(-10, 5, 40)
    found = moments(
        lambda t, lines: log_ndtr(slope[lines][:, None] * t + shift[lines][:, None]), 40
    )
    near_norm = log_ndtr(shift / np.sqrt(1 + slope**2))
    x = shift / np.sqrt(1 + slope**2)
    ratio = np.exp(stats.norm.logpdf(x) - log_ndtr(x))
    mean = slope / np.sqrt(1 + slope**2) * ratio
    square = 1 - slope**2 / (1 + slope**2) * x * ratio
    near(found, near_norm, mean, square)


def test_what_is_impossible_everywhere_is_said_to_be_so():
    found = moments(
        lambda t, lines: np.where(lines[:, None] == 1, 0.0, -np.inf) + 0 * t, 3
    )
    assert found.log_norm[0] == IMPOSSIBLE
    assert list(np.isinf(found.error)) == [True, False, True]
    assert list(found.mean) == [0.0, found.mean[1], 0.0]
    assert list(found.square[[0, 2]]) == [1.0, 1.0]


def test_the_order_of_the_lines_does_not_matter(rng):
    edge = rng.standard_normal(64)
    order = rng.permutation(64)

    def on(edges):
        return moments(
            lambda t, lines: np.where(t > edges[lines][:, None], 3.0 * t, -np.inf), 64
        )

    assert np.abs(on(edge).mean[order] - on(edge[order]).mean).max() < 1e-12


def test_every_namespace(backend):
    xp = backend.xp
    edge = backend.asarray(np.linspace(-3, 3, 7))

    def log_weight(t, lines):
        low = xp.take(edge, lines)[:, None]
        return xp.where(t > low, xp.zeros_like(t), xp.full_like(t, -math.inf))

    found = line_moments(log_weight, 7, xp, backend.device, tolerance=TOLERANCE)
    for part in found:
        assert_placed(part, backend, (7,))
    host = np.linspace(-3, 3, 7)
    assert (
        np.abs(
            to_host(found.mean)
            - np.exp(stats.norm.logpdf(host) - stats.norm.logsf(host))
        ).max()
        < TOLERANCE
    )


def test_a_wild_weight_against_quadrature():
    def weight(t):
        return np.sin(7 * t) ** 4 * np.exp(-np.abs(t - 0.3)) + (t > 1.1)

    exact = [
        integrate.quad(
            lambda t, k=k: weight(t) * t**k * stats.norm.pdf(t),
            -12,
            12,
            limit=2000,
            points=[0.3, 1.1],
        )[0]
        for k in range(3)
    ]
    with np.errstate(divide="ignore"):
        found = moments(lambda t, lines: np.log(weight(t)), 1, 1e-4, rounds=200)
    near(found, math.log(exact[0]), exact[1] / exact[0], exact[2] / exact[0], 1e-4)


def test_gaussian_peaks_of_any_width_and_place(rng):
    centre = 6 * rng.standard_normal(200)
    width = 10 ** rng.uniform(-6, 1, 200)
    found = moments(
        lambda t, lines: (
            -(((t - centre[lines][:, None]) / width[lines][:, None]) ** 2) / 2
        ),
        200,
    )
    mean = centre / (1 + width**2)
    variance = width**2 / (1 + width**2)
    log_norm = np.log(width / np.sqrt(1 + width**2)) - centre**2 / (1 + width**2) / 2
    near(found, log_norm, mean, variance + mean**2)
