"""Optimal schedules of online descent against dynamic programming, closed forms, finite differences and tuned schedules."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.interpolate import RectBivariateSpline
from scipy.optimize import minimize
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.algorithms.gradient.loss import fitting_loss
from smimbench_attention.algorithms.gradient.online import fields, schedule
from smimbench_attention.algorithms.gradient.online.equations import (
    DescentRule,
    OverlapsDiverge,
    solve,
)
from smimbench_attention.algorithms.sgd import Muon, Sgd, SignSgd

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions, Overlaps, ParameterError

D = 1000


def sequence(tokens, **channel):
    return smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": tokens}, channel, "gaussian"
    )


LINEAR = sequence(2, name="linear", noise=0.3, components=2)
PROBIT = sequence(1, name="probit", noise=0.5)
SOFTMAX = sequence(2, name="softmax", layers=1)
THREE_TOKENS = sequence(3, name="softmax", layers=1)


def optimal(problem, steps, batch, dimension=D, loss=None):
    algorithm = Sgd(
        steps=steps, batch=batch, online=True, loss=loss, schedule="optimal"
    )
    return algorithm.computed_rates(problem, dimension)


def cosine(rate, steps):
    return rate * (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2


# -- linear labels --------------------------------------------------------------------------------------------------------


def linear_error(rates, batch, dimension, noise=0.3, tokens=2, start=2.0):
    """Mean error of linear labels: Wick's theorem for the B C rows of a batch, written out here."""
    error, rows = start, batch * tokens
    for rate in rates:
        shrink = 1 - 2 * tokens * rate
        scatter = (2 * tokens * rate) ** 2 / rows
        error = shrink**2 * error + scatter * (error + dimension * (error + noise))
    return error


def test_the_linear_recursion_is_that_of_the_theory():
    rates = cosine(0.05, 40)
    rule = DescentRule(rates.item, 100 / D, inverse_batch_rows=1 / 200)
    one = np.eye(2)
    path = solve(LINEAR, "squared", rule, [Overlaps(one, 0 * one, one)], [0, 40])
    error = path.truth - 2 * path.cross + path.self_overlap
    assert error[0, -1, 0, 0, 0] == pytest.approx(
        linear_error(rates, 100, D), rel=1e-12
    )


@pytest.mark.parametrize(("steps", "batch"), [(1, 3), (2, 40), (7, 500)])
def test_linear_rates_are_the_minimum_over_all_rates_at_once(steps, batch):
    """No gradient vanishes and no other schedule is better, by a minimizer that knows nothing of greed."""
    rates = optimal(LINEAR, steps, batch, 60)
    best = linear_error(rates, batch, 60)
    for step in range(steps):
        pair = []
        for factor in (1 + 1e-4, 1 - 1e-4):
            changed = rates.copy()
            changed[step] *= factor
            pair.append(linear_error(changed, batch, 60))
        assert min(pair) > best
        # The error is quadratic in every rate: its minimum is where these are equal.
        assert pair[0] - pair[1] == pytest.approx(0, abs=1e-14)
    found = minimize(
        lambda logs: linear_error(np.exp(logs), batch, 60),
        np.log(rates) + np.linspace(-0.5, 0.5, steps),
        method="BFGS",
        options={"gtol": 1e-12},
    )
    assert found.fun == pytest.approx(best, rel=1e-9)


def test_a_smaller_linear_error_is_never_worse_later():
    """So the greedy rate is the optimal one."""
    for rate in np.geomspace(1e-3, 10, 30):
        errors = [linear_error([rate], 20, 60, start=e) for e in np.linspace(0, 3, 30)]
        assert (np.diff(errors) > 0).all()


def test_without_noise_one_huge_batch_is_one_step():
    problem = sequence(1, name="linear", noise=0.0)
    assert optimal(problem, 1, 10**9, 50)[0] == pytest.approx(0.5)


