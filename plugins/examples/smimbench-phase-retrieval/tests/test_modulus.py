"""Noiseless phase retrieval: the published checks, brute-force integrals, and the thresholds of the literature."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import dblquad, quad
from smimbench_phase_retrieval import Modulus

import smimbench
from smimbench.backend import get_backend
from smimbench.registry import get_registry
from smimbench.run.loop import run_algorithm
from smimbench.suite.schema import RunOptions
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve, thresholds

PROBLEM = smimbench.Problem(
    {"name": "sequence-multi-index", "tokens": 1}, "modulus", "gaussian"
)
FOLDER = Path(__file__).resolve().parent.parent


@parametrize_with_checks([Modulus(tokens=1), Modulus(tokens=3)])
def test_contract(check):
    """The channel passes every published check, with one token and with three."""
    check()


def test_it_is_registered():
    """The channel is found under its name, as part of this package."""
    assert (
        get_registry().get("channel", "modulus").distribution
        == "smimbench-phase-retrieval"
    )


def test_thresholds_are_those_of_the_literature():
    """Weak recovery starts at alpha = 0.5, perfect recovery at 1 (1.128 by message passing), as in the literature."""
    recovery_thresholds = thresholds(PROBLEM)
    assert recovery_thresholds.weak_recovery.value == pytest.approx(0.5, abs=1e-6)
    assert recovery_thresholds.late_recovery.value == pytest.approx(1.128, abs=1e-3)
    assert recovery_thresholds.perfect_recovery.value == pytest.approx(1.0, abs=1e-6)
    assert recovery_thresholds.hard_phase.ends == pytest.approx([1.0, 1.128], abs=1e-3)


def test_two_tokens_need_half_the_samples():
    """With two tokens, thresholds are at half the sample ratios."""
    two_token_problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 2}, "modulus", "gaussian"
    )
    assert thresholds(two_token_problem).weak_recovery.value == pytest.approx(
        0.25, abs=1e-6
    )
    assert thresholds(two_token_problem).late_recovery.value == pytest.approx(
        0.564, abs=1e-3
    )


@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
def test_information_is_the_integral_over_label_and_estimate(q):
    """The information at overlap q and error v = 1 - q is an integral over the label y and omega, the latent's mean."""
    v = 1 - q

    def weighted_square(y: float, omega: float) -> float:
        """Density of y and omega times the squared message ``g^2``, with g the shift of the posterior mean over v."""
        g = (y * math.tanh(y * omega / v) - omega) / v
        likelihood = sum(
            math.exp(-((sign * y - omega) ** 2) / (2 * v)) for sign in (1, -1)
        )
        return (
            g
            * g
            * likelihood
            * math.exp(-(omega**2) / (2 * q))
            / (2 * math.pi * math.sqrt(q * v))
        )

    largest_omega = 8 * math.sqrt(q)
    expected_information = (
        2
        * dblquad(weighted_square, 0, largest_omega, 0, 9, epsabs=1e-7, epsrel=1e-7)[0]
    )
    engine_information = Modulus(tokens=1).information(np.array([[q]]), np.array([[v]]))
    assert engine_information.value[0, 0] == pytest.approx(
        expected_information, rel=1e-5
    )


def test_log_partition_is_the_density_of_the_label():
    """The exponential of ``log_partition`` is a density of the label: it integrates to 1."""

    def density(y: float) -> float:
        """Density of the label y at a given mean and variance of the latent."""
        log_partition = Modulus(tokens=1).log_partition(
            np.array([[[y]]]), np.array([[[0.7]]]), np.array([[0.3]])
        )
        return math.exp(log_partition[0])

    assert quad(density, 0, 10, points=[0.7])[0] == pytest.approx(1, rel=1e-9)


def test_message_passing_finds_the_signal_where_theory_says_so():
    """GAMP recovers the signal above the threshold of theory and learns nothing below weak recovery."""
    dimension = 300
    errors = {}
    for alpha in (0.3, 1.6):
        instance = PROBLEM.instance(alpha, dimension, seed=3)
        backend = get_backend()
        gamp = get_registry().get("algorithm", "gamp").item()
        run_result = run_algorithm(
            PROBLEM,
            instance,
            instance.data(backend),
            gamp,
            np.random.default_rng,
            RunOptions(),
            backend,
        )
        errors[alpha] = instance.metrics(run_result.estimate)["mse"][0]
    assert errors[0.3] > 0.8
    assert solve(PROBLEM, [0.3])[0].mse[0] == pytest.approx(1)
    assert errors[1.6] < 1e-3
    assert solve(PROBLEM, [1.6])[0].mse[0] < 1e-6


@pytest.mark.parametrize("tokens", [0, 1.5, True])
def test_tokens_must_be_a_whole_number(tokens):
    """A number of tokens that is not a whole number of at least 1 raises an error that names it."""
    with pytest.raises(smimbench.ParameterError, match="tokens"):
        Modulus(tokens=tokens)


@pytest.mark.parametrize("name", ["phase_retrieval", "noisy_square"])
def test_suites_can_be_read(name):
    """The suites of this package can be read."""
    suite = smimbench.load_suite(FOLDER / f"{name}.toml")
    assert len(suite.plans) == 1
    assert suite.cells("numpy")
