"""The Gaussian prior against linear regression in exact arithmetic, joint covariances and draws."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smimbench_attention.priors.gaussian import Gaussian

from smimbench.interfaces import ParameterError

prior = Gaussian()


def exact_inverse(matrix):
    """Inverse by Gauss-Jordan elimination in rational numbers."""
    n = len(matrix)
    rows = [
        [Fraction(v) for v in row] + [Fraction(int(i == j)) for j in range(n)]
        for i, row in enumerate(matrix)
    ]
    for i in range(n):
        pivot = next(k for k in range(i, n) if rows[k][i] != 0)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for k in range(n):
            if k != i:
                rows[k] = [a - rows[k][i] * b for a, b in zip(rows[k], rows[i])]
    return [row[n:] for row in rows]


def exact_posterior(Qhat):
    """V = (I + Qhat)^{-1} and V Qhat, rounded once."""
    n = len(Qhat)
    V = exact_inverse(
        [
            [Fraction(float(v)) + int(i == j) for j, v in enumerate(row)]
            for i, row in enumerate(Qhat)
        ]
    )
    Q = [
        [sum(V[i][k] * Fraction(float(Qhat[k][j])) for k in range(n)) for j in range(n)]
        for i in range(n)
    ]
    return np.array(V, dtype=float), np.array(Q, dtype=float)


def random_information(rng, components, scales=0.0, rank=None):
    root = rng.standard_normal((components, rank or components))
    scale = 10.0 ** rng.uniform(-scales, scales, components)
    root = scale[:, None] * root
    return root @ root.T


@pytest.mark.parametrize("components", [1, 2, 3, 5])
@pytest.mark.parametrize("scales", [0.0, 3.0, 6.0])
def test_overlap_is_the_exact_inverse(components, scales, rng):
    for _ in range(20):
        Qhat = random_information(rng, components, scales)
        Q, V = prior.overlap(Qhat)
        exact_V, exact_Q = exact_posterior(Qhat)
        size_V = np.sqrt(np.outer(np.diag(exact_V), np.diag(exact_V)))
        size_Q = np.sqrt(np.outer(np.diag(exact_Q), np.diag(exact_Q)))
        condition = np.linalg.cond(
            Qhat / np.sqrt(np.outer(np.diag(Qhat), np.diag(Qhat)))
        )
        assert (np.abs(V - exact_V) <= 1e-14 * condition * size_V).all()
        np.testing.assert_allclose(np.diag(Q), np.diag(exact_Q), rtol=1e-14 * condition)
        assert (
            np.abs(Q - exact_Q) <= 1e-14 * condition * np.maximum(size_V, size_Q)
        ).all()
        np.testing.assert_array_equal(Q, Q.T)
        np.testing.assert_array_equal(V, V.T)


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0, 1e12, 1e300])
def test_scalar_keeps_its_digits(size):
    Q, V = prior.overlap(np.array([[size]]))
    assert V[0, 0] == pytest.approx(float(1 / (1 + Fraction(size))), rel=4e-16)
    assert Q[0, 0] == pytest.approx(
        float(Fraction(size) / (1 + Fraction(size))), rel=4e-16
    )


def test_singular_information_leaves_the_unseen_direction_alone():
    # Only the sum of the two components is observed.
    Q, V = prior.overlap(np.full((2, 2), 3.0))
    np.testing.assert_allclose(V @ [1, -1], [1, -1], rtol=1e-14)
    np.testing.assert_allclose(V @ [1, 1], np.array([1, 1]) / 7, rtol=1e-14)
    np.testing.assert_allclose(Q @ [1, -1], [0, 0], atol=1e-15)


def test_nothing_and_everything_known(rng):
    R = rng.standard_normal((2, 7))
    nothing = prior.denoise(R, np.zeros((2, 2)))
    np.testing.assert_array_equal(nothing.estimate, np.zeros((2, 7)))
    np.testing.assert_array_equal(nothing.V, np.eye(2))
    everything = prior.denoise(R, np.diag([np.inf, 3.0]))
    np.testing.assert_allclose(everything.estimate, [R[0], 0.75 * R[1]], rtol=1e-15)
    np.testing.assert_allclose(everything.V, np.diag([0, 0.25]), rtol=1e-15)


def test_denoise_is_the_conditional_mean(rng):
    """E[W|R] from the joint covariance of (W, R), column by column."""
    Qhat = random_information(rng, 3, 0.5)
    R = rng.standard_normal((3, 11))
    covariance = np.eye(3) + np.linalg.inv(Qhat)
    expected = np.linalg.solve(covariance, R)
    found = prior.denoise(R, Qhat)
    np.testing.assert_allclose(found.estimate, expected, rtol=1e-9)
    np.testing.assert_allclose(
        found.V, np.eye(3) - np.linalg.inv(covariance), rtol=1e-9, atol=1e-12
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_batch_is_a_loop_and_parts_add_up(components, seed):
    rng = np.random.default_rng(seed)
    Qhat = np.stack([random_information(rng, components, 2.0) for _ in range(6)])
    Qhat = Qhat.reshape(2, 3, components, components)
    Q, V = prior.overlap(Qhat)
    assert Q.shape == V.shape == Qhat.shape
    one = prior.overlap(Qhat[1, 2])
    np.testing.assert_allclose(Q[1, 2], one.Q, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        Q + V, np.broadcast_to(prior.second_moment(components), Q.shape), atol=1e-8
    )


def test_factor_is_the_signal(rng):
    W, g = rng.standard_normal((2, 2, 5))
    assert prior.factor.compose(W) is W
    assert prior.factor.pullback(W, g) is g
    with pytest.raises(ParameterError, match="width"):
        prior.factor.draw(rng, 2, 5, 3)
