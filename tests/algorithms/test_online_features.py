"""One pass over linear labels, feature by feature: against plain simulations with a known start, and against gaussian inputs."""

import math

import numpy as np
import pytest
from smimbench_attention.algorithms.gradient.online.equations import DescentRule
from smimbench_attention.algorithms.gradient.online.features import (
    StepLengthFluctuates,
    draw_signs,
    solve_features,
)
from smimbench_attention.algorithms.sgd import Muon, Sgd, SignSgd

from smimbench.backend.arrays import to_host
from smimbench.interfaces import Conditions, Overlaps
from smimbench.problem.problem import Problem
from tests.helpers import run_once, sequence

NOISE, TOKENS = 0.1, 2


def power_law(exponent, D):
    found = np.arange(1.0, D + 1) ** -exponent
    return found / found.mean()


def simulated(rng, variances, start, star, steps, batch, rate, along):
    """Weighted errors (P,) of one run at its end; ``along`` maps the state of the method and a gradient to both after a step."""
    W, D, memory = start.copy(), len(variances), 0.0
    for _ in range(steps):
        x = rng.standard_normal((batch * TOKENS, D)) * np.sqrt(variances)
        residual = x @ (W - star).T / np.sqrt(D) - math.sqrt(
            NOISE
        ) * rng.standard_normal((len(x), len(W)))
        memory, moved = along(memory, 2 * np.sqrt(D) / batch * residual.T @ x)
        W = W - rate * moved
    return (variances * (W - star) ** 2).mean(axis=1)


def predicted(
    variances, start, star, steps, batch, rate, moves, momentum=0.0, nesterov=False
):
    """Errors (P,) by the equations, from the products of this teacher and this student in every feature."""
    D, P = len(variances), len(star)
    vectors = np.concatenate([star, start, *([0 * start] if momentum else [])]).T
    begin = (vectors[:, :, None] * vectors[:, None, :])[:, None]
    rule = DescentRule(
        lambda step: rate, batch / D, momentum=momentum, nesterov=nesterov
    )
    path = solve_features(
        rule, moves, variances, np.full(D, 1 / D), NOISE, TOKENS, D, begin, [0, steps]
    )
    T, M, Q = (np.diagonal(part[0, -1, 0]) for part in path[1:])
    assert len(T) == P
    return T - 2 * M + Q


def plain(memory, gradient):
    return memory, gradient


def signs(memory, gradient):
    return memory, np.sign(gradient)


def heavy_ball(momentum):
    def along(memory, gradient):
        velocity = momentum * memory + gradient
        ahead = gradient + momentum * velocity
        u, _, v = np.linalg.svd(ahead, full_matrices=False)
        return velocity, np.sqrt(gradient.shape[1]) * u @ v

    return along


def compared(exponent, D, components, steps, batch, rate, moves, along, runs, **how):
    """Ratio of the mean error of runs to the prediction, and its standard error; one start for all runs."""
    rng = np.random.default_rng(D)
    variances = power_law(exponent, D)
    star, start = rng.standard_normal((2, components, D))
    wanted = predicted(variances, start, star, steps, batch, rate, moves, **how).mean()
    found = [
        simulated(rng, variances, start, star, steps, batch, rate, along).mean()
        / wanted
        for _ in range(runs)
    ]
    return np.mean(found), np.std(found, ddof=1) / math.sqrt(runs)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("components", [1, 2])
def test_means_of_sgd_are_exact_at_every_dimension(exponent, components):
    # Stable where the rate stays below 2 / (2 C lambda_1), and what the noise of a batch adds.
    rate = 0.3 / (2 * TOKENS * power_law(exponent, 30)[0])
    ratio, error = compared(
        exponent, 30, components, 40, 6, rate, "gradient", plain, 400
    )
    assert abs(ratio - 1) < 4 * error
    assert error < 0.05


@pytest.mark.parametrize(("components", "batch"), [(1, 1), (1, 5), (3, 1), (2, 5)])
@pytest.mark.parametrize("exponent", [0.0, 2.5])
def test_draws_of_signs_have_the_law_of_runs(exponent, components, batch):
    """Three components see two rows of a batch of one: residuals of a singular covariance."""
    D, steps, rate, runs = 20, 12, 0.15, 400
    rng, variances = np.random.default_rng(D), power_law(exponent, D)
    star, start = rng.standard_normal((2, components, D))
    runs_end = [
        simulated(rng, variances, start, star, steps, batch, rate, signs)
        for _ in range(runs)
    ]
    rule, begin = (
        DescentRule(lambda step: rate, batch / D),
        np.stack([[np.concatenate([star, start])]] * runs),
    )
    path = draw_signs(
        rule,
        variances,
        NOISE,
        batch * TOKENS,
        begin,
        [0, steps],
        np.random.default_rng(1),
    )
    errors = (
        path.truth - path.cross - np.swapaxes(path.cross, -1, -2) + path.self_overlap
    )
    drawn = np.diagonal(errors, axis1=-2, axis2=-1)[:, -1, 0]
    for moment in (1, 2):
        one, other = (np.asarray(values) ** moment for values in (runs_end, drawn))
        gap, spread = (
            one.mean(axis=0) - other.mean(axis=0),
            np.hypot(one.std(axis=0), other.std(axis=0)),
        )
        assert (abs(gap) < 4 * spread / math.sqrt(runs)).all()


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_muon_approaches_its_equations(exponent):
    how = {"momentum": 0.9, "nesterov": True}
    ratios = {
        D: compared(
            exponent, D, 2, D // 2, D // 8, 1 / D, "polar", heavy_ball(0.9), 6, **how
        )
        for D in (100, 200, 400)
    }
    for D, (ratio, error) in ratios.items():
        assert abs(ratio - 1) < 3 * error + 4 / D, ratios


