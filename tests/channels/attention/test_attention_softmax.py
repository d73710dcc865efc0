"""One-layer softmax against dense Gaussian conditioning, wide decimals, plain integration and its limits."""

import functools
import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.channels.attention.softmax import AttentionSoftmax

from smimbench.backend.arrays import to_host
from tests.conftest import assert_placed
from tests.helpers import scalar


def matrix_of(z, T):
    """h as a symmetric matrix, entry by entry."""
    h = np.empty((len(z), T, T))
    for c, (a, b) in enumerate(itertools.combinations_with_replacement(range(T), 2)):
        h[:, a, b] = h[:, b, a] = z[:, 0, c] * math.sqrt(1 + (a == b))
    return h


def draw(rng, n, T, q=1.0, V=0.5):
    """Omega, and z from its law given omega."""
    C = T * (T + 1) // 2
    omega = rng.standard_normal((n, 1, C)) * math.sqrt(q)
    return omega, omega + rng.standard_normal((n, 1, C)) * math.sqrt(V)


def condition(y, omega, V, T, beta):
    """Gaussian conditioning on all log-odds within the rows, by a pseudo-inverse: mean and covariance."""
    pairs = [(a, b) for a in range(T) for b in range(a, T)]
    rows = []
    seen = []
    for a in range(T):
        for b, c in itertools.combinations(range(T), 2):
            row = np.zeros(len(pairs))
            for entry, sign in ((b, 1), (c, -1)):
                pair = (min(a, entry), max(a, entry))
                row[pairs.index(pair)] += sign * math.sqrt(1 + (pair[0] == pair[1]))
            rows.append(row)
            seen.append((y[a, b] - y[a, c]) / beta)
    A = np.array(rows)
    gain = A.T @ np.linalg.pinv(A @ A.T, rcond=1e-10)
    mean = omega + gain @ (np.array(seen) - A @ omega)
    return mean, V * (np.eye(len(pairs)) - gain @ A)


@pytest.mark.parametrize(
    ("T", "beta", "V"), [(2, 1.0, 0.5), (2, 0.3, 1e-4), (3, 2.0, 1.5), (5, 1.0, 0.1)]
)
def test_posterior_is_gaussian_conditioning_on_the_log_odds(backend, rng, T, beta, V):
    channel = AttentionSoftmax(T, beta=beta)
    omega, z = draw(rng, 6, T, V=V)
    y = channel.forward(backend.asarray(z))
    found = channel.posterior(
        y, backend.asarray(omega), backend.asarray([[V]]), second_moment=True
    )
    C = T * (T + 1) // 2
    assert_placed(found.mean, backend, (6, 1, C))
    assert_placed(found.covariance, backend, (1, 1))
    assert_placed(found.second_moment, backend, (6, 1, C, 1, C))
    assert found.error == 0
    traces = []
    for mu in range(6):
        mean, covariance = condition(to_host(y)[mu], omega[mu, 0], V, T, beta)
        assert_allclose(to_host(found.mean)[mu, 0], mean, atol=1e-11)
        moment = np.outer(mean, mean) + covariance
        assert_allclose(to_host(found.second_moment)[mu, 0, :, 0], moment, atol=1e-11)
        traces.append(np.trace(covariance) / C)
    assert_allclose(to_host(found.covariance), [[np.mean(traces)]], rtol=1e-9)
    bare = channel.posterior(y, backend.asarray(omega), backend.asarray([[V]]))
    assert bare.second_moment is None


@pytest.mark.parametrize("beta", [0.7, 200.0])
def test_labels_at_saturation(backend, rng, beta):
    """Against 60 decimal digits, where probabilities would underflow."""
    T = 3
    _, z = draw(rng, 5, T, q=1.0, V=1.0)
    y = AttentionSoftmax(T, beta=beta).forward(backend.asarray(z))
    assert_placed(y, backend, (5, T, T))
    h = matrix_of(z, T)
    with localcontext() as context:
        context.prec = 60
        for mu, a, b in itertools.product(range(5), range(T), range(T)):
            row = [Decimal(beta) * Decimal(float(v)) for v in h[mu, a]]
            exact = row[b] - sum((v.exp() for v in row), Decimal(0)).ln()
            assert float(to_host(y)[mu, a, b]) == pytest.approx(
                float(exact), rel=1e-13, abs=1e-13
            )
    if beta == 200:
        assert np.exp(to_host(y)).min() == 0


