"""Wrong assumptions: the state evolution of mismatched GAMP against Bayes-optimal curves, closed forms, plain draws and runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from smimbench_attention.algorithms.erm import Erm
from smimbench_attention.algorithms.gamp import Gamp, assumed, assumed_theory
from smimbench_attention.algorithms.ridge import Ridge

from smimbench.interfaces import Conditions
from smimbench.problem import Problem, ProblemError
from smimbench.problem.problem import AlgorithmWithAssumption, assumed_problem
from smimbench.registry.registry import RegistryError, get_registry
from smimbench.report.rows import prediction_of
from smimbench.report.theory_document import theory_of_suite, with_predictions
from smimbench.run.cell import run_cell
from smimbench.run.theory_draws import draw_checks
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite import SuiteError
from smimbench.suite.reader import parse_suite
from smimbench.theory import competing, own_theory
from tests.helpers import attention, run_once, sequence


@pytest.fixture(autouse=True)
def _few_points(monkeypatch):
    _set_accuracy(
        monkeypatch,
        latent_points=2**9,
        trajectory_points=2**9,
        signal_entries=2**10,
        point_sets=2,
    )


def _set_accuracy(monkeypatch, **settings):
    accuracy = assumed.ACCURACY._replace(**settings)
    for module in (assumed, assumed_theory):
        monkeypatch.setattr(module, "ACCURACY", accuracy)


def recursion(problem, other, alpha):
    return assumed.MismatchedRecursion(problem, other, alpha, 0)


def end(problem, other, alpha):
    found = recursion(problem, other, alpha)
    return found.fixed_point(found.initial_orders(1e-4))


def error(at, second):
    return float((second - at.M - at.M.T + at.Q)[0, 0])


RIGHT = [
    (attention("linear", rho=0.3, noise=0.3), 0.2),
    (attention("softmax", rho=0.3), 0.1),
    (sequence("linear", noise=0.3), 0.6),
    (sequence("probit"), 0.9),
    pytest.param(attention("hardmax", rho=0.3), 0.8, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("problem", "alpha"), RIGHT)
def test_the_right_assumption_is_bayes_optimal(problem, alpha):
    """The recursion of three matrices ends where the Bayes-optimal curve is, whatever points it is sampled with."""
    (best, *_), at = competing(problem, [alpha])[0], end(problem, problem, alpha)
    far = (
        1e-10
        if problem.channel.name != "hardmax" or problem.model.rank == "low"
        else 1e-8
    )  # of the quadrature there
    assert np.allclose(at.M, best.Q, rtol=0, atol=far)
    assert np.allclose(at.Q, best.Q, rtol=0, atol=far)
    assert np.allclose(at.V, best.V, rtol=0, atol=far)


def wrong(rng):
    """A random problem with a random wrong assumption."""
    kind = rng.integers(5)
    noise, other, beta, alpha = 10 ** rng.uniform(
        [-1.5, -1.5, -0.4, -1], [0.5, 0.5, 0.4, 0]
    )
    rho = rng.uniform(0.1, 1.5, 2)
    if kind == 0:
        return (
            attention("linear", rho=rho[0], noise=noise),
            {"channel": {"noise": other}},
            alpha,
        )
    if kind == 1:
        return (
            attention("linear", rho=rho[0], noise=noise),
            {"prior": {"rho": rho[1]}},
            alpha,
        )
    if kind == 2:
        return (
            attention("softmax", rho=rho[0], beta=1.0),
            {"channel": {"beta": beta}},
            alpha * min(rho[0], 1) / 4,
        )
    if kind == 3:
        return sequence("probit", noise=noise), {"channel": {"noise": other}}, 3 * alpha
    return sequence("linear", noise=noise), {"channel": {"noise": other}}, 3 * alpha


@pytest.mark.slow
def test_no_wrong_assumption_is_better_than_bayes():
    rng, solved = np.random.default_rng(5), 0
    for _ in range(30):
        problem, tables, alpha = wrong(rng)
        best = competing(problem, [alpha])[0][0]
        found = recursion(problem, assumed_problem(problem, tables), alpha)
        try:
            at = found.fixed_point(found.initial_orders(1e-4))
        except assumed.NoFixedPoint:
            continue
        solved += 1
        assert error(at, found.T[0, 0]) > float(best.V[0, 0]) - 1e-9
    assert solved >= 25


@pytest.mark.parametrize(
    ("noise", "assumed", "components"),
    [(0.3, 0.0, 1), (0.3, 0.05, 2), (0.0, 0.4, 1), (0.1, 2.0, 3)],
)
@pytest.mark.parametrize("alpha", [0.2, 0.9])
def test_linear_labels_and_a_gaussian_signal_have_a_closed_form(
    noise, assumed, components, alpha
):
    """That of ridge, and what GAMP claims is the optimal error of the assumed problem."""
    problem = sequence("linear", noise=noise, components=components)
    tables = {"channel": {"noise": assumed}}
    other = assumed_problem(problem, tables)
    point = Gamp().theory(problem, alpha, Conditions(), assumed=other)
    ridge = own_theory(
        AlgorithmWithAssumption(Ridge(), tables), problem, alpha, Conditions()
    )
    assert point.mse == pytest.approx(ridge.mse, rel=1e-12)
    assert (point.mse_error == 0).all()
    claimed = np.array(point.more["calibration"]) * point.mse
    assert claimed == pytest.approx(
        np.diagonal(competing(other, [alpha])[0][0].V), rel=1e-6, abs=1e-11
    )
    assert all(
        abs(check.z) < 5 for check in point.draws() if check.quantity in ("signal", "V")
    )


def test_least_squares_has_no_finite_error_where_equations_are_as_many_as_unknowns():
    problem = sequence("linear", noise=0.3)
    found = Gamp().theory(
        problem,
        0.5,
        Conditions(),
        assumed=assumed_problem(problem, {"channel": {"noise": 0.0}}),
    )
    assert "infinite error" in found


def test_erm_has_the_penalty_that_is_best_for_what_it_assumes():
    problem, tables = sequence("linear", noise=0.3), {"channel": {"noise": 1.1}}
    best = own_theory(Erm(), assumed_problem(problem, tables), 0.7, Conditions()).more[
        "penalty"
    ]
    found = own_theory(
        AlgorithmWithAssumption(Erm(), tables), problem, 0.7, Conditions()
    )
    assert best == pytest.approx(1.1, rel=0.02)  # of a Gaussian signal
    assert found.mse == own_theory(Erm(penalty=best), problem, 0.7, Conditions()).mse


DRAWN = [
    (attention("linear", rho=0.3, noise=0.3), {"prior": {"rho": 0.9}}, 0.2),
    (
        attention("softmax", rho=0.3, beta=1.0),
        {"channel": {"beta": 2.0}},
        0.08,
    ),  # R is half the signal, and noise
    pytest.param(
        sequence("probit", noise=0.3),
        {"channel": {"noise": 0.1}},
        1.0,
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("problem", "tables", "alpha"), DRAWN)
def test_theory_agrees_with_plain_draws(monkeypatch, problem, tables, alpha):
    _set_accuracy(monkeypatch, latent_points=2**12, point_sets=4)
    point = Gamp().theory(
        problem, alpha, Conditions(), assumed=assumed_problem(problem, tables)
    )
    checks = point.draws()
    assert {check.quantity for check in checks} == {"Qhat", "m", "chi", "signal", "V"}
    assert max(abs(check.z) for check in checks) < 4
    assert all(
        abs(replace(check, printed=1.1 * check.printed).z) > 4 for check in checks
    )


@pytest.mark.slow
def test_an_unstable_fixed_point_is_no_prediction_and_its_runs_do_not_converge():
    problem = attention("softmax", rho=0.3, beta=1.0)
    assuming = AlgorithmWithAssumption(Gamp(), {"prior": {"rho": 0.1}})
    said = own_theory(assuming, problem, 0.1, Conditions())
    assert "does not converge: errors grow by 1.1" in said
    found = run_once(
        problem, problem.instance(0.1, 60), assuming, tolerance=3e-3, max_iterations=150
    )
    assert found.status.value == "not-converged"


def test_the_right_assumption_changes_nothing():
    problem = attention("linear", rho=0.3, noise=0.3)
    instance, right = (
        problem.instance(0.2, 30),
        AlgorithmWithAssumption(Gamp(), {"prior": {"rho": 0.3}}),
    )
    plain, assuming = (run_once(problem, instance, one) for one in (Gamp(), right))
    assert np.array_equal(plain.estimate, assuming.estimate)
    assert own_theory(right, problem, 0.2, Conditions()) == own_theory(
        Gamp(), problem, 0.2, Conditions()
    )


def test_an_assumption_that_cannot_be_made_is_explained():
    problem = sequence("linear", noise=0.3)
    with pytest.raises(ProblemError, match=r"channel.beta: unknown key"):
        assumed_problem(problem, {"channel": {"beta": 2.0}})
    with pytest.raises(
        ProblemError, match="must have 1 components, as the signal of the data, got 2"
    ):
        assumed_problem(problem, {"channel": {"components": 2}})
    assert "does not fit this problem" in AlgorithmWithAssumption(
        Gamp(), {"channel": {"beta": 2.0}}
    ).refuses(problem)
    assert assumed_problem(problem, {"channel": {"noise": 0.3}}) is problem
    with pytest.raises(
        ProblemError, match="'probit' cannot be assumed of labels of 'linear'"
    ):
        assumed_problem(problem, {"channel": "probit"})
    with pytest.raises(
        ProblemError, match="'softmax' cannot be assumed of labels of 'linear'"
    ):
        assumed_problem(attention("linear", rho=0.3), {"channel": "softmax"})
    with pytest.raises(ProblemError, match="prior: this prior cannot be assumed"):
        assumed_problem(attention("linear", rho=0.3), {"prior": {"rho": 0.0}})
    assert isinstance(
        assumed_problem(sequence("probit"), {"channel": "linear"}), Problem
    )


@pytest.mark.slow
def test_runs_land_on_the_theory():
    """Errors at two sizes, continued to infinite D, next to the prediction."""
    problem, tables = (
        attention("linear", rho=0.3, noise=0.3),
        {"channel": {"noise": 1.0}, "prior": {"rho": 0.6}},
    )
    point = Gamp().theory(
        problem, 0.2, Conditions(), assumed=assumed_problem(problem, tables)
    )
    ends = []
    for D, count in ((40, 24), (80, 8)):
        runs = [
            run_once(
                problem,
                instance,
                AlgorithmWithAssumption(Gamp(), tables),
                tolerance=3e-3,
            )
            for instance in (
                problem.instance(0.2, D, replicate) for replicate in range(count)
            )
        ]
        assert all(run.status.value == "ok" for run in runs)
        errors = [run.metrics["mse"][0] for run in runs]
        ends.append((np.mean(errors), np.std(errors, ddof=1) / count**0.5))
    (small, s), (large, e) = ends
    assert abs(2 * large - small - point.mse) < 4 * np.hypot(2 * e, s)


SUITE = """
[[problems]]
label = "linear"
model = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "linear", noise = 0.3 }
prior = "gaussian"
[[problems]]
label = "probit"
model = { name = "sequence-multi-index", tokens = 2 }
channel = "probit"
prior = "gaussian"
[grid]
alpha = 0.6
dimension = 20
[[algorithms]]
name = "gamp"
[[algorithms]]
name = "gamp"
label = "wrong"
assumed = { channel = { noise = [0.1, 0.3] } }
[[algorithms]]
name = "ridge"
label = "other labels"
assumed = { channel = { name = "linear", noise = 2.0, components = 1 } }
"""


def test_lists_of_an_assumption_are_an_axis():
    suite = parse_suite(Path("wrong.toml"), SUITE)
    labels = [algorithm.label for algorithm in suite.algorithms]
    assert labels == [
        "gamp",
        "wrong, assumed noise 0.1",
        "wrong, assumed noise 0.3",
        "other labels",
    ]
    first, wrong, *_ = suite.cells()
    assert "assumed" not in first.algorithm
    assert wrong.algorithm["assumed"] == {"channel": {"noise": 0.1}}
    problem, algorithm = wrong.rebuild()
    assert algorithm.assumed(problem).spec["channel"]["noise"] == 0.1
    record = run_cell(suite.cells()[1])
    assert record.status == "ok"
    assert record.metrics["calibration"][0] < 0.9  # it claims too little


def test_the_version_of_an_assumed_item_is_part_of_cells_and_of_their_theory(
    monkeypatch, tmp_path
):
    """The data are of another channel, so that the version of ``linear`` is in no key but through the assumption."""
    suite = parse_suite(
        Path("wrong.toml"), SUITE, only=["problem=probit", "algorithm=other labels"]
    )
    (before,), cache = suite.cells(), TheorySolver(tmp_path)
    prediction_of(cache, before.rebuild()[0], before, before.alpha)
    assert len(set(tmp_path.glob("own-*.json"))) == 1
    assert before.algorithm["assumed"]["channel"] == {
        "name": "linear",
        "noise": 2.0,
        "components": 1,
        "version": 1,
    }
    linear = get_registry().get("channel", "linear", "sequence-multi-index").item
    monkeypatch.setattr(linear, "version", 9)
    (after,) = suite.cells()
    assert after.key != before.key
    prediction_of(cache, after.rebuild()[0], after, after.alpha)
    assert len(set(tmp_path.glob("own-*.json"))) == 2
    with pytest.raises(
        RegistryError,
        match="assumed channel 'linear' is version 9 here, but the cell needs version 1",
    ):
        before.rebuild()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "assumed = { channel = { noise = [",
            "assumed = { channel = { beta = [",
            r"assumed\.channel\.beta: unknown key",
        ),
        (
            "assumed = { channel = { noise",
            "assumed = { chanel = { noise",
            r"assumed\.chanel: must be 'channel' or 'prior'",
        ),
        ("[0.1, 0.3]", "[0.1, 0.1]", r"assumed\.channel\.noise: 0.1 is listed twice"),
        (
            "components = 1",
            "components = 2",
            r"assumed\.channel: the assumed channel must have 1 components",
        ),
    ],
)
def test_mistakes_are_named(old, new, message):
    with pytest.raises(SuiteError, match=message):
        parse_suite(Path("wrong.toml"), SUITE.replace(old, new))


def test_verify_draws_at_points_of_wrong_assumptions():
    suite = parse_suite(
        Path("wrong.toml"), SUITE, only=["problem=linear", "algorithm=wrong"]
    )
    theories = theory_of_suite(suite, solver := TheorySolver(), thresholds=False)
    (theory,) = with_predictions(suite, theories, solver)
    wrong, right = theory.algorithms
    optimum = theory.points[0].mse
    assert wrong.prediction.mse > 1.01 * optimum
    assert right.prediction.mse == optimum
    (checks,) = draw_checks(suite, [replace(theory, points=[])])
    assert {check.branch for check in checks} == {"wrong, assumed noise 0.1"}
    assert all(check.agrees for check in checks)


def test_a_wrong_noise_of_linear_labels_is_a_wrong_penalty_of_ridge_regression():
    """``E = int (lambda^2 + Delta s) / (s + lambda)^2`` over the Marchenko-Pastur law of s."""
    problem = sequence("linear", noise=0.3)
    ratio, penalty = 0.7 * 2, 1.1
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    theta = (np.arange(4000) + 0.5) * np.pi / 4000
    s = (low + high) / 2 - (high - low) / 2 * np.cos(theta)
    weights = (
        (high - low) ** 2 / 4 * np.sin(theta) ** 2 / (2 * np.pi * s) * np.pi / 4000
    )
    assert weights.sum() == pytest.approx(
        1, abs=1e-6
    )  # more rows than columns: no zeros
    expected = float(weights @ ((penalty**2 + 0.3 * s) / (s + penalty) ** 2))
    other = assumed_problem(problem, {"channel": {"noise": penalty}})
    point = Gamp().theory(problem, 0.7, Conditions(), assumed=other)
    assert point.mse == pytest.approx(expected, rel=1e-5)
    found = own_theory(
        AlgorithmWithAssumption(Ridge(), {"channel": {"noise": penalty}}),
        problem,
        0.7,
        Conditions(),
    )
    assert found.mse == pytest.approx(expected, rel=1e-5)
