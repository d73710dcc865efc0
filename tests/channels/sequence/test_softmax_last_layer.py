"""Deep attention with few known layers: bilinear forms against brute-force integration, bounds, limits, identities."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.channels.sequence.softmax import SequenceSoftmax, one_layer
from smimbench_attention.channels.sequence.softmax import last_layer as tables
from smimbench_attention.channels.sequence.softmax.last_layer import (
    LayerLabels,
    case_at,
    posterior_of_labels,
)
from smimbench_attention.channels.sequence.softmax.last_layer.tables import (
    ACCURACY,
    TableAccuracy,
    farthest_node,
    make_tables,
    relative_node_spacing,
    rounded_node_count,
)

from smimbench.interfaces import Uncertain
from suites.asv.calibration import verify_information
from tests.channels.sequence.deep_attention import diagonal, outputs, product
from tests.helpers import sequence


def brute_force(z, weight, u, omega, v, skip):
    """E[z_l z_l^T | u] of every layer by summing over points ``z`` of the layers before the last; both signs of u."""
    (a, b), (c, d) = np.moveaxis(product(z, skip), 0, -1)
    determinant = a * d - b * c
    last = (
        np.stack([d * u[0] - b * u[1], a * u[1] - c * u[0]], -1) / determinant[:, None]
    )
    moments = np.zeros((z.shape[1] + 1, 2, 2))
    total = 0.0
    for sign in (1, -1):
        w = (
            weight
            * np.exp(-((sign * last - omega) ** 2).sum(-1) / (2 * v))
            / np.abs(determinant)
        )
        total += w.sum()
        moments[:-1] += np.einsum("n,nli,nlj->lij", w, z, z)
        moments[-1] += np.einsum("n,ni,nj->ij", w, last, last)
    return moments / total


def second_moments(u, omega, v, skip):
    """E[z_l z_l^T | y] (n, L, 2, 2) of every layer when nothing but the last one is known, from the tables."""
    layers = len(v)
    last = len(v) - 1
    scales = tuple(np.sqrt(v[:last]).tolist())
    # Without knowing Q the width is compared with what the means themselves show.
    spread = v[last] + max(float((omega**2).mean()), 0.0)
    count = rounded_node_count(
        skip, layers, v[last] / spread, relative_node_spacing(True, False), ACCURACY
    )
    reach = farthest_node(skip, last, ACCURACY)
    tables = make_tables(
        float(skip), scales, None, count, reach, ACCURACY.table_points, 0
    )
    ut = u / (1.0 + skip) ** last
    omega_of_layers = np.zeros((len(u), layers, 2))
    omega_of_layers[:, last] = omega
    found = posterior_of_labels(
        case_at(np.zeros((layers, layers)), np.diag(v), skip, ACCURACY),
        tables,
        LayerLabels(ut, ut[:, 0] - ut[:, 1], omega_of_layers),
    )
    result = np.empty((len(u), layers, 2, 2))
    a, b = omega.T
    result[:, last] = (
        found.product + a * found.shift[:, 1] + b * found.shift[:, 0] + a * b
    )[:, None, None]
    diagonal = found.square + 2 * omega * found.shift + omega**2
    for m in range(2):
        result[:, last, m, m] = diagonal[:, m]
        result[:, :last, m, m] = v[:last] * (found.table_moments[:, :, m] + 1)
    result[:, :last, 0, 1] = result[:, :last, 1, 0] = (
        v[:last] * found.table_moments[:, :, 2]
    )
    return result


def labels(rng, q, v, skip, n):
    """Means of the last layer, and outputs, where the layers have the errors ``v`` and only the last one an overlap q."""
    omega = np.sqrt(q) * rng.standard_normal((n, 2))
    z = np.sqrt(v)[:, None] * rng.standard_normal((n, len(v), 2))
    z[:, -1] += omega
    return omega, outputs(z, skip)


@pytest.mark.parametrize(
    ("skip", "q", "v"),
    [
        (1.0, 0.0, (1.0, 1.0)),
        (1.0, 0.9, (1.0, 0.1)),
        (0.25, 0.6, (1.0, 0.4)),
        (4.0, 0.97, (1.0, 0.03)),
        (1.3, 0.0, (0.4, 0.2)),
        (0.0, 0.5, (1.0, 0.5)),
    ],
)
def test_two_layers_against_a_dense_grid(rng, skip, q, v):
    omega, u = labels(rng, q, v, skip, 4)
    axis = np.linspace(-6.0, 6.0, 321)
    z = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    weight = 1.0
    if (
        skip == 0.0
    ):  # A(z_1) is singular where both tokens are alike: points follow the logarithm of their gap
        mean, gap = np.meshgrid(
            np.linspace(-4.5, 4.5, 161),
            np.exp(np.linspace(-14, 2.3, 501)),
            indexing="ij",
        )
        z = np.stack([mean + gap / 2, mean - gap / 2], axis=-1).reshape(-1, 1, 2)
        z = np.concatenate([z, z[:, :, ::-1]])
        weight = np.tile(gap.ravel(), 2)
    weight = weight * np.exp(-0.5 * (z**2).sum((1, 2)))
    found = second_moments(u, omega, np.array(v), skip)
    assert found.shape == (4, 2, 2, 2)
    for k in range(4):
        expected = brute_force(np.sqrt(v[0]) * z, weight, u[k], omega[k], v[1], skip)
        assert_allclose(
            found[k], expected, rtol=5e-3, atol=5e-3 if skip == 0.0 else 2e-3
        )


@pytest.mark.parametrize("layers", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_depth_against_monte_carlo(rng, layers):
    V = np.append(np.ones(layers - 1), 0.3)
    omega, u = labels(rng, 0.7, V, 0.8, 3)
    z = rng.standard_normal((200_000, layers - 1, 2))
    found = second_moments(u, omega, V, 0.8)
    for k in range(3):
        parts = [
            brute_force(part, 1.0, u[k], omega[k], 0.3, 0.8) for part in np.split(z, 10)
        ]
        sem = np.std(parts, axis=0, ddof=1) / np.sqrt(10)
        # a ratio of means has a bias of the order of the variance of its parts
        assert np.all(np.abs(np.mean(parts, axis=0) - found[k]) < 5 * sem + 4e-3)


QUICK = TableAccuracy(
    labels=2**9, outer_labels=2**5, outer_step=0.6, table_points=2**15
)
"""Fewer labels: the claimed error has to say so."""


def means(*q, skip=1.0, accuracy=QUICK):
    """Information and susceptibility of overlaps q and errors 1 - q, each a value and an error."""
    found = tables.evaluate(*diagonal(*q), skip, accuracy)
    return Uncertain(found[0], found[1], ""), Uncertain(found[2], found[3], "")


@pytest.mark.parametrize(
    ("layers", "skip"), [(2, 0.0), (2, 0.3), (3, 0.1), (3, 1.0), (4, 0.5), (4, 5.0)]
)
def test_no_layer_beats_the_bound(layers, skip):
    # Jensen: lambda_a <= E sum (z_m z_k - delta)^2 = 6, so no layer is learned below alpha = 1/6
    information, found = means(*[0.0] * layers, skip=skip)
    diagonal = np.diagonal(found.value)
    error = np.diagonal(found.error)
    assert np.all(diagonal <= 6.0)
    assert np.all(diagonal > 5 * error)
    assert np.argmax(diagonal) == layers - 1
    # Cauchy and Schwarz: the mixed modes are never first
    assert np.all(found.value**2 <= np.outer(diagonal, diagonal) * (1 + 1e-6))
    assert_array_equal(information.value, 0.0)


def test_claimed_errors_cover_what_more_labels_change():
    more = replace(QUICK, labels=2**12)
    for few, many, a in zip(means(0.0, 0.8), means(0.0, 0.8, accuracy=more), (1, 0)):
        assert many.error[a, a] < few.error[a, a]
        assert abs(few.value[a, a] - many.value[a, a]) < 4 * few.error[a, a]
        assert many.error[a, a] < 3e-3 * many.value[a, a]


def test_posterior_moments_average_to_the_prior(rng):
    # Nishimori: E[E[z z^T | y]] = I for every layer
    V = np.array([1.0, 1.0, 0.6])
    omega, u = labels(rng, 0.4, V, 0.6, 4000)
    moments = second_moments(u, omega, V, 0.6)
    mean = moments.mean(0)
    sem = moments.std(0) / np.sqrt(4000)
    assert np.all(np.abs(mean - np.eye(2)) < 4.5 * sem)


def test_small_overlap_starts_with_the_susceptibility():
    slope = means(0.0, 0.0, 0.8)[1].value
    for known in (0, 1):
        q = [0.0, 0.0, 0.8]
        q[known] = 0.02
        found = means(*q)[0]
        assert (
            abs(found.value[known, known] / 0.02 - slope[known, known])
            < 5 * found.error[known, known] / 0.02 + 0.05
        )


def test_what_is_covered():
    assert tables.supports(*diagonal(0.0, 0.0))
    assert tables.supports(*diagonal(0.0, 0.5, 0.9))
    assert tables.supports(*diagonal(0.2, 0.0, 0.0, 0.9))
    assert not tables.supports(*diagonal(0.1, 0.5))
    assert not tables.supports(*diagonal(0.1, 0.1, 0.9))
    assert not tables.supports(*diagonal(0.9, 0.0, 0.9))
    assert not tables.supports(*diagonal(0.5))
    Q, V = diagonal(0.0, 0.5)
    assert not tables.supports(Q, V + 0.1)


@pytest.mark.slow
def test_a_well_known_last_layer_without_skip_is_that_of_plain_draws():
    """Tables are too coarse there: labels are drawn instead."""
    problem = sequence(layers=2, skip=0.0)
    Q = np.diag([0.0, 0.999])
    for check in verify_information(problem, Q, np.eye(2) - Q, draws=3000):
        assert 0 < check.error < 0.01 * check.printed
        assert abs(check.z) < 4, (
            f"{check.quantity}: {check.printed} +- {check.error}, {check.drawn} by draws"
        )


def test_labels_that_fit_no_node_are_drawn_instead(monkeypatch):
    """With tables that are cut off far too early, the posterior of labels beyond them is 0 / 0."""
    short = replace(
        ACCURACY, farthest=(10.0,), fewest_nodes=8, scrambles=2, labels=2**14
    )
    Q, V = diagonal(0.0, 0.98)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert np.isnan(tables.evaluate(Q, V, 0.0, short)).any()
    whole = tables.evaluate
    monkeypatch.setattr(
        tables, "evaluate", lambda Q, V, skip, accuracy: whole(Q, V, skip, short)
    )
    found = SequenceSoftmax(tokens=2, layers=2, skip=0.0).information(
        Q, V, labels=2**12
    )
    assert "Sobol" in found.method
    assert np.isfinite(found.value).all()


def importance(q, skip, n, points, seed):
    """Information and susceptibility by importance sampling around the means; two halves make squares unbiased."""
    rng = np.random.default_rng(seed)
    q = np.array(q)
    layers = len(q)
    v = 1 - q
    information = np.zeros((n, layers))
    response = np.zeros((n, layers))
    for k in range(n):
        omega = np.sqrt(q)[:, None] * rng.standard_normal((layers, 2))
        z = omega + np.sqrt(v)[:, None] * rng.standard_normal((layers, 2))
        u = product(z[None, :-1], skip)[0] @ z[-1]
        means = []
        seconds = []
        for _ in range(2):
            draws = omega[:-1] + np.sqrt(v[:-1])[:, None] * rng.standard_normal(
                (points, layers - 1, 2)
            )
            (a, b), (c, d) = np.moveaxis(product(draws, skip), 0, -1)
            determinant = a * d - b * c
            last = (
                np.stack([d * u[0] - b * u[1], a * u[1] - c * u[0]], -1)
                / determinant[:, None]
            )
            plus, minus = (
                np.exp(-((s * last - omega[-1]) ** 2).sum(-1) / (2 * v[-1]))
                / determinant
                for s in (1, -1)
            )
            total = (plus + minus).sum()
            even = (plus + minus) / total
            mean = np.append(
                np.einsum("n,nli->li", even, draws),
                [((plus - minus) @ last) / total],
                axis=0,
            )
            second = np.einsum("n,nli,nlj->lij", even, draws, draws)
            means.append(mean - omega)
            seconds.append(
                np.concatenate(
                    [second, np.einsum("n,ni,nj->ij", even, last, last)[None]]
                )
            )
        information[k] = (means[0] * means[1]).sum(-1) / v**2
        G = [
            (s - v[:, None, None] * np.eye(2)) / v[:, None, None] ** 2 for s in seconds
        ]
        response[k] = (G[0] * G[1]).sum((1, 2))
    return [(x.mean(0), x.std(0) / np.sqrt(n)) for x in (information, response)]


def test_a_dominant_skip_connection_leaves_one_layer():
    skip = 3e3
    assert means(0.0, 0.0, 0.0, skip=skip)[1].value[2, 2] == pytest.approx(
        6.0, rel=1e-3
    )
    for q in (0.2, 0.8):
        found = means(0.0, 0.0, q, skip=skip)[0]
        alone = one_layer.information(np.array([[q]]), np.array([[1 - q]]), 2).value[
            0, 0
        ]
        assert abs(found.value[2, 2] - alone) < 4 * found.error[2, 2]
        assert found.error[2, 2] < 0.03 * alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q", "skip"),
    [
        ((0.0, 0.8), 0.5),
        ((0.3, 0.0, 0.8), 1.0),
        *(
            pytest.param(q, skip, marks=pytest.mark.slow)
            for q, skip in (
                ((0.0, 0.0), 1.0),
                ((0.0, 0.0, 0.7), 1.0),
                ((0.0, 0.3, 0.8), 0.7),
            )
        ),
    ],
)
def test_means_over_labels_against_importance_sampling(q, skip):
    (information, information_sem), (response, response_sem) = importance(
        q, skip, 500, 2000, 8
    )
    found, slope = means(*q, skip=skip)
    for a, overlap in enumerate(q):
        if overlap > 0:
            sem = np.hypot(information_sem[a], found.error[a, a])
            assert abs(found.value[a, a] - information[a]) < 4.5 * sem
            assert slope.value[a, a] == 0.0
        else:
            sem = np.hypot(response_sem[a], slope.error[a, a])
            assert abs(slope.value[a, a] - response[a]) < 4.5 * sem
            assert found.value[a, a] == 0.0
