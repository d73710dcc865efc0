"""Optimal errors at finite dimension (tools/optimum.py) against importance sampling from the prior in plain NumPy."""

import importlib.util
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import smimbench

ROOT = Path(__file__).resolve().parents[4]
DRAWS, DIMENSION, WIDTH, NOISE = 400_000, 3, 2, 0.7
LOGIT_DIFFERENCES = np.array([[2**0.5, -1.0, 0.0], [0.0, 1.0, -(2**0.5)]])
"""Differences of the logits of both rows, as combinations of the latents z_11, z_12, z_22 of two tied tokens."""


@pytest.fixture
def optimum(monkeypatch):
    """The module tools/optimum.py."""
    spec = importlib.util.spec_from_file_location(
        "optimum", ROOT / "tools" / "optimum.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "optimum", module)
    spec.loader.exec_module(module)
    return module


def attention(channel, **parameters):
    """A small attention-indexed problem of two tokens."""
    return smimbench.Problem(
        {"name": "attention-indexed", "tokens": 2},
        {"name": channel, **parameters},
        {"name": "wishart", "rho": WIDTH / DIMENSION},
    )


def latents(inputs, signals):
    """Latents (draws, n, 3) of signals (draws, D, D) on tokens (n, 2, D)."""
    pairs = [(0, 0), (0, 1), (1, 1)]
    products = [inputs[:, a, :, None] * inputs[:, b, None, :] for a, b in pairs]
    for (a, b), product in zip(pairs, products):
        product -= (a == b) * np.eye(DIMENSION)
        product /= math.sqrt(DIMENSION * (1 + (a == b)))
    maps = np.stack(products, axis=1).reshape(3 * len(inputs), -1)
    return (signals.reshape(len(signals), -1) @ maps.T).reshape(
        len(signals), len(inputs), 3
    )


def weighted_prior(instance, log_likelihood):
    """Draws of the factor (draws, D, width) from the prior, their signals, and their weights under the posterior."""
    factors = np.random.default_rng(5).standard_normal((DRAWS, DIMENSION, WIDTH))
    signals = factors @ factors.transpose(0, 2, 1) / math.sqrt(WIDTH * DIMENSION)
    logs = log_likelihood(instance.labels, latents(instance.inputs, signals))
    weights = np.exp(logs - logs.max())
    return factors, signals, weights / weights.sum()


def exact_error(instance, signals, weights):
    """Squared error / D of the posterior mean of an instance, and its standard error."""
    mean = np.tensordot(weights, signals, 1)
    difference = instance.signal[0] - mean
    influence = 2 * weights * np.tensordot(signals - mean, difference, 2) / DIMENSION
    return np.sum(difference**2) / DIMENSION, np.linalg.norm(influence)


def linear(optimum):
    """Linear labels with noise of equal strength on every latent, and their log-likelihood."""
    problem = attention("linear", noise=NOISE)

    def log_likelihood(labels, z):
        scales = np.array([2**0.5, 1.0, 2**0.5])
        return -np.sum((labels / scales - z) ** 2, axis=(1, 2)) / (2 * NOISE)

    return problem, log_likelihood


def softmax(optimum):
    """Softmax of latents with noise: the labels are the differences of logits, up to a map."""
    problem = attention("softmax", beta=1.5)
    problem.channel = optimum.NoisyLatents(problem.channel, NOISE)
    precision = np.linalg.inv(NOISE * LOGIT_DIFFERENCES @ LOGIT_DIFFERENCES.T)

    def log_likelihood(labels, z):
        residual = (labels[:, :, 0] - labels[:, :, 1]) / 1.5 - z @ LOGIT_DIFFERENCES.T
        return -np.sum((residual @ precision) * residual, axis=(1, 2)) / 2

    return problem, log_likelihood


@pytest.mark.slow
@pytest.mark.parametrize("case", [linear, softmax])
def test_error_of_chains_is_that_of_importance_sampling(optimum, monkeypatch, case):
    monkeypatch.setattr(optimum, "CHAINS", 100)
    problem, log_likelihood = case(optimum)
    for replicate in range(3):
        instance = problem.instance(0.4, DIMENSION, replicate)
        _, *posterior = weighted_prior(instance, log_likelihood)
        exact, error = exact_error(instance, *posterior)
        chains = [
            optimum.posterior_error(problem, instance, 1000, np.random.default_rng(k))
            for k in range(6)
        ]
        error = math.hypot(error, np.std(chains, ddof=1) / math.sqrt(len(chains)))
        assert error < 0.1 * exact
        assert abs(np.mean(chains) - exact) < 4 * error


def test_few_draws_have_no_bias(optimum, monkeypatch):
    """One exact draw of each chain: the error of their mean is larger by a quarter of the posterior variance."""
    problem, log_likelihood = linear(optimum)
    instance = problem.instance(0.4, DIMENSION)
    factors, signals, weights = weighted_prior(instance, log_likelihood)
    exact, _ = exact_error(instance, signals, weights)
    cumulated = np.cumsum(weights)

    class Exact:
        """Chains that are at independent draws of the posterior."""

        def __init__(self, samples, **options):
            self.samples = samples

        def init(self, problem, data, rng):
            factor = factors[np.searchsorted(cumulated, rng.random(self.samples))]
            target = SimpleNamespace(factor=problem.prior.factor)
            return SimpleNamespace(target=target, factor=factor[:, None], r_hat=1.0)

        def step(self, problem, data, state):
            return state, None

    monkeypatch.setattr(optimum, "Hmc", Exact)
    rng, steps = np.random.default_rng(3), optimum.LEAPFROG
    errors = [
        optimum.posterior_error(problem, instance, steps, rng) for _ in range(400)
    ]
    deviation = np.std(errors, ddof=1) / math.sqrt(len(errors))
    mean = np.tensordot(weights, signals, 1)
    variance = (weights @ np.sum((signals - mean) ** 2, axis=(1, 2))) / DIMENSION
    assert 4 * deviation < variance / 4
    assert abs(np.mean(errors) - exact) < 4 * deviation


def test_latents_with_noise_have_the_posterior_of_gaussian_conditioning(optimum):
    problem, _ = softmax(optimum)
    instance = problem.instance(1.0, DIMENSION)
    labels, noise, V = instance.labels, NOISE, 0.7
    omega = np.random.default_rng(2).standard_normal((len(labels), 1, 3))
    posterior = problem.channel.posterior(labels, omega, np.array([[V]]))
    differences = (labels[:, :, 0] - labels[:, :, 1]) / 1.5
    B = LOGIT_DIFFERENCES
    gain = V * B.T @ np.linalg.inv((V + noise) * B @ B.T)
    mean = omega[:, 0] + (differences - omega[:, 0] @ B.T) @ gain.T
    assert np.allclose(posterior.mean[:, 0], mean, atol=1e-12)
    variance = np.trace(V * np.eye(3) - V * gain @ B) / 3
    assert posterior.covariance[0, 0] == pytest.approx(variance, rel=1e-12)


def test_errors_of_labels_without_noise_are_extrapolated(optimum, monkeypatch):
    suite = smimbench.load_suite(
        "quickstart", only=["problem=softmax", "algorithm=gamp"]
    )

    def errors(problem, gamp, cell, steps):
        return np.array([0.5, 0.6]) + np.array([2.0, 1.0]) * problem.channel.noise

    monkeypatch.setattr(optimum, "_errors", errors)
    cell = next(iter(suite.cells("numpy")))
    assert np.allclose(optimum.paired_errors(cell, 100), [0.5, 0.6])
