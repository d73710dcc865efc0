"""Linear channels of both models against dense Gaussian conditioning and Monte Carlo."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from smimbench_attention.channels.linear import AttentionLinear, SequenceLinear

from smimbench.backend.arrays import to_host
from tests.conftest import assert_placed

CASES = [
    (AttentionLinear(2), 1),
    (AttentionLinear(3, noise=0.3), 1),
    (AttentionLinear(3, noise=0.3, noise_convention="plain"), 1),
    (SequenceLinear(3), 1),
    (SequenceLinear(2, components=2), 2),
    (SequenceLinear(1, components=3, noise=0.4), 3),
]


def positive(rng, P):
    a = rng.standard_normal((P, P + 2))
    return a @ a.T / P


def observation(channel):
    """Matrix A and noise variances with y = A vec(z) + noise, vec over (P, C), from the definitions."""
    if isinstance(channel, AttentionLinear):
        T = channel.tokens
        twice = np.array(
            [2.0 if a == b else 1.0 for a in range(T) for b in range(a, T)]
        )
        noise = channel.noise * (
            twice if channel.noise_convention == "scaled" else np.ones_like(twice)
        )
        return np.diag(np.sqrt(twice)), noise
    size = channel.components * channel.tokens
    return np.eye(size), np.full(size, channel.noise)


def sizes(channel):
    T = channel.tokens
    return T * (T + 1) // 2 if isinstance(channel, AttentionLinear) else T


def draw(rng, channel, n, Q, V):
    P = len(V)
    C = sizes(channel)
    omega = np.linalg.cholesky(Q) @ rng.standard_normal((n, P, C))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((n, P, C))
    return omega, z, channel.forward(z, rng=rng)


@pytest.mark.parametrize(("channel", "P"), CASES)
def test_posterior_and_log_partition_are_gaussian_conditioning(
    backend, rng, channel, P
):
    V = positive(rng, P)
    C = sizes(channel)
    n = 5
    omega, _, y = draw(rng, channel, n, positive(rng, P), V)
    arrays = [backend.asarray(a) for a in (y, omega, V)]
    found = channel.posterior(*arrays, second_moment=True)
    partition = channel.log_partition(*arrays)
    assert_placed(found.mean, backend, (n, P, C))
    assert_placed(found.covariance, backend, (P, P))
    assert_placed(found.second_moment, backend, (n, P, C, P, C))
    assert_placed(partition, backend, (n,))
    A, noise = observation(channel)
    prior = np.kron(V, np.eye(C))
    marginal = A @ prior @ A.T + np.diag(noise)
    gain = prior @ A.T @ np.linalg.inv(marginal)
    covariance = prior - gain @ A @ prior
    blocks = covariance.reshape(P, C, P, C)
    assert_allclose(
        to_host(found.covariance), np.einsum("pcqc->pq", blocks) / C, atol=1e-12
    )
    for mu in range(n):
        expected = A @ omega[mu].ravel()
        mean = omega[mu].ravel() + gain @ (y[mu].ravel() - expected)
        assert_allclose(to_host(found.mean)[mu].ravel(), mean, atol=1e-12)
        moment = np.outer(mean, mean) + covariance
        assert_allclose(
            to_host(found.second_moment)[mu].reshape(moment.shape), moment, atol=1e-12
        )
        logarithm = multivariate_normal(expected, marginal).logpdf(y[mu].ravel())
        assert float(to_host(partition)[mu]) == pytest.approx(logarithm, rel=1e-11)
    assert channel.posterior(*arrays).second_moment is None


@pytest.mark.parametrize(("channel", "P"), CASES)
def test_noiseless_and_small_V_limits(rng, channel, P):
    """V = 1e-12: without noise z is known exactly, with noise nothing but omega is."""
    V = 1e-12 * positive(rng, P)
    omega, z, y = draw(rng, channel, 30, positive(rng, P), V)
    found = channel.posterior(y, omega, V)
    target = z if channel.noise == 0 else omega
    assert_allclose(found.mean, target, atol=2e-15 if channel.noise == 0 else 1e-10)
    if channel.noise == 0:
        assert_array_equal(found.covariance, np.zeros((P, P)))
        assert np.all((z != omega).any(axis=(0, 2)))
    else:
        assert_allclose(found.covariance, V, rtol=1e-9)


def test_a_component_that_is_known_does_not_break_the_posterior(rng):
    V = np.diag([0.0, 1.0])
    y = rng.standard_normal((4, 2, 3))
    omega = rng.standard_normal((4, 2, 3))
    found = SequenceLinear(3, components=2, noise=0.5).posterior(y, omega, V)
    assert_array_equal(found.mean[:, 0], omega[:, 0])
    assert_allclose(found.mean[:, 1], omega[:, 1] + (y - omega)[:, 1] / 1.5)
    assert np.isfinite(
        SequenceLinear(3, components=2).posterior(y, omega, V).mean
    ).all()


@pytest.mark.parametrize(("channel", "P"), CASES)
def test_generalization_error_is_that_of_predictions(rng, channel, P):
    """Against the noiseless label: the plug-in prediction, which is also the posterior mean, and 0."""
    Q = positive(rng, P)
    V = positive(rng, P)
    n = 20_000
    omega, z, _ = draw(rng, channel, n, Q, V)
    found = channel.generalization_error(Q, V)
    target = channel.predict(z)
    for key, guess in (
        ("plugin", channel.predict(omega)),
        ("bayes", channel.predict(omega)),
        ("constant", 0),
    ):
        errors = np.sum((target - guess).reshape(n, -1) ** 2, axis=1)
        assert float(found[key].value) == pytest.approx(
            errors.mean(), abs=5 * errors.std() / math.sqrt(n)
        )
        assert found[key].error == 0
    batch = channel.generalization_error(np.stack([Q, Q]), np.stack([V, 0 * V]))
    assert_allclose(batch["bayes"].value, [float(found["bayes"].value), 0])


def test_information_of_several_components_in_a_batch(backend, rng):
    V = np.stack([positive(rng, 2), np.diag([1e-12, 2.0])])
    channel = SequenceLinear(3, components=2, noise=0.0)
    found = channel.information(backend.asarray(np.eye(2)), backend.asarray(V)).value
    assert_placed(found, backend, (2, 2, 2))
    assert_allclose(to_host(found), 3 * np.linalg.inv(V), rtol=1e-9)
