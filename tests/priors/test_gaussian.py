"""The Gaussian prior against linear regression in exact arithmetic, joint covariances and draws."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.priors.gaussian import Gaussian

from smimbench.interfaces import ParameterError

prior = Gaussian()


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
        size = np.sqrt(1 + np.diag(Qhat))
        scaled = (np.eye(components) + Qhat) / np.outer(size, size)
        V_expected = np.linalg.inv(scaled) / np.outer(size, size)
        tolerance = 1e-13 * np.linalg.cond(scaled)
        unit = np.sqrt(np.outer(np.diag(V), np.diag(V)))
        assert_allclose(V / unit, V_expected / unit, atol=tolerance)
        assert_allclose(np.diag(Q), np.diag(V_expected @ Qhat), rtol=10 * tolerance)
        assert_array_equal(Q, Q.T)
        assert_array_equal(V, V.T)


def test_singular_information_leaves_the_unseen_direction_alone():
    # Only the sum of the two components is observed.
    Q, V = prior.overlap(np.full((2, 2), 3.0))
    assert_allclose(V @ [1, -1], [1, -1], rtol=1e-14)
    assert_allclose(V @ [1, 1], np.array([1, 1]) / 7, rtol=1e-14)
    assert_allclose(Q @ [1, -1], [0, 0], atol=1e-15)


def test_nothing_and_everything_known(rng):
    R = rng.standard_normal((2, 7))
    nothing = prior.denoise(R, np.zeros((2, 2)))
    assert_array_equal(nothing.estimate, np.zeros((2, 7)))
    assert_array_equal(nothing.V, np.eye(2))
    everything = prior.denoise(R, np.diag([np.inf, 3.0]))
    assert_allclose(everything.estimate, [R[0], 0.75 * R[1]], rtol=1e-15)
    assert_allclose(everything.V, np.diag([0, 0.25]), rtol=1e-15)


def test_denoise_is_the_conditional_mean(rng):
    """E[W|R] from the joint covariance of (W, R), column by column."""
    Qhat = random_information(rng, 3, 0.5)
    R = rng.standard_normal((3, 11))
    covariance = np.eye(3) + np.linalg.inv(Qhat)
    expected = np.linalg.solve(covariance, R)
    found = prior.denoise(R, Qhat)
    assert_allclose(found.estimate, expected, rtol=1e-9)
    assert_allclose(
        found.V, np.eye(3) - np.linalg.inv(covariance), rtol=1e-9, atol=1e-12
    )


def test_factor_is_the_signal(rng):
    W, g = rng.standard_normal((2, 2, 5))
    assert prior.factor.compose(W) is W
    assert prior.factor.pullback(W, g) is g
    with pytest.raises(ParameterError, match="width"):
        prior.factor.draw(rng, 2, 5, 3)