# -- one direction: dynamic programming ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "batch_ratio"),
    [(PROBIT, 0.5), (SOFTMAX, 0.5)],
    ids=["probit", "softmax"],
)
def test_dynamic_programming_on_a_grid_agrees(problem, batch_ratio):
    """Bellman's equation on a grid of overlaps and rates: its policy, followed with the same map, ends at the same error."""
    steps, dimension = 12, 50
    rates = optimal(problem, steps, round(batch_ratio * dimension), dimension)
    points = schedule.POINTS // problem.model.sites
    averages = fields.gradient_averages(
        problem, fitting_loss(problem), np.ones((1, 1, 1)), points, range(1)
    )

    def step_from(M, Q):
        """The overlaps after a step, as a function of its rate."""
        on_teacher, on_student, square = (
            average.reshape(M.shape)
            for average in averages(M.reshape(1, -1, 1, 1), Q.reshape(1, -1, 1, 1))
        )
        to_teacher = on_teacher + on_student * M
        to_student = on_teacher * M + on_student * Q
        drift = on_teacher * to_teacher + on_student * to_student
        return lambda rate: (
            M - rate * to_teacher,
            Q - 2 * rate * to_student + rate**2 * (square / batch_ratio + drift),
        )

    # Coordinates M and the root of what Q has besides.
    m, r = np.linspace(-0.05, 1.2, 81), np.linspace(0.02, 1.6, 65)
    M, rest = np.meshgrid(m, r, indexing="ij")
    step_from_grid = step_from(M, M**2 + rest**2)
    value, splines = 1 - 2 * M + M**2 + rest**2, []

    def value_after(spline, M, Q):
        rest = np.sqrt(np.maximum(Q - M**2, 0))
        inside = (m[0] <= M) & (m[-1] >= M) & (rest <= r[-1]) & (rest >= r[0])
        return np.where(inside, spline(M, rest, grid=False), np.inf)

    for _ in range(steps):
        splines.append(RectBivariateSpline(m, r, value))
        trials = rates.max() * np.append(0, np.geomspace(0.02, 2, 80))
        after = [value_after(splines[-1], *step_from_grid(rate)) for rate in trials]
        value = np.min(after, axis=0)  # the rate 0 is always inside

    M = np.array([0.0 if problem is PROBIT else dimension**-0.5])
    Q, fine_rates = np.ones(1), rates.max() * np.geomspace(0.02, 2, 4000)
    policy = []
    for spline in splines[::-1]:
        after = step_from(M, Q)
        policy.append(fine_rates[np.argmin(value_after(spline, *after(fine_rates)))])
        M, Q = after(policy[-1])
    bellman = (1 - 2 * M + Q).item()
    expand = schedule.expansion(
        problem, fitting_loss(problem), 12 * batch_ratio, dimension
    )
    ours = expand(rates)[0]
    assert expand(np.array(policy))[0] == pytest.approx(bellman, rel=1e-9)
    assert ours == pytest.approx(bellman, rel=2e-3)
    assert ours < bellman * (1 + 1e-6)


@pytest.mark.parametrize(
    ("problem", "loss"),
    [(PROBIT, "squared"), (SOFTMAX, "cross-entropy"), (THREE_TOKENS, "squared")],
)
def test_the_adjoint_is_the_gradient(problem, loss):
    expand = schedule.expansion(problem, loss, 7.5, 200)
    rates = cosine(0.2, 15) + 0.01
    _, (linear, quadratic) = expand(rates)
    gradient = 2 * rates * quadratic - linear
    for step in (0, 1, 7, 14):
        ends = []
        for sign in (1, -1):
            changed = rates.copy()
            changed[step] += sign * 1e-4 * rates[step]
            ends.append(expand(changed)[0])
        difference = (ends[0] - ends[1]) / (2e-4 * rates[step])
        assert difference == pytest.approx(gradient[step], rel=2e-3, abs=1e-6)


def test_equations_of_a_schedule_are_those_of_the_theory(monkeypatch):
    """The same start, rates and integration points: the same final error."""
    monkeypatch.setattr(schedule, "POINTS", 2 * fields.ACCURACY.points)
    rates, one = cosine(0.3, 30), np.eye(1)
    ours, _ = schedule.expansion(SOFTMAX, "squared", 12.0, 100)(rates)
    start = Overlaps(one, 0.1 * one, one)
    path = solve(SOFTMAX, "squared", DescentRule(rates.item, 0.4), [start], [0, 30])
    errors = (path.truth - 2 * path.cross + path.self_overlap)[:, -1].ravel()
    assert ours == pytest.approx(errors[0], rel=1e-9)


# -- tuned schedules -------------------------------------------------------------------------------------------------------


def final_error(problem, loss, rates, batch):
    """Error at the end by the equations at full accuracy, from the start of a schedule."""
    one, sign_is_open = np.eye(1), problem.channel.symmetry != "none"
    start = Overlaps(one, sign_is_open * D**-0.5 * one, one)
    rule = DescentRule(rates.item, batch / D)
    try:
        path = solve(problem, loss, rule, [start], [0, len(rates)])
    except OverlapsDiverge:
        return np.inf
    return (path.truth - 2 * path.cross + path.self_overlap)[:, -1].mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "loss", "steps", "batch", "gain"),
    [
        (PROBIT, "squared", 80, 100, 1.2),
        (PROBIT, "squared", 300, 40, 1.2),
        (SOFTMAX, "cross-entropy", 80, 200, 10),
        (SOFTMAX, "squared", 60, 400, 10),
        (THREE_TOKENS, "cross-entropy", 60, 200, 10),
    ],
)
def test_no_tuned_cosine_is_better_in_theory(problem, loss, steps, batch, gain):
    ours = final_error(problem, loss, optimal(problem, steps, batch, D, loss), batch)
    tuned = min(
        final_error(problem, loss, cosine(rate, steps), batch)
        for rate in batch / D * np.geomspace(0.1, 2, 10)
    )
    assert gain * ours < tuned


@pytest.mark.slow
@pytest.mark.parametrize("components", [1, 3])
def test_no_tuned_cosine_is_better_for_linear_labels(components):
    problem = sequence(2, name="linear", noise=0.3, components=components)
    conditions = Conditions(dimension=D)

    def error(**parameters):
        algorithm = Sgd(steps=100, batch=200, online=True, **parameters)
        return algorithm.theory(problem, 20.0, conditions).mse.mean()

    tuned = min(
        error(schedule="cosine", learning_rate=rate)
        for rate in np.geomspace(0.01, 0.1, 9)
    )
    assert 1.3 * error(schedule="optimal") < tuned


