"""Priors of a given spectrum: the published checks, and the built-in Wishart matrices from their quantiles."""

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
    """The prior passes every published check."""
    check()


def marchenko_pastur(rho: float, count: int) -> np.ndarray:
    """Quantiles (``count``) of the eigenvalues x of ``W W^T / sqrt(r d)`` with r / d = rho > 1, so that none is zero."""
    left_edge, right_edge = (
        math.sqrt(rho) * (1 + sign / math.sqrt(rho)) ** 2 for sign in (-1, 1)
    )
    x = (
        left_edge
        + (right_edge - left_edge) * (1 - np.cos(np.linspace(0, math.pi, 4001))) / 2
    )
    density = np.sqrt(np.maximum((x - left_edge) * (right_edge - x), 0)) / x
    cumulative = np.concatenate(
        [[0], np.cumsum((density[1:] + density[:-1]) * np.diff(x) / 2)]
    )
    return np.interp((np.arange(count) + 0.5) / count, cumulative / cumulative[-1], x)


def test_quantiles_of_wishart_matrices_give_the_curve_of_wishart_matrices():
    """A spectrum given by quantiles of Wishart matrices has the same theoretical errors as the Wishart prior."""
    channel = {"name": "linear", "noise": 0.1}
    quantiles = tuple(float(quantile) for quantile in marchenko_pastur(2.0, 400))
    problem_from_quantiles = smimbench.Problem(
        MODEL, channel, {"name": "spectrum", "eigenvalues": quantiles}
    )
    wishart_problem = smimbench.Problem(MODEL, channel, {"name": "wishart", "rho": 2.0})
    for quantile_point, wishart_point in zip(
        solve(problem_from_quantiles, [0.1, 0.3]), solve(wishart_problem, [0.1, 0.3])
    ):
        assert quantile_point.mse[0] == pytest.approx(wishart_point.mse[0], abs=3e-3)


def test_spectrum_of_what_is_drawn():
    """Eigenvalues of a drawn signal have unit variance and the quantiles that were asked for."""
    problem = smimbench.Problem(
        MODEL, "linear", {"name": "spectrum", "eigenvalues": (0.0, 1.0, 4.0)}
    )
    signal = problem.prior.sample(np.random.default_rng(1), 1, 300)[0]
    drawn_eigenvalues = np.linalg.eigvalsh(signal)
    assert drawn_eigenvalues.var() == pytest.approx(1, rel=0.01)
    expected_quantiles = Spectrum((0.0, 1.0, 4.0)).law.quantile(
        (np.arange(300) + 0.5) / 300
    )
    assert np.corrcoef(drawn_eigenvalues, expected_quantiles)[0, 1] == pytest.approx(
        1, abs=1e-9
    )


@pytest.mark.parametrize("eigenvalues", [(1.0,), (2.0, 2.0), (0.0, math.inf)])
def test_bad_parameters_are_named(eigenvalues):
    """Eigenvalues that are not finite or all equal raise an error that names the parameter."""
    with pytest.raises(smimbench.ParameterError, match="eigenvalues"):
        Spectrum(eigenvalues)
