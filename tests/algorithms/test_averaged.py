"""Averages of students: against single runs, under symmetries, and the laws of averaging."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.algorithms.averaged import Averaged, mean_signal
from smimbench_attention.algorithms.sgd import Sgd
from smimbench_attention.algorithms.spectral import Spectral

from smimbench.backend.arrays import namespace, to_host
from smimbench.backend.device import get_backend
from smimbench.interfaces import Algorithm, Conditions, Info, Overlaps
from smimbench.registry.items import build, parameters_of
from smimbench.registry.registry import get_registry
from smimbench.theory.predictions import limit_point, solve
from tests.helpers import attention, sequence
from tests.stretched import stretched


def build_algorithm(table):
    parameters = dict(table)
    return build(
        get_registry().get("algorithm", parameters.pop("name")).item,
        "algorithm",
        parameters,
    )


@pytest.mark.parametrize(
    ("problem", "alpha", "table", "single"),
    [
        (attention(), 0.3, {"name": "adam", "steps": 6}, Adam(steps=6)),
        (
            attention(),
            0.3,
            {"name": "sgd", "batch": 20, "epochs": 1},
            Sgd(batch=20, epochs=1),
        ),
    ],
)
def test_average_is_the_mean_of_the_students_run_alone(
    problem, alpha, table, single, backend
):
    instance = problem.instance(alpha, 12)
    data = instance.data(backend)
    together = Averaged(of=table, students=3)
    state = together.init(problem, data, np.random.default_rng(4))
    steps = together.plan(data).steps
    assert steps == single.plan(data).steps
    draws = np.random.default_rng(4)
    factors = [problem.prior.factor.draw(draws, 1, 12, None) for _ in range(3)]
    rest = draws.bit_generator.state
    signals = []
    for factor in factors:
        rng = np.random.default_rng(0)
        rng.bit_generator.state = rest  # the same order of samples for all
        alone = single.init(problem, data, np.random.default_rng(1))
        alone = alone._replace(factor=backend.asarray(factor), rng=rng)
        alone = alone._replace(signal=problem.prior.factor.compose(alone.factor))
        for _ in range(steps):
            alone, _ = single.step(problem, data, alone)
        signals.append(to_host(single.estimate(alone)))
    for _ in range(steps):
        state, info = together.step(problem, data, state)
    assert np.allclose(
        to_host(together.estimate(state)),
        np.mean(signals, axis=0),
        rtol=1e-9,
        atol=1e-11,
    )
    assert info.samples is not None


def test_signs_of_students_are_brought_together(rng, backend):
    problem = sequence(layers=3)
    truth = rng.standard_normal((3, 200))
    signs = rng.choice([-1.0, 1.0], size=(16, 3, 1))
    noise = rng.standard_normal((16, 3, 200))
    mean = to_host(mean_signal(problem, backend.asarray(signs * (truth + noise))))
    error = problem.model.squared_error(
        truth, problem.model.align(truth, mean, "signs")
    )
    assert np.allclose(error, 1 / 16, rtol=0.5)
    # Without alignment the mean would be lost.
    assert (
        problem.model.squared_error(truth, np.mean(signs * (truth + noise), axis=0))
        > 0.3
    ).any()


def test_first_student_may_be_the_odd_one_out(rng):
    """Alignment to the first student alone would inherit its noise."""
    problem = sequence()
    truth = rng.standard_normal((1, 400))
    students = np.concatenate(
        [
            [0.1 * truth + rng.standard_normal((1, 400))],
            rng.choice([-1.0, 1.0], (15, 1, 1)) * truth[None],
        ]
    )
    mean = mean_signal(problem, students)
    cosine = abs((mean @ truth.T).item()) / np.linalg.norm(mean) / np.linalg.norm(truth)
    assert cosine > 0.99


@pytest.mark.parametrize("of", [{"name": "gamp", "damping": 0.2}, {"name": "spectral"}])
def test_algorithms_that_cannot_be_batched_run_one_after_the_other(of, backend):
    problem = sequence()
    instance = problem.instance(1.0, 30)
    data = instance.data(backend)
    together = Averaged(of=of, students=3)
    state = together.init(problem, data, np.random.default_rng(4))
    alone = [
        (item := build_algorithm(of), item.init(problem, data, stream))
        for stream in np.random.default_rng(4).spawn(3)
    ]
    for _ in range(3):
        state, info = together.step(problem, data, state)
        steps = [item.step(problem, data, own) for item, own in alone]
        alone = [(item, own) for (item, _), (own, _) in zip(alone, steps)]
        infos = [report for _, report in steps]
    mean = mean_signal(
        problem,
        namespace(data.inputs).stack([item.estimate(own) for item, own in alone]),
    )
    assert np.array_equal(to_host(together.estimate(state)), to_host(mean))
    assert "one student at a time" in info.warning
    # gamp begins with a random direction here; an eigenvector is the same wherever the iteration for it begins
    assert ("the same estimate from every start" in info.warning) == (
        of["name"] == "spectral"
    )
    assert float(info.residual) == max(float(report.residual) for report in infos)
    if of["name"] == "gamp":
        claims = [to_host(report.predicted_overlap) for report in infos]
        assert np.allclose(
            to_host(info.predicted_overlap), np.mean(claims, axis=0), rtol=1e-14
        )
        assert info.samples is None


def test_a_second_start_is_that_of_the_algorithm():
    problem = attention()
    cautious = Averaged(of={"name": "gamp", "damping": 0.2}, students=2).retry(
        problem, "diverged"
    )
    assert cautious.students == 2
    assert cautious.of["damping"] == 0.6
    assert Averaged(of="adam").retry(problem, "diverged") is None


def test_cell_knows_the_version_and_all_parameters_of_the_algorithm():
    spec = parameters_of(
        "algorithm", Averaged(of={"name": "adam", "steps": 7}, students=2)
    )
    assert spec["of"]["version"] == Adam.version
    assert spec["of"]["beta2"] == 0.999
    assert spec["of"]["steps"] == 7
    assert parameters_of("algorithm", Averaged(of="adam")) == parameters_of(
        "algorithm", Averaged(of={"name": "adam"})
    )
    # A stored spec builds the same algorithm again.
    again = Averaged(**spec)
    assert parameters_of("algorithm", again) == spec


class Draws(Algorithm):
    """Draws from the posterior of noisy linear labels, which is Gaussian: each independent of the others, given the data."""

    name, version, noise = "draws", 1, 0.3

    def theory(self, problem, alpha):
        point = solve(problem, [alpha])[0]
        one = Overlaps(np.eye(1), point.Q, np.eye(1))
        return replace(
            limit_point(problem, alpha, [[one]], method="posterior"),
            between_students=point.Q,
        )

    def init(self, problem, data, rng):
        return rng

    def step(self, problem, data, rng):
        """``W ~ N(C X^T y / noise, C)`` with ``C^-1 = 1 + X^T X / noise``, rows of X being inputs over the root of D."""
        D = data.inputs.shape[-1]
        X = data.inputs.reshape(-1, D) / np.sqrt(D)
        root = np.linalg.cholesky(np.eye(D) + X.T @ X / self.noise)
        mean = np.linalg.solve(
            root.T, np.linalg.solve(root, X.T @ data.labels.reshape(-1) / self.noise)
        )
        return (mean + np.linalg.solve(root.T, rng.standard_normal(D)))[None], Info(
            residual=0.0
        )

    def estimate(self, draw):
        return draw


def averaged_draws(students):
    mean = Averaged(of={"name": "adam", "steps": 1}, students=students)
    object.__setattr__(mean, "_inner_algorithm", Draws())
    return mean


NOISY = sequence("linear", noise=0.3)


@pytest.mark.parametrize("students", [1, 2, 7])
def test_theory_of_draws_from_the_posterior_is_one_plus_one_over_their_number(students):
    bayes = solve(NOISY, [0.6])[0].V[0, 0]
    found = averaged_draws(students).theory(NOISY, 0.6, Conditions()).mse
    assert found == pytest.approx((1 + 1 / students) * bayes, rel=1e-9)


OF_SPECTRAL = [
    (sequence(), {}),
    (sequence(layers=2, skip=1.0), {"kind": "asymmetric"}),
    (sequence("linear", noise=0.3, components=2), {}),
    (attention("hardmax"), {"origin": "zero"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "parameters"), OF_SPECTRAL)
def test_eigenvectors_of_several_starts_are_one_up_to_their_sign(problem, parameters):
    """Signs are told by labels or removed by the alignment: the mean is one of the students, in runs and in theory."""
    one, mean = (
        Spectral(**parameters),
        Averaged(of={"name": "spectral", **parameters}, students=5),
    )
    alone, averaged = (
        one.theory(problem, 3.0).document(),
        mean.theory(problem, 3.0, Conditions()).document(),
    )
    for key in ("mse", "mse_error"):
        assert_allclose(averaged[key], alone[key], rtol=1e-9, atol=1e-9)
    assert_allclose(
        averaged.get("squared_cosine", 0), alone.get("squared_cosine", 0), rtol=1e-9
    )
    instance = problem.instance(3.0, 60 if problem.model.rank == "low" else 20, 0)
    data, found = instance.data(get_backend()), []
    for algorithm in (one, mean):
        state = algorithm.init(problem, data, np.random.default_rng(3))
        found.append(
            instance.metrics(
                algorithm.estimate(algorithm.step(problem, data, state)[0])
            )["mse"]
        )
    assert_allclose(found[1], found[0], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channel", "scale"),
    [({"name": "softmax", "layers": 2}, 0.5), ({"name": "linear", "noise": 4.5}, 3.0)],
)
def test_the_same_for_signals_of_another_length(channel, scale):
    with stretched(channel, scale=scale) as problem:
        alone = Spectral().theory(problem, 3.0).document()
        mean = (
            Averaged(of="spectral", students=3)
            .theory(problem, 3.0, Conditions())
            .document()
        )
    assert_allclose(mean["mse"], alone["mse"], rtol=1e-9)
    assert_allclose(mean["squared_cosine"], alone["squared_cosine"], rtol=1e-9)