def ends_of_runs(algorithm, runs):
    """Errors at the end of runs, mean and standard error."""
    errors = []
    for run in range(runs):
        instance = PROBIT.instance(0.01, D, run)
        data = instance.data(get_backend())
        state = algorithm.init(PROBIT, data, np.random.default_rng(run))
        for _ in range(algorithm.steps):
            state, _ = algorithm.step(PROBIT, data, state)
        errors.append(instance.metrics(state.signal)["mse"][0])
    return np.mean(errors), np.std(errors) / np.sqrt(runs)


@pytest.mark.slow
def test_runs_land_on_their_prediction_and_below_the_tuned_cosine():
    steps, batch, runs = 60, 200, 6
    shared = {"steps": steps, "batch": batch, "online": True}
    algorithm = Sgd(schedule="optimal", **shared)
    ours, error = ends_of_runs(algorithm, runs)
    point = algorithm.theory(PROBIT, 12.0, Conditions(dimension=D))
    assert abs(ours - point.mse) < 4 * np.hypot(error, point.mse_error)
    scan = [
        ends_of_runs(Sgd(learning_rate=rate, schedule="cosine", **shared), runs)
        for rate in np.geomspace(0.02, 0.1, 6)
    ]
    tuned, tuned_error = min(scan)
    assert ours + 4 * np.hypot(error, tuned_error) < tuned


# -- the parameter ---------------------------------------------------------------------------------------------------------


def test_a_run_makes_the_steps_of_its_schedule_which_is_computed_once():
    algorithm = Sgd(steps=4, batch=8, online=True, schedule="optimal")
    states = []
    for seed in range(2):
        data = (
            sequence(2, name="linear", noise=0.3, components=2)
            .instance(0.01, 30, seed)
            .data(get_backend())
        )
        states.append(algorithm.init(LINEAR, data, np.random.default_rng(seed)))
    assert states[0].rates is states[1].rates
    plain = Sgd(steps=4, batch=8, online=True, learning_rate=states[0].rates[0])
    rngs = [np.random.default_rng(3) for _ in range(2)]
    ours, theirs = (
        each.step(LINEAR, data, state._replace(rng=rng))[0].factor
        for each, state, rng in zip(
            (algorithm, plain), (states[1], states[1]._replace(rates=None)), rngs
        )
    )
    assert_allclose(ours, theirs, rtol=1e-14)


@pytest.mark.parametrize("steps", [1, 3, 5, 40])
def test_any_number_of_steps_has_rates(steps, monkeypatch):
    """Also more than are swept, by interpolation, which costs little."""
    monkeypatch.setattr(schedule, "STEP_COUNTS", (2, 4, 8))
    rates = optimal(PROBIT, steps, 350 // steps, 70)
    assert rates.shape == (steps,)
    assert (rates > 0).all()
    expand = schedule.expansion(PROBIT, "squared", 350 // steps * steps / 70, 70)
    tuned = min(expand(cosine(rate, steps))[0] for rate in np.geomspace(0.01, 1, 30))
    assert expand(rates)[0] < tuned


@pytest.mark.parametrize(
    ("cls", "key", "parameters"),
    [
        (Sgd, "schedule", {"online": False}),
        (Adam, "schedule", {"batch": 5}),
        (Muon, "schedule", {"batch": 5}),
        (SignSgd, "schedule", {"batch": 5}),
        (Sgd, "learning_rate", {"batch": 5, "learning_rate": 0.2}),
        (Sgd, "momentum", {"batch": 5, "momentum": 0.9}),
        (Sgd, "weight_decay", {"batch": 5, "weight_decay": 0.1}),
        (Sgd, "spherical", {"batch": 5, "spherical": True}),
        (Sgd, "decay_steps", {"batch": 5, "decay_steps": 3}),
    ],
)
def test_settings_that_contradict_it_are_refused(cls, key, parameters):
    with pytest.raises(ParameterError, match="optimal") as error:
        cls(**{"online": True, "schedule": "optimal", **parameters})
    assert error.value.key == key


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (sequence(2, name="softmax", layers=2, skip=1.0), "one direction"),
        (
            smimbench.Problem(
                {"name": "attention-indexed", "tokens": 2},
                "linear",
                {"name": "wishart", "rho": 0.5},
            ),
            "low-rank",
        ),
        (
            smimbench.Problem(
                {"name": "sequence-multi-index", "tokens": 2},
                {"name": "linear", "noise": 0.3},
                "gaussian",
                {"name": "power-law", "exponent": 1.0},
            ),
            "features alike",
        ),
    ],
)
def test_problems_without_such_theory_are_refused(problem, reason):
    algorithm = Sgd(steps=4, batch=8, online=True, schedule="optimal")
    assert reason in algorithm.refuses(problem)
    assert Sgd(steps=4, batch=8, online=True).refuses(problem) is None
