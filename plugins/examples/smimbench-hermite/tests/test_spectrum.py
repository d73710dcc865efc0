"""Matrices with the spectrum of Wishart matrices: the published checks, moments, and the limit of the built-in prior."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_hermite import WishartSpectrum

import smimbench
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve


@parametrize_with_checks([WishartSpectrum(), WishartSpectrum(0.5)])
def test_contract(check):
    """The prior passes every published check."""
    check()


@pytest.mark.parametrize("rho", [0.3, 1.0, 2.5])
def test_moments_of_the_law(rho):
    """Mean ``sqrt(rho)``, variance 1, third cumulant ``1 / sqrt(rho)``."""
    u = (np.arange(400_000) + 0.5) / 400_000
    eigenvalues = WishartSpectrum(rho).law.quantile(u)
    assert eigenvalues.mean() == pytest.approx(rho**0.5, abs=1e-5)
    deviation = eigenvalues - rho**0.5
    assert np.mean(deviation**2) == pytest.approx(1, abs=1e-4)
    assert np.mean(deviation**3) == pytest.approx(rho**-0.5, abs=1e-3)


def test_signals_are_those_of_wishart_matrices():
    model = {"name": "attention-indexed", "tokens": 2}
    channel = {"name": "linear", "noise": 0.1}
    problems = [
        smimbench.Problem(model, channel, {"name": name, "rho": 0.5})
        for name in ("wishart-spectrum", "wishart")
    ]
    for problem in problems:
        assert problem.prior.second_moment(1) == pytest.approx(1.5, abs=1e-3)
    point, expected = (solve(problem, [0.2])[0] for problem in problems)
    assert point.mse[0] == pytest.approx(expected.mse[0], rel=5e-3)


def test_bad_parameters_are_named():
    with pytest.raises(smimbench.ParameterError, match="rho"):
        WishartSpectrum(0.0)
