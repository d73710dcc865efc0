"""Softmax over rows without symmetry, and linear labels, against dense Gaussian conditioning and finite differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.channels.attention.softmax import AttentionSoftmax
from smimbench_attention.channels.linear import AttentionLinear

from smimbench.interfaces import ParameterError
from tests.helpers import scalar


@pytest.mark.parametrize(("T", "beta"), [(3, 1.0), (4, 0.2), (5, 7.0)])
def test_posterior_and_information_are_those_of_differences_in_rows(T, beta):
    channel = AttentionSoftmax(tokens=T, beta=beta, symmetric=False)
    rng = np.random.default_rng(T)
    C = T * (T - 1)
    z = rng.standard_normal((6, 1, C))
    omega = rng.standard_normal((6, 1, C))
    V = 0.4
    y = channel.forward(z)
    rows = z.reshape(6, T, T - 1)
    p = np.exp(beta * rows) / np.exp(beta * rows).sum(-1, keepdims=True)
    assert_allclose(channel.observable(y), p, rtol=1e-12)
    # All differences of neighbors in a row, and nothing else.
    A = np.kron(np.eye(T), np.diff(np.eye(T - 1), axis=0))
    gain = V * A.T @ np.linalg.inv(V * A @ A.T)
    found = channel.posterior(y, omega, scalar(V), second_moment=True)
    mean = omega[:, 0] + (z[:, 0] - omega[:, 0]) @ (gain @ A).T
    assert_allclose(found.mean[:, 0], mean, atol=1e-12)
    covariance = V * np.eye(C) - V * gain @ A
    outer = mean[:, :, None] * mean[:, None, :]
    assert_allclose(found.second_moment[:, 0, :, 0, :], covariance + outer, atol=1e-12)
    assert found.covariance[0, 0] == pytest.approx(np.trace(covariance) / C)
    assert channel.information(np.eye(1), scalar(V)).value[0, 0] == pytest.approx(
        np.trace(gain @ A) / V
    )
    assert channel.equations == len(A)
    G = rng.standard_normal(y.shape)
    h = 1e-6
    slopes = np.empty_like(z)
    for c in range(C):
        step = h * np.eye(C)[c]
        ends = [
            np.sum(G * np.exp(channel.forward(z + s * step)), axis=(1, 2))
            for s in (1, -1)
        ]
        slopes[:, 0, c] = (ends[0] - ends[1]) / (2 * h)
    assert_allclose(channel.vjp(z, G), slopes, atol=1e-8)


@pytest.mark.parametrize("convention", ["scaled", "plain"])
def test_linear_labels_have_one_noise(convention):
    channel = AttentionLinear(
        tokens=3, noise=0.3, noise_convention=convention, symmetric=False
    )
    rng = np.random.default_rng(0)
    z, omega = rng.standard_normal((2, 4, 1, 6))
    y = channel.forward(z, rng=np.random.default_rng(1))
    found = channel.posterior(y, omega, scalar(0.5))
    assert_allclose(found.mean[:, 0], omega[:, 0] + 0.5 / 0.8 * (y - omega[:, 0]))
    assert found.covariance[0, 0] == pytest.approx(0.5 * 0.3 / 0.8)
    assert channel.information(np.eye(1), scalar(0.5)).value[0, 0] == pytest.approx(
        6 / 0.8
    )
    assert channel.generalization_error(np.eye(1), np.eye(1))[
        "constant"
    ].value == pytest.approx(12)


def test_rows_need_two_entries_and_one_layer():
    with pytest.raises(ParameterError, match="at least 3 with symmetric = false"):
        AttentionSoftmax(tokens=2, symmetric=False)
    with pytest.raises(ParameterError, match=r"layers.*must be 1"):
        AttentionSoftmax(tokens=2, layers=2, symmetric=False)
