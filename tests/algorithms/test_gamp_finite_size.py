"""The closed 1/D correction against exact posterior means of small sizes, and in the tables of a suite."""

from __future__ import annotations

import math

import numpy as np
import pytest
from smimbench_algorithms.gamp.theory import first_correction

import smimbench
from smimbench.theory.predictions import solve
from tests.helpers import LINE, attention, sequence, suite_text, write_suite


@pytest.mark.parametrize(("alpha", "tokens", "noise"), [(0.8, 2, 0.1), (0.3, 1, 0.5), (2.0, 3, 1.0)])
def test_it_is_what_exact_posterior_means_miss_the_limit_by(alpha, tokens, noise):
    """``E tr (1 + X^T X / (D noise))^{-1} / D`` over many draws, which needs neither signal nor labels."""
    problem = sequence("linear", tokens, noise=noise)
    rng = np.random.default_rng(0)
    (limit,) = solve(problem, [alpha])[0].mse
    (b,) = first_correction(problem, alpha)
    for D, draws in ((10, 20000), (20, 8000)):
        x = rng.standard_normal((draws, round(alpha * D) * tokens, D))
        gram = np.swapaxes(x, 1, 2) @ x / (D * noise)
        values = np.mean(1 / (1 + np.linalg.eigvalsh(gram)), axis=1)
        error = values.std() / math.sqrt(draws)
        second = abs(b) / D**2  # the next order
        assert values.mean() == pytest.approx(limit + b / D, abs=3.5 * error + 3 * second)
        assert abs(values.mean() - limit) > 5 * error


def test_where_no_closed_form_is_known_there_is_none():
    assert first_correction(sequence("hardmax"), 1.0) is None
    assert first_correction(sequence("linear", noise=0.0), 1.0) is None
    assert first_correction(attention("linear", noise=0.1), 0.1) is None


def test_it_stands_beside_the_fitted_one(tmp_path):
    text = (
        suite_text(LINE, [1.0], 0, 0, 'name = "gamp"')
        .replace("[0]", "[10, 20, 40]")
        .replace("seeds     = 0", "seeds = [60, 40, 30]")
    )
    rows = smimbench.run(write_suite(tmp_path, text), results=tmp_path / "results")
    found = {entry["metric"]: entry for entry in smimbench.extrapolate(rows)}
    exact = first_correction(sequence("linear", noise=0.2), 1.0)[0]
    assert found["mse"]["own_coefficient"] == pytest.approx(exact)
    assert found["mse"]["coefficient"] == pytest.approx(exact, abs=4 * found["mse"]["coefficient_error"])
    assert found["overlap"]["own_coefficient"] is None
