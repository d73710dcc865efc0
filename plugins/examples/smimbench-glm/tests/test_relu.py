"""The rectifier: the published checks, its information against an independent integral, and its limits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from smimbench_glm import Relu

import smimbench
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import thresholds


@parametrize_with_checks([Relu(), Relu(tokens=3)])
def test_contract(check):
    check()


@pytest.mark.parametrize("q", [1e-6, 0.3, 0.9, 0.9999])
def test_information_is_the_integral_over_label_and_estimate(q):
    v = 1 - q
    root = math.sqrt(v)

    def squared(omega):
        """``E g^2`` given omega: labels above 0 tell z, labels 0 that it is below."""
        seen = quad(
            lambda z: ((z - omega) / v) ** 2 * norm.pdf(z, omega, root),
            0,
            max(omega, 0) + 12 * root,
        )[0]
        hidden = norm.cdf(-omega / root)
        if hidden < 1e-12:
            return seen
        low = quad(
            lambda z: (z - omega) / v * norm.pdf(z, omega, root),
            min(omega, 0) - 12 * root,
            0,
        )[0]
        return seen + low**2 / hidden

    edges = [-9, -12 * root, 0, 12 * root, 9] if q > 0.5 else [-9, 9]
    parts = [
        quad(lambda t: squared(math.sqrt(q) * t) * norm.pdf(t), a, b, limit=200)[0]
        for a, b in itertools.pairwise(edges)
    ]
    found = Relu().information(np.array([[q]]), np.array([[v]]))
    assert found.value[0, 0] == pytest.approx(sum(parts), rel=1e-6)


def test_gaussian_signals_are_found_from_twice_as_many_labels():
    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1}, "relu", "gaussian"
    )
    assert thresholds(problem).perfect_recovery.value == pytest.approx(2.0, abs=1e-6)
