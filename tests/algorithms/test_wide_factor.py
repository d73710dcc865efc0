"""Adam with weight decay on a wide factor: it ends in the minimum of nuclear-norm regression, whose theory it has."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_algorithms.adam import Adam
from smimbench_algorithms.nuclear.algorithm import Nuclear
from smimbench_algorithms.nuclear.limit import label_observations
from smimbench_algorithms.sgd import Sgd

from smimbench.backend.device import get_backend
from smimbench.interfaces import Conditions
from smimbench.problem.problem import Problem
from tests.helpers import run_once

AT = Conditions(dimension=24)


def problem_of(channel, tokens=2, rho=0.5):
    return Problem({"name": "attention-indexed", "tokens": tokens}, channel, {"name": "wishart", "rho": rho})


def noisy(convention="plain", noise=0.3):
    return {"name": "linear", "noise": noise, "noise_convention": convention}


@pytest.mark.parametrize(("tokens", "width", "decay"), [(1, 24, 1.0), (2, 14, 3.0), (2, 30, 0.5)])
def test_descent_ends_in_the_minimum_of_nuclear(tokens, width, decay):
    """Noise of the same variance in every entry: the squared error of the label is twice the loss of ``nuclear``."""
    problem = problem_of(noisy(), tokens)
    instance = problem.instance(0.4, 24)
    run = run_once(problem, instance, Adam(weight_decay=decay, width=width, schedule="cosine", steps=1500))
    descended = run.estimate
    assert np.allclose(run.final["spectrum"], np.linalg.eigvalsh(descended[0]), atol=1e-12)
    tau = decay * np.sqrt(width / 24) / 2
    minimum = run_once(problem, instance, Nuclear(tau / 2), tolerance=1e-5, max_iterations=4000).estimate
    assert np.linalg.norm(descended - minimum) < 2e-3 * np.linalg.norm(minimum)
    expected = Adam(weight_decay=decay, width=width).theory(problem, 0.4, AT)
    assert expected["mse"] == pytest.approx(Nuclear(tau / 2).theory(problem, 0.4)["mse"], rel=1e-8)


def test_stochastic_descent_on_the_full_batch_has_that_minimum_too():
    """Its loss is ``sum l / alpha + (lambda/2) |W|^2``, so that lambda alpha is the decay of ``adam``."""
    problem = problem_of(noisy(), 1)
    instance = problem.instance(0.5, 14)
    sgd = Sgd(weight_decay=2.0, width=14, learning_rate=0.01, steps=1500)
    descended = run_once(problem, instance, sgd).estimate
    minimum = run_once(problem, instance, Nuclear(0.25), tolerance=1e-5, max_iterations=4000).estimate
    assert np.linalg.norm(descended - minimum) < 1e-3 * np.linalg.norm(minimum)
    at = Conditions(dimension=14)
    assert sgd.theory(problem, 0.5, at)["mse"] == Adam(weight_decay=1.0, width=14).theory(problem, 0.5, at)["mse"]


def test_weights_of_the_label():
    seen = label_observations(problem_of(noisy("scaled")), 0.5)
    assert np.allclose(seen.weights, [2, 1, 2])
    assert np.allclose(seen.noise, 0.3)
    assert np.allclose(label_observations(problem_of(noisy("plain")), 0.5).noise, [0.15, 0.3, 0.15])
    assert "latent" in label_observations(problem_of("softmax"), 0.5)
    assert "not convex" in label_observations(problem_of("hardmax"), 0.5)


def test_penalty_is_in_the_gradient(rng):
    """One step of descent moves along the loss and ``lambda W / D``."""
    problem = problem_of(noisy())
    data = problem.instance(0.3, 24).data(get_backend())
    plain, decayed = Adam(), Adam(weight_decay=3.0)
    first = [a.step(problem, data, a.init(problem, data, np.random.default_rng(0)))[0] for a in (plain, decayed)]
    start = plain.init(problem, data, np.random.default_rng(0)).factor
    # The first moment after one step is (1 - beta1) times the gradient.
    assert np.allclose((first[1].memory[0] - first[0].memory[0]) / 0.1, 3.0 / 24 * start)


def test_no_spectrum_without_decay():
    problem = problem_of(noisy())
    run = run_once(problem, problem.instance(0.2, 10), Adam(steps=3))
    assert "spectrum" not in run.final
