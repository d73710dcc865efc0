"""Softmax channel of sequence multi-index models: labels, reverse mode, closed forms of a single layer."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate
from smimbench_attention.channels.sequence.softmax import SequenceSoftmax
from smimbench_attention.channels.sequence.softmax.network import (
    log_attention,
    output_of_label,
)

from smimbench.backend.arrays import to_host
from tests.conftest import assert_placed
from tests.helpers import scalar


def reference_output(z, skip):
    """Deep attention of one sample, loops only: u for z (L, M). Works for complex z."""
    layers, tokens = z.shape
    B = np.eye(tokens, dtype=z.dtype)
    h = z[0]
    for layer in range(1, layers):
        A = np.zeros((tokens, tokens), dtype=z.dtype)
        for m in range(tokens):
            weights = np.exp(h[m] * h - (h[m] * h).real.max())
            A[m] = weights / weights.sum()
            A[m, m] += skip
        B = A @ B
        h = B @ z[layer]
    return h


def reference_probabilities(z, skip):
    u = reference_output(z, skip)
    rows = [np.exp(um * u - (um * u).real.max()) for um in u]
    return np.array([row / row.sum() for row in rows])


SIZES = [
    (1, 2, 1.0),
    (1, 3, 0.3),
    (1, 6, 1.0),
    (2, 2, 1.0),
    (2, 2, 0.0),
    (2, 3, 0.7),
    (3, 2, 1.5),
]
SIZES += [(4, 2, 0.4)]


@pytest.mark.parametrize(("layers", "tokens", "skip"), SIZES)
def test_forward_matches_loops(backend, rng, layers, tokens, skip):
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=skip)
    z = rng.standard_normal((7, layers, tokens))
    y = channel.forward(backend.asarray(z))
    assert_placed(y, backend, (7, tokens, tokens))
    observed = channel.observable(y)
    assert_placed(observed, backend, (7, tokens, tokens))
    expected = np.stack([reference_probabilities(sample, skip) for sample in z])
    assert_allclose(to_host(observed), expected, rtol=1e-12)


@pytest.mark.parametrize(("layers", "tokens", "skip"), SIZES)
def test_vjp_is_the_complex_step_gradient(backend, rng, layers, tokens, skip):
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=skip)
    z = 0.8 * rng.standard_normal((3, layers, tokens))
    cotangent = rng.standard_normal((3, tokens, tokens))
    gradient = channel.vjp(backend.asarray(z), backend.asarray(cotangent))
    assert_placed(gradient, backend, z.shape)
    expected = np.empty_like(z)
    for n, layer, m in np.ndindex(*z.shape):
        shifted = z[n].astype(complex)
        shifted[layer, m] += 1e-30j
        value = (cotangent[n] * reference_probabilities(shifted, skip)).sum()
        expected[n, layer, m] = value.imag / 1e-30
    assert_allclose(to_host(gradient), expected, rtol=1e-11, atol=1e-13)


def aligned(u, truth):
    return u * np.sign(np.sum(u * truth, axis=-1, keepdims=True))


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0, 1e4])
@pytest.mark.parametrize("tokens", [2, 3, 7])
def test_output_is_recovered_up_to_sign(backend, rng, tokens, scale):
    u = scale * rng.standard_normal((400, tokens))
    y = log_attention(backend.asarray(u))
    assert (
        scale == 1.0 or np.exp(to_host(y)).max() == 1.0
    )  # probabilities alone would not do
    found = output_of_label(y)
    assert_placed(found, backend, u.shape)
    assert_allclose(aligned(to_host(found), u), u, rtol=1e-9, atol=1e-9 * scale)


def test_label_without_contrast_is_finite():
    channel = SequenceSoftmax(tokens=3)
    y = channel.forward(np.full((2, 1, 3), 0.7))
    posterior = channel.posterior(y, np.zeros((2, 1, 3)), np.eye(1))
    assert np.all(np.isfinite(posterior.mean))


@pytest.mark.parametrize("tokens", [2, 3])
@pytest.mark.parametrize("v", [0.7, 1e-2, 1e-8])
def test_one_layer_posterior_has_two_points(backend, rng, tokens, v):
    channel = SequenceSoftmax(tokens=tokens)
    omega = np.sqrt(1.0 - v) * rng.standard_normal((50, 1, tokens))
    z = omega + np.sqrt(v) * rng.standard_normal(omega.shape)
    y = channel.forward(backend.asarray(z))
    result = channel.posterior(
        y, backend.asarray(omega), backend.asarray(scalar(v)), second_moment=True
    )
    plus, minus = ((s * z[:, 0] - omega[:, 0]) ** 2 for s in (1.0, -1.0))
    weight = 1.0 / (
        1.0 + np.exp(-np.clip((minus - plus).sum(-1) / (2.0 * v), -700, 700))
    )
    mean = (2.0 * weight - 1.0)[:, None, None] * z
    variance = 4.0 * weight * (1.0 - weight) * (z[:, 0] ** 2).mean(-1)
    assert_placed(result.mean, backend, mean.shape)
    assert_placed(result.covariance, backend, (1, 1))
    assert_placed(result.second_moment, backend, (50, 1, tokens, 1, tokens))
    assert_allclose(to_host(result.mean), mean, atol=1e-6 * np.sqrt(v))
    assert_allclose(
        to_host(result.covariance)[0, 0], variance.mean(), rtol=1e-6, atol=1e-12
    )
    second = z[:, :, :, None, None] * z[:, None, None, :, :]
    assert_allclose(to_host(result.second_moment), second, atol=1e-8)
    assert result.error == 0.0


def test_one_layer_partition_is_a_density_on_half_space(rng):
    # sum over u on one side of the plane; the label of u and -u is the same
    channel = SequenceSoftmax(tokens=2)
    omega = rng.standard_normal((1, 1, 2))
    V = scalar(0.4)

    def density(u2, u1):
        y = channel.forward(np.array([[[u1, u2]]]))
        return np.exp(channel.log_partition(y, omega, V))[0]

    total = integrate.dblquad(density, -8, 8, 0, 8, epsabs=1e-7)[0]
    assert total == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_posterior_refuses_omega_of_another_shape(layers):
    """Compiled code would read past the end of the array."""
    channel = SequenceSoftmax(tokens=2, layers=layers)
    z = np.random.default_rng(0).standard_normal((4, layers, 2))
    y = channel.forward(z)
    for wrong in (z[..., :1], z[:, 0, :]):
        with pytest.raises(ValueError, match="latents must have shape"):
            channel.posterior(y, wrong, np.eye(layers))


@pytest.mark.parametrize(
    ("tokens", "q", "v"), [(2, 0.6, 0.4), (2, 0.2, 0.8), (3, 0.7, 0.3), (5, 0.5, 0.2)]
)
def test_one_layer_information_against_adaptive_integration(tokens, q, v):
    def integrand(x, s):  # s = r^2 has the chi-squared law
        t = q * s / v + math.sqrt(q * s / v) * x
        return (
            math.tanh(t) ** 2 * s ** (tokens / 2) * math.exp(-0.5 * (s + x * x)) / norm
        )

    norm = 2 ** (tokens / 2) * math.gamma(tokens / 2) * math.sqrt(2 * math.pi)
    mean = integrate.dblquad(integrand, 0, 80, -9, 9, epsabs=1e-9)[0]
    found = SequenceSoftmax(tokens=tokens).information(np.array([[q]]), np.array([[v]]))
    assert found.value[0, 0] == pytest.approx(
        ((q + v) * mean - tokens * q) / v**2, rel=1e-8
    )
    assert found.error[0, 0] < 1e-7 * found.value[0, 0]


@pytest.mark.parametrize("tokens", [2, 3, 4, 9])
def test_one_layer_thresholds(backend, tokens):
    channel = SequenceSoftmax(tokens=tokens)
    q = np.array([0.0, 1e-9, 1.0 - 1e-6, 1.0 - 1e-12]).reshape(4, 1, 1)
    v = np.array([1.0, 1.0 - 1e-9, 1e-6, 1e-12]).reshape(4, 1, 1)
    result = channel.information(backend.asarray(q), backend.asarray(v))
    assert_placed(result.value, backend, (4, 1, 1))
    assert_placed(result.error, backend, (4, 1, 1))
    value = to_host(result.value)[:, 0, 0]
    # weak recovery at 1 / (M (M + 1)), perfect recovery at 1 / M
    assert value[0] == 0.0
    assert value[1] / 1e-9 == pytest.approx(tokens * (tokens + 1), rel=1e-6)
    assert value[2] * 1e-6 == pytest.approx(tokens, rel=1e-2)
    assert value[3] * 1e-12 == pytest.approx(tokens, rel=1e-9)