def test_steps_that_few_features_carry_are_not_predicted():
    star, start = np.random.default_rng(1).standard_normal((2, 1, 500))
    with pytest.raises(StepLengthFluctuates):
        predicted(power_law(1.5, 500), start, star, 20, 50, 0.01, "polar")


def problem_of(exponent, D, components=1):
    inputs = (
        {"name": "power-law", "exponent": exponent, "features": D}
        if exponent is not None
        else "gaussian"
    )
    model, channel = (
        {"name": "sequence-multi-index", "tokens": 2},
        {"name": "linear", "noise": NOISE, "components": components},
    )
    return Problem(model, channel, "gaussian", inputs)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1, "schedule": "cosine"},
    ],
)
def test_one_variance_is_gaussian_inputs(more):
    D, one = 60, np.eye(2)
    sgd = Sgd(online=True, batch=12, steps=30, learning_rate=0.02, **more)
    conditions = Conditions(D, starts=(Overlaps(one, 0 * one, one),), trajectory=True)
    usual = sgd.theory(problem_of(None, D, 2), 1.0, conditions)
    for exponent, tolerance in ((1e-13, 1e-12), (1e-4, 1e-2)):
        found = sgd.theory(
            problem_of(exponent, D, 2), 1.0, Conditions(D, trajectory=True)
        )
        assert np.allclose(found.mse, usual.mse, rtol=tolerance, atol=0)
        assert np.allclose(
            found.trajectory["mse"], usual.trajectory["mse"], rtol=tolerance, atol=0
        )


SGD, SIGN = (
    Sgd(online=True, batch=20, steps=100, learning_rate=0.005),
    SignSgd(online=True, batch=20, steps=100),
)
MUON = Muon(online=True, batch=20, steps=100, learning_rate=0.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "exponent"),
    [
        (SGD, None),
        (SIGN, 2.5),
        (
            SignSgd(
                online=True,
                batch=20,
                steps=100,
                momentum=0.5,
                weight_decay=0.1,
                learning_rate=0.03,
            ),
            1.5,
        ),
        (MUON, 0.5),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((SGD, 0.5), (SIGN, None), (MUON, None))
        ),
    ],
    ids=str,
)
def test_runs_land_on_their_prediction(algorithm, exponent):
    D, runs = 200, 24
    problem = problem_of(exponent, D)
    theory = algorithm.theory(problem, 1.0, Conditions(D, trajectory=True))
    assert theory.at_size or exponent is None
    found = []
    for replicate in range(runs):
        instance = problem.instance(0.1, D, replicate)
        run = run_once(problem, instance, algorithm, seed=replicate)
        found.append(problem.model.squared_error(instance.signal, run.estimate)[0])
    error = math.hypot(np.std(found, ddof=1) / math.sqrt(runs), theory.mse_error.item())
    assert (
        abs(np.mean(found) - theory.mse.item()) < 3.5 * error + 0.01 * theory.mse.item()
    )
    assert theory.trajectory["mse"][-1][0] == pytest.approx(theory.mse.item(), rel=1e-9)


def test_where_equations_do_not_close_the_prediction_says_why():
    D, linear, online = (
        50,
        problem_of(1.0, 50),
        {"online": True, "batch": 5, "steps": 10},
    )
    conditions = Conditions(D)
    softmax = Problem(
        {"name": "sequence-multi-index", "tokens": 2},
        "softmax",
        "gaussian",
        {"name": "power-law", "features": D},
    )
    inputs = {"name": "correlated-tokens", "decay": 0.5}
    correlated = Problem(
        {"name": "sequence-multi-index", "tokens": 2},
        {"name": "linear", "noise": 0.1},
        "gaussian",
        inputs,
    )
    for problem, algorithm, words in [
        (
            softmax,
            Sgd(**online),
            "of single features are closed only for linear labels of independent tokens",
        ),
        (sequence("softmax"), SignSgd(**online), "closed only for linear labels"),
        (correlated, Muon(**online), "of independent tokens"),
        (
            linear,
            SignSgd(spherical=True, **online),
            "on a sphere has no closed equations feature by feature",
        ),
        (linear, SignSgd(**online | {"steps": 10**6}), "takes longer than a minute"),
        (
            linear,
            Muon(momentum=0.0, nesterov=False, **online),
            "few features or samples",
        ),
        (linear, SignSgd(steps=10), "where samples are reused"),
        (linear, Sgd(learning_rate=10.0, **online), "diverge"),
    ]:
        assert words in algorithm.theory(problem, 1.0, conditions)


def test_directions(backend):
    xp = backend.xp
    v = backend.asarray(np.array([[3.0, 0.0, -4.0, 0.0], [0.0, 0.5, 0.0, 0.0]]))
    assert to_host(SignSgd().direction(v)).tolist() == [[1, 0, -1, 0], [0, 1, 0, 0]]
    found = to_host(Muon().direction(v))
    assert np.allclose(
        found, 2 * np.array([[0.6, 0, -0.8, 0], [0, 1, 0, 0]]), atol=1e-6
    )
    lost = Muon().direction(
        xp.concat([v[:1, :], 2 * v[:1, :]])
    )  # of rank one: no direction is made up
    assert np.linalg.norm(to_host(lost)) == pytest.approx(2, rel=1e-5)
    assert not np.any(to_host(Muon().direction(0 * v)))
