"""Adam: gradients against finite differences of a loss that is written out, steps against the textbook, the recipe."""

from __future__ import annotations

import math

import numpy as np
import pytest
from smimbench_algorithms.adam import Adam
from smimbench_algorithms.gradient.loss import loss_gradient

from smimbench.backend.device import get_backend
from smimbench.derive import observable
from smimbench.problem.problem import Problem
from smimbench.run.loop import LoopSettings, Status, run_algorithm
from tests.helpers import attention, sequence

# Every channel that has a derivative, on both models.
PROBLEMS = [
    attention(),
    attention(tokens=4, beta=3.0),
    attention("linear", tokens=3),
    attention("linear", rho=1.5, noise=0.2, noise_convention="plain"),
    sequence(),
    sequence(tokens=3),
    sequence("linear", tokens=3, components=2, noise=0.1),
]


def softmax(m):
    e = np.exp(m - m.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def written_out(problem: Problem, inputs, targets, W) -> float:
    """The loss with every index matrix formed, sample by sample."""
    total = 0.0
    T, D = inputs.shape[1:]
    name, extensive = problem.channel.name, problem.model.kappa == 2
    for x, y in zip(inputs, targets):
        if extensive:
            S = W @ W.T / math.sqrt(W.shape[1] * D)
            h = (x @ S @ x.T - np.trace(S) * np.eye(T)) / math.sqrt(D)
            if name == "softmax":
                out, target = softmax(problem.channel.beta * h), y.reshape(T, T)
            else:
                out, target = np.array([h[a, b] for a in range(T) for b in range(a, T)]), y
        else:
            z = W @ x.T / math.sqrt(D)
            out, target = (softmax(np.outer(z[0], z[0])), y.reshape(T, T)) if name == "softmax" else (z, y)
        total += ((out - target) ** 2).sum()
    return total


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_loss_and_gradient_are_those_of_the_loss_written_out(problem, rng):
    """Every entry of the factor by central differences: the trace term, the symmetry and all normalisations take part."""
    D = 6
    instance = problem.instance(0.9, D)
    targets = np.asarray(observable(problem.channel, instance.labels))
    factor = problem.prior.factor.draw(rng, problem.components, D)
    found = loss_gradient(problem, instance.inputs, targets, factor)
    W = factor[0] if factor.ndim == 3 else factor

    def loss(shift):
        return written_out(problem, instance.inputs, targets, W + shift)

    assert float(found.loss) == pytest.approx(loss(0.0), rel=1e-10)
    numeric = np.empty_like(W)
    for index in np.ndindex(*W.shape):
        step = np.zeros_like(W)
        step[index] = 1e-5
        numeric[index] = (loss(step) - loss(-step)) / 2e-5
    np.testing.assert_allclose(found.gradient.reshape(W.shape), numeric, rtol=1e-5, atol=1e-6 * np.abs(numeric).max())


def test_at_the_teacher_nothing_pulls():
    problem = attention("linear", tokens=3)
    instance = problem.instance(0.5, 10)
    values, vectors = np.linalg.eigh(instance.signal[0])
    kept = values > 1e-9
    width = int(kept.sum())
    W = vectors[:, kept] * np.sqrt(values[kept] * math.sqrt(width * 10))
    found = loss_gradient(problem, instance.inputs, instance.labels, W[None])
    assert float(found.loss) < 1e-18
    assert np.abs(found.gradient).max() < 1e-8


@pytest.mark.parametrize(
    ("problem", "loss", "descended"),
    [
        (attention(), "squared", "squared"),
        (attention(), None, "cross-entropy"),
        (sequence("linear", noise=0.1), None, "squared"),
    ],
)
def test_steps_are_those_of_the_textbook(problem, loss, descended):
    """First and second moments with bias correction, on the loss divided by D."""
    eta, b1, b2, epsilon, D = 0.07, 0.8, 0.95, 1e-3, 9
    instance = problem.instance(0.7, D)
    data = instance.data(get_backend("numpy"))
    algorithm = Adam(learning_rate=eta, steps=5, loss=loss, beta1=b1, beta2=b2, epsilon=epsilon)
    state = algorithm.init(problem, data, np.random.default_rng(2))
    targets = np.asarray(observable(problem.channel, instance.labels))
    W = np.array(state.factor)
    m, v = np.zeros_like(W), np.zeros_like(W)
    for t in range(1, 6):
        state, info = algorithm.step(problem, data, state)
        gradient = loss_gradient(problem, instance.inputs, targets, W, loss=descended).gradient / D
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        before = W
        W = W - eta * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + epsilon)
        np.testing.assert_allclose(state.factor, W, rtol=1e-9, atol=1e-11)
        assert np.isfinite(float(info.residual))
        assert float(info.residual) > 0
    assert not np.allclose(before, W)
    signal = W @ np.swapaxes(W, -1, -2) / math.sqrt(W.shape[-1] * D) if problem.model.kappa == 2 else W
    np.testing.assert_allclose(algorithm.estimate(state), signal, atol=1e-10)


def test_the_start_is_standard_normal_and_as_wide_as_asked():
    problem = attention(rho=0.5)
    data = problem.instance(0.01, 80).data(get_backend("numpy"))
    for width, columns in ((None, 40), (7, 7), (200, 200)):
        factor = Adam(width=width).init(problem, data, np.random.default_rng(1)).factor
        assert factor.shape == (1, 80, columns)
        assert np.mean(factor) == pytest.approx(0, abs=0.15)
        assert np.std(factor) == pytest.approx(1, abs=0.1)


def run(problem, alpha, dimension, replicate, algorithm):
    backend = get_backend("numpy")
    instance = problem.instance(alpha, dimension, replicate)

    def make_rng(attempt):
        return np.random.default_rng([replicate, attempt])

    return run_algorithm(
        problem, instance, instance.data(backend), algorithm, make_rng, LoopSettings(), backend
    ).attempt


def test_all_steps_are_made():
    attempt = run(attention(), 0.1, 20, 0, Adam(steps=37))
    assert (attempt.status, attempt.iterations) == (Status.OK, 37)
    assert attempt.reason == "all 37 steps made"


def test_enough_noiseless_samples_and_steps_find_the_teacher():
    """Far above the count of unknowns, with a schedule that ends: a wide student ends at the signal itself."""
    attempt = run(attention("linear"), 0.6, 30, 0, Adam(steps=1500, learning_rate=0.05, schedule="cosine"))
    assert attempt.metrics["mse"][0] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "published", "tolerance"), [(0.0505, 1.30, 0.12), (0.2101, 0.044, 0.02)])
def test_the_recipe_gives_the_published_errors(alpha, published, tolerance):
    """arXiv:2506.01582, gradient descent of a single student, T = 2, rho = 0.5: with its loss the default is that recipe."""
    attempt = run(attention(), alpha, 100, 0, Adam(loss="squared"))
    assert attempt.metrics["mse"][0] == pytest.approx(published, abs=tolerance)
