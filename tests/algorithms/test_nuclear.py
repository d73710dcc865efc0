"""Nuclear-norm regression: optimality conditions, recovery below the dense count of equations, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_algorithms.least_squares import LeastSquares, seen_by_labels
from smimbench_algorithms.nuclear.algorithm import Nuclear
from smimbench_algorithms.ridge import Ridge

from smimbench.backend.device import get_backend
from smimbench.problem.problem import Problem
from tests.helpers import run_once


def attention(channel, rho=0.5):
    return Problem({"name": "attention-indexed", "tokens": 2}, channel, {"name": "wishart", "rho": rho})


def solve(problem, instance, algorithm, backend=None, tolerance=1e-9, iterations=4000):
    return run_once(problem, instance, algorithm, backend, tolerance=tolerance, max_iterations=iterations)


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("channel", [{"name": "linear", "noise": 0.3}, {"name": "softmax"}])
def test_solution_satisfies_the_optimality_conditions(positive, channel):
    """The slope of the loss is tau times a subgradient of the norm: U U^T on the range, at most tau off it."""
    problem = attention(channel)
    instance = problem.instance(0.5, 14)
    tau = 0.4
    S = solve(problem, instance, Nuclear(tau, positive=positive)).estimate
    data = instance.data(get_backend())
    squares = LeastSquares(problem, seen_by_labels(problem), data.inputs, data.labels)
    slope = squares.normal(S, targets=True)[0][0]
    values, vectors = np.linalg.eigh(S[0])
    kept = np.abs(values) > 1e-6
    assert kept.any()
    assert not kept.all()
    turned = vectors.T @ slope @ vectors
    assert np.allclose(turned[np.ix_(kept, kept)], tau * np.diag(np.sign(values[kept])), atol=2e-5)
    rest = np.linalg.eigvalsh(turned[np.ix_(~kept, ~kept)])
    assert np.allclose(turned[np.ix_(kept, ~kept)], 0, atol=2e-5)
    assert rest.max() <= tau + 1e-5
    if positive:
        assert (values > -1e-12).all()
    else:
        assert rest.min() >= -tau - 1e-5


def test_slope_is_the_derivative_of_the_loss(rng):
    problem = attention({"name": "linear", "noise": 0.3, "noise_convention": "plain"})
    instance = problem.instance(0.3, 8)
    data = instance.data(get_backend())
    squares = LeastSquares(problem, seen_by_labels(problem), data.inputs, data.labels)
    S = problem.prior.sample(rng, 1, 8)
    along = problem.prior.sample(rng, 1, 8)
    slope = squares.normal(S, targets=True)[0]
    h = 1e-4
    ends = [float(squares.normal(S + s * h * along, targets=True)[1]) for s in (1, -1)]
    # (1/d) sum w r^2 has the gradient -slope.
    assert -(ends[0] - ends[1]) / (2 * h) / 8 == pytest.approx(float((slope * along).sum()), rel=1e-6)
    assert squares.noise == pytest.approx(0.15)  # plain noise counts half on the diagonal


def test_power_iteration_bounds_the_curvature(rng):
    problem = attention({"name": "softmax"})
    data = problem.instance(0.4, 9).data(get_backend())
    squares = LeastSquares(problem, seen_by_labels(problem), data.inputs, data.labels)
    columns = []
    for i in range(9):
        for j in range(i, 9):
            unit = np.zeros((1, 9, 9))
            unit[0, i, j] = unit[0, j, i] = 1 if i == j else np.sqrt(0.5)
            columns.append((unit, squares.normal(unit)[0]))
    dense = np.array([[float((a * b).sum()) for _, b in columns] for a, _ in columns])
    top = np.linalg.eigvalsh((dense + dense.T) / 2)[-1]
    assert 0.98 * top < squares.lipschitz(rng) < 1.05 * top


def test_low_rank_is_recovered_where_least_squares_cannot():
    problem = attention({"name": "softmax"}, rho=0.1)
    instance = problem.instance(0.18, 30)  # 4 * 0.18 < 1 equations per unknown of a full matrix
    low = solve(problem, instance, Nuclear(0.01), tolerance=1e-6, iterations=1500)
    dense = solve(problem, instance, Ridge(), tolerance=1e-6)
    assert low.metrics["mse"][0] < 0.02
    assert dense.metrics["mse"][0] > 0.2


def test_validation_is_as_good_as_the_best_of_a_grid():
    problem = attention({"name": "linear", "noise": 0.3}, rho=0.3)
    instance = problem.instance(0.25, 24)
    chosen = solve(problem, instance, Nuclear(), tolerance=1e-5)
    grid = [
        solve(problem, instance, Nuclear(tau), tolerance=1e-5).metrics["mse"][0] for tau in (0.03, 0.1, 0.3, 1.0, 3.0)
    ]
    assert chosen.metrics["mse"][0] < 1.25 * min(grid)
    assert any("chosen by validation" in warning for warning in chosen.warnings)


@pytest.mark.parametrize(("noise", "tau"), [(0.3, 0.3), (0.0, 0.02)])
def test_single_precision_ends_where_its_rounding_does(noise, tau):
    """The certificate cannot be finer than its numbers: what may be rounding does not keep a run from ending."""
    problem = attention({"name": "linear", "noise": noise}, rho=0.3)
    instance = problem.instance(0.12, 30)
    fine = solve(problem, instance, Nuclear(tau), tolerance=1e-4)
    coarse = solve(problem, instance, Nuclear(tau), get_backend(dtype="float32"), tolerance=1e-4)
    assert coarse.status.value == "ok"
    assert coarse.iterations < 1.5 * fine.iterations
    assert coarse.metrics["mse"][0] == pytest.approx(fine.metrics["mse"][0], rel=1e-3)
