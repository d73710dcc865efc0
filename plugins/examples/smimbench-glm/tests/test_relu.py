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
    """The rectifier passes every published check, with one token and with three."""

    check()


@pytest.mark.parametrize("q", [1e-6, 0.3, 0.9, 0.9999])
def test_information_is_the_integral_over_label_and_estimate(q):
    """The information at the overlap q and error v = 1 - q is an integral over omega, the latent's mean, and over the label."""

    v = 1 - q
    standard_deviation = math.sqrt(v)

    def information_at(omega):
        """Squared message ``E g^2`` given omega: labels above 0 reveal the latent z, labels 0 only that z is negative."""
        positive_part = quad(
            lambda z: ((z - omega) / v) ** 2 * norm.pdf(z, omega, standard_deviation),
            0,
            max(omega, 0) + 12 * standard_deviation,
        )[0]
        probability_of_zero = norm.cdf(-omega / standard_deviation)
        if probability_of_zero < 1e-12:
            return positive_part
        mean_of_zero_label = quad(
            lambda z: (z - omega) / v * norm.pdf(z, omega, standard_deviation),
            min(omega, 0) - 12 * standard_deviation,
            0,
        )[0]
        return positive_part + mean_of_zero_label**2 / probability_of_zero

    edges = (
        [-9, -12 * standard_deviation, 0, 12 * standard_deviation, 9]
        if q > 0.5
        else [-9, 9]
    )
    panel_integrals = [
        quad(
            lambda unit_omega: (
                information_at(math.sqrt(q) * unit_omega) * norm.pdf(unit_omega)
            ),
            lower_edge,
            upper_edge,
            limit=200,
        )[0]
        for lower_edge, upper_edge in itertools.pairwise(edges)
    ]
    engine_information = Relu().information(np.array([[q]]), np.array([[v]]))
    assert engine_information.value[0, 0] == pytest.approx(
        sum(panel_integrals), rel=1e-6
    )


def test_gaussian_signals_are_found_from_twice_as_many_labels():
    """Gaussian signals are recovered perfectly above a sample ratio of 2, where the positive half of the labels gives as many
    equations as unknowns.
    """

    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1}, "relu", "gaussian"
    )
    assert thresholds(problem).perfect_recovery.value == pytest.approx(2.0, abs=1e-6)
