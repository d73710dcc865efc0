"""Means over labels against the Gaussian channel ``y = z + N(0, s)``: information ``C (V + s)^{-1}`` for every Q."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from smimbench.derive.sampled_information import Labels, label_means
from smimbench.numerics.linalg import symmetric_root

SITES = 2
NOISE = 0.3


def gaussian_labels(Q, V, noise_of_means):
    """Labels of the Gaussian channel; independent noise on the two posterior means, as where they are sampled."""
    P = len(Q)
    root = symmetric_root(V)
    gain = np.linalg.inv(root) @ V @ np.linalg.inv(V + NOISE * np.eye(P))
    covariance = (
        SITES * root @ np.linalg.inv(V + NOISE * np.eye(P)) @ root
    )  # what the label takes away, in units of V

    def labels(scramble):
        rng = np.random.default_rng(scramble)
        omega, truth, error = rng.standard_normal((3, 512, P, SITES))
        mean = gain @ (root @ truth + NOISE**0.5 * error)
        means = tuple(
            mean + noise_of_means * rng.standard_normal(mean.shape) for _ in range(2)
        )
        second = mean @ np.swapaxes(mean, 1, 2) + SITES * np.eye(P) - covariance
        return Labels(omega, truth, means, None if noise_of_means else second)

    return labels


@pytest.mark.parametrize("noise_of_means", [0.0, 0.5])
@pytest.mark.parametrize("correlation", [0.0, 0.4])
@pytest.mark.parametrize("components", [1, 3])
def test_information_of_a_gaussian_channel(components, correlation, noise_of_means):
    shape = (components, components)
    Q = np.full(shape, 0.5 * correlation) + 0.5 * (1 - correlation) * np.eye(components)
    V = np.eye(components) - Q
    found = label_means(gaussian_labels(Q, V, noise_of_means), Q, V)
    expected = SITES * np.linalg.inv(V + NOISE * np.eye(components))
    if (
        noise_of_means == 0.0 and components == 1
    ):  # with the posterior's second moment the control variates leave no noise
        assert_allclose(found.information, expected, rtol=1e-9)
    else:
        assert (
            np.abs(found.information - expected) < 4.5 * found.information_error + 1e-12
        ).all()
        assert found.information_error.max() < 0.05 * expected.max()
    assert_array_equal(found.information, found.information.T)
    assert (found.effective > 100).all()
    assert not found.susceptibility.any()


def test_labels_that_say_nothing_have_no_effective_number():
    Q = np.array([[0.5]])
    V = np.array([[0.5]])

    def labels(scramble):
        omega, truth = np.random.default_rng(scramble).standard_normal(
            (2, 64, 1, SITES)
        )
        return Labels(omega, truth, (np.zeros_like(omega),) * 2)

    found = label_means(labels, Q, V)
    assert found.information == found.information_error == found.effective == 0.0
