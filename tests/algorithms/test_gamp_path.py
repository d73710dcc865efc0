"""The way of message passing to its fixed point: where it ends, and runs beside it, also away from the Bayes-optimal line."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_algorithms.gamp.algorithm import Gamp

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions
from smimbench.theory.predictions import solve


def sequence(channel, tokens=2):
    return smimbench.Problem({"name": "sequence-multi-index", "tokens": tokens}, channel, "gaussian")


LINE = sequence({"name": "linear", "noise": 0.1})
PAIR = sequence({"name": "linear", "noise": 0.2, "components": 2})
PROBIT = sequence({"name": "probit", "noise": 0.5})
SOFTMAX = sequence({"name": "softmax", "layers": 1})
MATRIX = smimbench.Problem({"name": "attention-indexed", "tokens": 2}, "linear", {"name": "wishart", "rho": 0.5})


def path(problem, alpha, **conditions):
    asked = Conditions(trajectory=True, **conditions)
    return Gamp(damping=0.0).theory(problem, alpha, asked)["trajectory"]


@pytest.mark.parametrize("problem", [LINE, PAIR, PROBIT, MATRIX], ids=["linear", "two components", "probit", "matrix"])
def test_it_ends_at_the_fixed_point(problem):
    alpha = 0.05 if problem is MATRIX else 0.5
    found = path(problem, alpha)
    expected = solve(problem, [alpha])[0]
    assert found["iteration"] == list(range(len(found["mse"])))
    np.testing.assert_allclose(found["mse"][-1], expected.mse, rtol=0.02)


@pytest.mark.parametrize(("problem", "informed"), [(LINE, False), (PROBIT, False), (SOFTMAX, True)])
def test_undamped_runs_follow_it(problem, informed):
    """Six runs at D = 400, every iteration within four standard errors and 3%; from the teacher with noise, too."""
    alpha, runs, steps, backend, algorithm = 0.5, 6, 6, get_backend(), Gamp(damping=0.0)
    curves, starts = [], []
    for run in range(runs):
        instance = problem.instance(alpha, 400, run)
        start = problem.start(instance, 9.0, np.random.default_rng(run), backend, informed=True) if informed else None
        data = instance.data(backend, start)
        state = algorithm.init(problem, data, np.random.default_rng(run))
        starts.append(instance.overlaps(algorithm.estimate(state)))
        curve = []
        for _ in range(steps):
            state, _ = algorithm.step(problem, data, state)
            curve.append(instance.metrics(algorithm.estimate(state))["mse"][0])
        curves.append(curve)
    start = "informed" if informed else "uninformed"
    wanted = np.ravel(path(problem, alpha, start=start, starts=tuple(starts), iterations=steps)["mse"])
    wanted = np.pad(wanted, (0, steps), mode="edge")[1 : steps + 1]
    error = np.std(curves, axis=0, ddof=1) / np.sqrt(runs)
    assert (np.abs(np.mean(curves, axis=0) - wanted) < 4 * error + 0.03 * wanted).all()


def test_no_path_where_it_would_not_be_exact():
    asked = Conditions(trajectory=True)
    assert "trajectory" not in Gamp().theory(LINE, 0.5, asked)  # the damping adapts
    assert "trajectory" not in Gamp(damping=0.3).theory(LINE, 0.5, asked)
    assert "trajectory" not in Gamp(damping=0.0).theory(SOFTMAX, 0.5, asked._replace(start="spectral"))


def test_branches_go_by_the_start():
    matrix = smimbench.Problem({"name": "attention-indexed", "tokens": 2}, "linear", {"name": "wishart", "rho": 0.5})
    points = tuple(
        {"alpha": 1.0, "mse": mse, "mse_error": 0.0, "overlap": [[1 - mse]], "branch": branch, "method": "m"}
        for mse, branch in ((0.1, "informed"), (0.6, "uninformed"))
    )
    asked = Conditions(points=points)
    assert Gamp().theory(matrix, 1.0, asked)["mse"] == 0.6
    assert Gamp().theory(matrix, 1.0, asked._replace(start="informed"))["mse"] == 0.1