@pytest.mark.parametrize(("T", "beta"), [(2, 1.0), (2, 200.0), (4, 200.0), (3, 0.1)])
def test_small_V_keeps_its_digits(rng, T, beta):
    """The free direction is all that is left open, down to V = 1e-12."""
    V = 1e-12
    channel = AttentionSoftmax(T, beta=beta)
    omega, z = draw(rng, 50, T, q=1.2, V=V)
    mean = channel.posterior(channel.forward(z), omega, scalar(V)).mean
    u = np.array([1 / math.sqrt(1 + (a == b)) for a in range(T) for b in range(a, T)])
    missing = (z - omega)[:, 0] @ u / (u @ u)
    assert_allclose(
        (mean - omega)[:, 0], (z - omega)[:, 0] - missing[:, None] * u, atol=1e-7 * 1e-6
    )


def test_the_log_partition_is_normalised():
    """Integral over the hyperplane of labels, by a plain grid."""
    channel = AttentionSoftmax(2, beta=0.8)
    V = scalar(0.4)
    u = np.array([math.sqrt(0.5), 1, math.sqrt(0.5)])
    basis = np.linalg.svd(u[None])[2][1:]
    axis = np.linspace(-6, 6, 241)
    w = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    y = channel.forward((w @ basis)[:, None, :] + 0.9 * u)
    omega = np.broadcast_to(np.array([0.3, -0.5, 0.8]), (len(w), 1, 3))
    total = (
        np.sum(np.exp(channel.log_partition(y, omega, V))) * (axis[1] - axis[0]) ** 2
    )
    assert total == pytest.approx(1, abs=1e-9)


@functools.cache
def grid_errors(q, V, beta):
    """Bayes, plug-in and constant error on a dense uniform grid of both variables."""
    x = np.linspace(-9, 9, 2001)
    w = np.exp(-(x**2) / 2)
    w = w / w.sum()
    m = math.sqrt(3 * q) * x

    def logistic(u):
        return 1 / (1 + np.exp(-beta * u))

    f = logistic(m[:, None] + math.sqrt(3 * V) * x)
    first = f @ w
    second = f**2 @ w
    everything = logistic(math.sqrt(3 * (q + V)) * x)
    plugin = w @ ((f - logistic(m)[:, None]) ** 2 @ w)
    return (
        4 * w @ (second - first**2),
        4 * plugin,
        4 * (w @ everything**2 - (w @ everything) ** 2),
    )


@pytest.mark.parametrize(
    ("q", "V", "beta"),
    [
        (0.7, 0.8, 1.0),
        (1e-3, 1.0, 1.5),
        (1.4, 0.1, 0.5),
        (0.0, 1.0, 1.0),
        (0.9, 0.3, 30.0),
        (0.2, 1.3, 0.01),
    ],
)
def test_generalization_error_against_a_dense_grid(backend, q, V, beta):
    channel = AttentionSoftmax(2, beta=beta)
    found = channel.generalization_error(backend.asarray([[q]]), backend.asarray([[V]]))
    for key, exact in zip(("bayes", "plugin", "constant"), grid_errors(q, V, beta)):
        assert_placed(found[key].value, backend, ())
        assert found[key].method == "quadrature"
        # The reference is a sum of two million terms; its own rounding is below 1e-12.
        assert float(found[key].value) == pytest.approx(exact, rel=1e-10, abs=1e-14)
        assert abs(float(found[key].value) - exact) <= float(found[key].error) + 1e-12
        assert float(found[key].error) < 1e-7 * exact


@pytest.mark.parametrize(("q", "V"), [(0.5, 1.0), (1.49, 0.01), (0.02, 1.48)])
def test_generalization_error_at_large_beta_is_that_of_the_argmax(q, V):
    """Angles between omega and z; the correction is of relative order 1/beta."""
    found = AttentionSoftmax(2, beta=1e6).generalization_error(scalar(q), scalar(V))
    assert float(found["plugin"].value) == pytest.approx(
        4 * math.acos(math.sqrt(q / (q + V))) / math.pi, rel=1e-4
    )
    assert float(found["bayes"].value) == pytest.approx(
        2 * math.acos(q / (q + V)) / math.pi, rel=1e-4
    )
    assert float(found["constant"].value) == pytest.approx(1, rel=1e-4)


def test_generalization_error_at_small_V_is_linear_in_it():
    q = 1.5
    beta = 2.0
    x = np.linspace(-9, 9, 2001)
    w = np.exp(-(x**2) / 2)
    slope = 1 / (2 + 2 * np.cosh(beta * math.sqrt(3 * q) * x))
    first_order = 12 * beta**2 * (w / w.sum()) @ slope**2
    batch = np.array([1e-6, 1e-12]).reshape(2, 1, 1)
    found = AttentionSoftmax(2, beta=beta).generalization_error(q - batch, batch)
    for key in ("bayes", "plugin"):
        assert found[key].value.shape == (2,)
        assert_allclose(found[key].value / batch[:, 0, 0], first_order, rtol=1e-5)
    perfect = AttentionSoftmax(2).generalization_error(scalar(1.5), scalar(0.0))
    assert float(perfect["bayes"].value) == float(perfect["plugin"].value) == 0
