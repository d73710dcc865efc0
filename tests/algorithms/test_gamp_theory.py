"""Trajectories of GAMP to its fixed point, on and off the Bayes-optimal line, and the closed 1/D correction."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.algorithms.gamp import Gamp
from smimbench_attention.algorithms.gamp import theory as gamp_theory
from smimbench_attention.algorithms.gamp.assumed import (
    SMALLEST_ERROR,
    MismatchedRecursion,
    Orders,
)
from smimbench_attention.algorithms.gamp.theory import ACCURACY, finite_size_correction

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions, Overlaps
from smimbench.problem import Problem
from smimbench.theory.predictions import solve
from tests.helpers import LINE, attention, sequence, suite_text, write_suite

NOISY_LINE = sequence("linear", noise=0.1)
PAIR = sequence("linear", noise=0.2, components=2)
PROBIT = sequence("probit", noise=0.5)
SOFTMAX = sequence(layers=1)
MATRIX = attention("linear")


def path(problem, alpha, **conditions):
    asked = Conditions(trajectory=True, **conditions)
    return Gamp(damping=0.0).theory(problem, alpha, asked).trajectory


@pytest.mark.parametrize(
    "problem",
    [NOISY_LINE, PAIR, PROBIT, MATRIX],
    ids=["linear", "two components", "probit", "matrix"],
)
def test_it_ends_at_the_fixed_point(problem):
    alpha = 0.05 if problem is MATRIX else 0.5
    found = path(problem, alpha)
    expected = solve(problem, [alpha])[0]
    assert found["iteration"] == list(range(len(found["mse"])))
    assert_allclose(found["mse"][-1], expected.mse, rtol=0.02)


@pytest.mark.parametrize(
    ("problem", "informed"), [(NOISY_LINE, False), (PROBIT, False), (SOFTMAX, True)]
)
def test_undamped_runs_follow_it(problem, informed):
    """Six runs at D = 400, every iteration within four standard errors and 3%; from the teacher with noise, too."""
    alpha, runs, steps, backend, algorithm = 0.5, 6, 6, get_backend(), Gamp(damping=0.0)
    curves, starts = [], []
    for run in range(runs):
        instance = problem.instance(alpha, 400, run)
        start = (
            problem.start(instance, 9.0, np.random.default_rng(run), backend)
            if informed
            else None
        )
        data = instance.data(backend, start)
        state = algorithm.init(problem, data, np.random.default_rng(run))
        starts.append(instance.overlaps(algorithm.estimate(state)))
        curve = []
        for _ in range(steps):
            state, _ = algorithm.step(problem, data, state)
            curve.append(instance.metrics(algorithm.estimate(state))["mse"][0])
        curves.append(curve)
    start = "informed" if informed else "uninformed"
    wanted = np.ravel(
        path(problem, alpha, start=start, starts=tuple(starts), iterations=steps)["mse"]
    )
    wanted = np.pad(wanted, (0, steps), mode="edge")[1 : steps + 1]
    error = np.std(curves, axis=0, ddof=1) / np.sqrt(runs)
    assert (np.abs(np.mean(curves, axis=0) - wanted) < 4 * error + 0.03 * wanted).all()


def test_no_path_where_it_would_not_be_exact():
    asked = Conditions(trajectory=True)
    assert isinstance(
        Gamp().theory(NOISY_LINE, 0.5, asked).trajectory, str
    )  # the damping adapts
    assert isinstance(Gamp(damping=0.3).theory(NOISY_LINE, 0.5, asked).trajectory, str)
    assert isinstance(
        Gamp(damping=0.0)
        .theory(SOFTMAX, 0.5, asked._replace(start="spectral"))
        .trajectory,
        str,
    )


def test_branches_go_by_the_start():
    points = tuple(
        {
            "alpha": 1.0,
            "mse": mse,
            "mse_error": 0.0,
            "overlap": [[1 - mse]],
            "branch": branch,
            "method": "m",
        }
        for mse, branch in ((0.1, "informed"), (0.6, "uninformed"))
    )
    asked = Conditions(points=points)
    assert Gamp().theory(MATRIX, 1.0, asked).mse == 0.6
    assert Gamp().theory(MATRIX, 1.0, asked._replace(start="informed")).mse == 0.1


WISHART = attention(rho=0.4, beta=1.2)


def test_matrices_start_and_end_where_theory_does():
    """Norms of the teachers at hand are no part of the limit: not of a path from the prior mean, nor of an informed one."""
    alpha, size, backend = 0.3, 60, get_backend()
    instances = [WISHART.instance(alpha, size, run) for run in range(4)]
    plain = tuple(
        one.overlaps(np.asarray(WISHART.prior.mean(1, size))) for one in instances
    )
    found = np.ravel(
        path(WISHART, alpha, starts=plain, dimension=size, iterations=40)["mse"]
    )
    assert (np.diff(found) < 0).all()
    assert 0 <= found[-1] < 1e-9
    assert_allclose(
        found,
        np.ravel(path(WISHART, alpha, iterations=40)["mse"]),
        rtol=1e-9,
        atol=1e-15,
    )

    drawn = [
        WISHART.start(one, 4.0, np.random.default_rng(run), backend)
        for run, one in enumerate(instances)
    ]
    starts = tuple(
        one.overlaps(np.asarray(start.estimate)) for one, start in zip(instances, drawn)
    )
    found = np.ravel(
        path(
            WISHART,
            alpha,
            start="informed",
            starts=starts,
            dimension=size,
            iterations=40,
        )["mse"]
    )
    assert_allclose(
        found[0], float(WISHART.prior.overlap(np.array([[4.0]])).V[0, 0]), rtol=0.1
    )
    assert (np.diff(found) < 0).all()
    assert 0 <= found[-1] < 1e-9


def random_start(problem, overlap, dimension):
    """A start of this overlap with itself, and with the signal of one standard deviation of chance."""
    identity = np.eye(problem.components)
    return Overlaps(
        identity, np.sqrt(overlap / dimension) * identity, overlap * identity
    )


@pytest.mark.slow
def test_a_random_start_ends_at_the_fixed_point():
    """Far off the line, where the overlap is 30 times the one that is claimed; every set of points comes to the same end."""
    start = random_start(SOFTMAX, 1e-6, 1000)
    found = path(SOFTMAX, 0.7, starts=(start,), dimension=1000)
    mse, error = np.ravel(found["mse"]), np.ravel(found["mse_error"])
    assert mse[0] > 0.999
    assert mse[-1] < 1e-7  # perfect recovery
    assert (np.diff(mse) < 1e-12).all()
    assert 1e-4 < error.max() < 0.05
    assert error[-1] < 1e-7


def test_on_the_line_sampled_steps_are_those_of_the_line():
    """What is known of the line corrects the sampled means: a sampled step from the line goes where the line does."""
    V, alpha, one = np.array([[0.4]]), 0.7, np.eye(1)
    Qhat = alpha * SOFTMAX.channel.information(one - V, V).value
    line = Orders.bayes_optimal(one, SOFTMAX.prior.overlap(Qhat).V)
    for seed in range(2):
        step = MismatchedRecursion(SOFTMAX, SOFTMAX, alpha, seed).step(
            Orders.bayes_optimal(one, V)
        )
        for sampled, exact in zip(step, line):
            assert_allclose(sampled, exact, atol=10 * SMALLEST_ERROR)


def test_a_path_that_is_not_known_is_refused(monkeypatch):
    monkeypatch.setattr(
        gamp_theory, "ACCURACY", ACCURACY._replace(largest_relative_error=1e-6)
    )
    asked = Conditions(
        trajectory=True,
        starts=(random_start(SOFTMAX, 1e-6, 1000),),
        dimension=1000,
        iterations=12,
    )
    found = Gamp(damping=0.0).theory(SOFTMAX, 0.7, asked)
    assert "not known" in found.trajectory


def test_a_path_that_rests_elsewhere_is_refused():
    """A point that is not the one the recursion comes to."""
    point = {
        "alpha": 0.5,
        "mse": 0.9,
        "mse_error": 0.0,
        "overlap": [[0.1]],
        "branch": "unique",
        "method": "m",
    }
    found = Gamp(damping=0.0).theory(
        NOISY_LINE, 0.5, Conditions(trajectory=True, points=(point,))
    )
    assert "trajectory ends at" in found.trajectory


@pytest.mark.parametrize(
    ("alpha", "tokens", "noise"), [(0.8, 2, 0.1), (0.3, 1, 0.5), (2.0, 3, 1.0)]
)
def test_it_is_what_exact_posterior_means_miss_the_limit_by(alpha, tokens, noise):
    """``E tr (1 + X^T X / (D noise))^{-1} / D`` over many draws, which needs neither signal nor labels."""
    problem = sequence("linear", tokens, noise=noise)
    rng = np.random.default_rng(0)
    (limit,) = solve(problem, [alpha])[0].mse
    (b,) = finite_size_correction(problem, alpha)
    for D, draws in ((10, 20000), (20, 8000)):
        x = rng.standard_normal((draws, round(alpha * D) * tokens, D))
        gram = np.swapaxes(x, 1, 2) @ x / (D * noise)
        values = np.mean(1 / (1 + np.linalg.eigvalsh(gram)), axis=1)
        error = values.std() / math.sqrt(draws)
        second = abs(b) / D**2  # the next order
        assert values.mean() == pytest.approx(
            limit + b / D, abs=3.5 * error + 3 * second
        )
        assert abs(values.mean() - limit) > 5 * error


def test_where_no_closed_form_is_known_there_is_none():
    assert finite_size_correction(sequence("hardmax"), 1.0) is None
    assert finite_size_correction(sequence("linear", noise=0.0), 1.0) is None
    assert finite_size_correction(attention("linear", noise=0.1), 0.1) is None
    correlated = {"name": "correlated-tokens", "decay": 0.9}
    model, channel = (
        {"name": "sequence-multi-index", "tokens": 2},
        {"name": "linear", "noise": 0.1},
    )
    assert (
        finite_size_correction(Problem(model, channel, "gaussian", correlated), 0.6)
        is None
    )


@pytest.mark.slow
def test_it_stands_beside_the_fitted_one(tmp_path):
    text = (
        suite_text(LINE, [1.0], 0, 0, 'name = "gamp"')
        .replace("[0]", "[10, 20, 40]")
        .replace("seeds     = 0", "seeds = [60, 40, 30]")
    )
    rows = smimbench.run(write_suite(tmp_path, text), results=tmp_path / "results")
    found = {entry["metric"]: entry for entry in smimbench.extrapolate(rows)}
    exact = finite_size_correction(sequence("linear", noise=0.2), 1.0)[0]
    assert found["mse"]["own_coefficient"] == pytest.approx(exact)
    assert found["mse"]["coefficient"] == pytest.approx(
        exact, abs=4 * found["mse"]["coefficient_error"]
    )
    assert found["overlap"]["own_coefficient"] is None
