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
    check()


def test_it_is_registered():
    assert (
        get_registry().get("channel", "modulus").distribution
        == "smimbench-phase-retrieval"
    )


def test_thresholds_are_those_of_the_literature():
    found = thresholds(PROBLEM)
    assert found.weak_recovery.value == pytest.approx(0.5, abs=1e-6)
    assert found.late_recovery.value == pytest.approx(1.128, abs=1e-3)
    assert found.perfect_recovery.value == pytest.approx(1.0, abs=1e-6)
    assert found.hard_phase.ends == pytest.approx([1.0, 1.128], abs=1e-3)


def test_two_tokens_need_half_the_samples():
    two = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 2}, "modulus", "gaussian"
    )
    assert thresholds(two).weak_recovery.value == pytest.approx(0.25, abs=1e-6)
    assert thresholds(two).late_recovery.value == pytest.approx(0.564, abs=1e-3)


@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
def test_information_is_the_integral_over_label_and_estimate(q):
    v = 1 - q

    def density(y: float, omega: float) -> float:
        g = (y * math.tanh(y * omega / v) - omega) / v
        law = sum(math.exp(-((s * y - omega) ** 2) / (2 * v)) for s in (1, -1))
        return (
            g
            * g
            * law
            * math.exp(-(omega**2) / (2 * q))
            / (2 * math.pi * math.sqrt(q * v))
        )

    reach = 8 * math.sqrt(q)
    wanted = 2 * dblquad(density, 0, reach, 0, 9, epsabs=1e-7, epsrel=1e-7)[0]
    found = Modulus(tokens=1).information(np.array([[q]]), np.array([[v]]))
    assert found.value[0, 0] == pytest.approx(wanted, rel=1e-5)


def test_log_partition_is_the_density_of_the_label():
    def density(y: float) -> float:
        found = Modulus(tokens=1).log_partition(
            np.array([[[y]]]), np.array([[[0.7]]]), np.array([[0.3]])
        )
        return math.exp(found[0])

    assert quad(density, 0, 10, points=[0.7])[0] == pytest.approx(1, rel=1e-9)


def test_message_passing_finds_the_signal_where_theory_says_so():
    dimension = 300
    errors = {}
    for alpha in (0.3, 1.6):
        instance = PROBLEM.instance(alpha, dimension, seed=3)
        backend = get_backend()
        gamp = get_registry().get("algorithm", "gamp").item()
        attempt = run_algorithm(
            PROBLEM,
            instance,
            instance.data(backend),
            gamp,
            np.random.default_rng,
            RunOptions(),
            backend,
        )
        errors[alpha] = instance.metrics(attempt.estimate)["mse"][0]
    assert errors[0.3] > 0.8
    assert solve(PROBLEM, [0.3])[0].mse[0] == pytest.approx(1)
    assert errors[1.6] < 1e-3
    assert solve(PROBLEM, [1.6])[0].mse[0] < 1e-6


@pytest.mark.parametrize("tokens", [0, 1.5, True])
def test_tokens_must_be_a_whole_number(tokens):
    with pytest.raises(smimbench.ParameterError, match="tokens"):
        Modulus(tokens=tokens)


@pytest.mark.parametrize("name", ["phase_retrieval", "noisy_square"])
def test_suites_can_be_read(name):
    suite = smimbench.load_suite(FOLDER / f"{name}.toml")
    assert len(suite.plans) == 1
    assert suite.cells("numpy")
