"""Spectra of one's own: the published checks, and the built-in Wishart matrices from their quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from smimbench_sparse import Spectrum

import smimbench
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve

MODEL = {"name": "attention-indexed", "tokens": 2}


@parametrize_with_checks([Spectrum()])
def test_contract(check):
    check()


def marchenko_pastur(rho: float, count: int) -> np.ndarray:
    """Quantiles of ``W W^T / sqrt(r d)`` with r / d = rho > 1: no atom at zero."""
    low, high = (math.sqrt(rho) * (1 + s / math.sqrt(rho)) ** 2 for s in (-1, 1))
    x = low + (high - low) * (1 - np.cos(np.linspace(0, math.pi, 4001))) / 2
    density = np.sqrt(np.maximum((x - low) * (high - x), 0)) / x
    cumulative = np.concatenate(
        [[0], np.cumsum((density[1:] + density[:-1]) * np.diff(x) / 2)]
    )
    return np.interp((np.arange(count) + 0.5) / count, cumulative / cumulative[-1], x)


def test_quantiles_of_wishart_matrices_give_the_curve_of_wishart_matrices():
    channel = {"name": "linear", "noise": 0.1}
    values = tuple(float(v) for v in marchenko_pastur(2.0, 400))
    ours = smimbench.Problem(
        MODEL, channel, {"name": "spectrum", "eigenvalues": values}
    )
    theirs = smimbench.Problem(MODEL, channel, {"name": "wishart", "rho": 2.0})
    for one, other in zip(solve(ours, [0.1, 0.3]), solve(theirs, [0.1, 0.3])):
        assert one.mse[0] == pytest.approx(other.mse[0], abs=3e-3)


def test_spectrum_of_what_is_drawn():
    """Unit variance, and the quantiles that were asked for."""
    problem = smimbench.Problem(
        MODEL, "linear", {"name": "spectrum", "eigenvalues": (0.0, 1.0, 4.0)}
    )
    drawn = problem.prior.sample(np.random.default_rng(1), 1, 300)[0]
    values = np.linalg.eigvalsh(drawn)
    assert values.var() == pytest.approx(1, rel=0.01)
    known = Spectrum((0.0, 1.0, 4.0)).law.quantile((np.arange(300) + 0.5) / 300)
    assert np.corrcoef(values, known)[0, 1] == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("eigenvalues", [(1.0,), (2.0, 2.0), (0.0, math.inf)])
def test_bad_parameters_are_named(eigenvalues):
    with pytest.raises(smimbench.ParameterError, match="eigenvalues"):
        Spectrum(eigenvalues)
