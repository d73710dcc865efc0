"""Algorithms that are one function, and items of a drop-in file that give as little as they may, up to the table."""

import json

import numpy as np
import pytest

from smimbench.interfaces import Algorithm, Data, Plan
from smimbench.interfaces.problem import placeholder_data
from smimbench.problem.problem import Problem
from smimbench.registry.items import algorithm_class, build
from smimbench.registry.registry import Registry, get_registry, set_registry
from smimbench.suite.cells import build_algorithm
from tests.helpers import flat, output

LITTLE = '''
import numpy as np
from scipy.special import log_ndtr
import smimbench
from smimbench import Capabilities, hookimpl


class Probit:
    """Noisy sign."""

    name, version, reference = "noisy-sign", 1, "here"
    capabilities = Capabilities(models=("sequence-multi-index",))

    def forward(self, z, *, rng=None):
        return np.sign(z[:, 0, 0] + 0.5 * rng.standard_normal(len(z)))

    def log_likelihood(self, y, z):
        return log_ndtr(y * z[:, 0, 0] / 0.5)


class Signs:
    """Plus or minus one."""

    name, version, reference = "rademacher", 1, "here"
    capabilities = Capabilities(models=("sequence-multi-index",))

    def sample(self, rng, components, dimension):
        return rng.choice([-1.0, 1.0], size=(components, dimension))

    def denoise(self, R, Qhat):
        estimate = np.tanh(np.diagonal(Qhat)[:, None] * R)
        return smimbench.Denoised(estimate, np.diag(1 - (estimate**2).mean(1)))


def mean_input(data, *, gain: float = 1.0):
    """The mean of the inputs, each with the sign of its label."""
    total = data.labels @ data.inputs[:, 0, :]
    return gain * total[None] / np.sqrt(data.dimension * len(data.labels) * data.sample_ratio)


class Noise:
    """A random direction."""

    name, version, reference, capabilities = "noise", 3, "here", Capabilities()

    def __init__(self, size: float = 1.0):
        self.size = size

    def fit(self, data, rng):
        return self.size * rng.standard_normal((1, data.dimension))


@hookimpl
def smimbench_register_channels(register):
    register(Probit)


@hookimpl
def smimbench_register_priors(register):
    register(Signs)


@hookimpl
def smimbench_register_algorithms(register):
    register(mean_input)
    register(Noise)
'''

SUITE = """
[problem]
model   = { name = "sequence-multi-index", tokens = 1 }
channel = "noisy-sign"
prior   = "rademacher"

[grid]
alpha = [2.0]
dimension = [60]
seeds = 2
"""
SUITE += "".join(
    f"[[algorithms]]\nname = {line}\n"
    for line in (
        '"gamp"',
        '"spectral"',
        '"adam"\nsteps = 3',
        '"mean-input"\ngain = 0.5',
        '"noise"',
    )
)


@pytest.fixture
def little(tmp_path):
    """A registry with the drop-in file."""
    file = tmp_path / "little.py"
    file.write_text(LITTLE)
    registry = Registry([str(file)])
    set_registry(registry)
    yield file, registry
    set_registry(None)


@pytest.mark.slow
def test_everything_that_gives_little_runs_to_the_table(little, tmp_path, capsys):
    file, registry = little
    assert all(not plugin.problems for plugin in registry.plugins)
    suite = tmp_path / "mine.toml"
    suite.write_text(SUITE)
    where = ("--results", tmp_path, "--workers", 1, "--no-figure", "--plugins", file)
    out = output(capsys, "run", suite, "--json", *where)
    rows = [row for row in json.loads(out)["rows"] if row["metric"] == "mse"]
    found = {row["algorithm"].split("(")[0]: row for row in rows}
    assert set(found) == {"gamp", "spectral", "adam", "mean-input", "noise"}
    assert all(row["status_counts"] == {"ok": 2} for row in rows)
    assert found["gamp"]["mean"] == pytest.approx(found["gamp"]["theory"], abs=0.2)
    assert 0 < found["gamp"]["theory"] < 0.5
    # E[y x] = sqrt(2 / pi / 1.25) w: half the gain leaves a mean square that anyone can compute.
    assert 0.3 < found["mean-input"]["mean"] < 1.2
    assert 1.0 < found["noise"]["mean"] < 3.0
    out = output(capsys, "info", "noisy-sign", "--plugins", file)
    assert "posterior: from log_likelihood" in flat(out)


def small_problem():
    """A problem of what the file registers, an instance, and what an algorithm may see of it."""
    problem = Problem(
        {"name": "sequence-multi-index", "tokens": 1}, "noisy-sign", "rademacher"
    )
    instance = problem.instance(3.0, 40)
    return (
        problem,
        instance,
        Data(instance.inputs, instance.labels, instance.sample_ratio),
    )


def test_a_function_becomes_an_algorithm_with_typed_parameters(little):
    problem, instance, data = small_problem()
    algorithm = build_algorithm({"name": "mean-input", "gain": 2.0}, problem)
    assert (algorithm.name, algorithm.version, algorithm.steps) == ("mean-input", 1, 1)
    state = algorithm.init(problem, data, np.random.default_rng(0))
    assert (algorithm.estimate(state) == 0).all()
    state, info = algorithm.step(problem, data, state)
    total = sum(y * x[0] for x, y in zip(instance.inputs, instance.labels))
    exact = 2 * total / np.sqrt(40 * len(instance.labels) * 3.0)
    assert np.abs(algorithm.estimate(state)[0] - exact).max() < 1e-12
    assert info.samples == len(instance.labels)
    with pytest.raises(Exception, match="gain"):
        build_algorithm({"name": "mean-input", "gain": "much"}, problem)
    with pytest.raises(Exception, match="unknown key"):
        build_algorithm({"name": "mean-input", "again": 1.0}, problem)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (np.zeros(40), "signal's shape"),
        ("words", "must return an array of real numbers, got <U5"),
        (np.full((1, 40), "1.0"), "must return an array of real numbers, got <U3"),
        (np.ones((1, 40)) + 0j, "must return an array of real numbers, got complex128"),
        (
            np.ma.masked_array(np.ones((1, 40)), np.arange(40)[None] == 3),
            "must return an array of real numbers, got masked array",
        ),
        (
            np.zeros((1, 40), [("w", float)]),
            "must return an array of real numbers, got",
        ),
        (
            np.zeros((1, 40), "m8[s]"),
            "must return an array of real numbers, got timedelta64",
        ),
        (np.full((1, 40), None), "must return an array of real numbers, got object"),
        ([[1.0, 2.0], [3.0]], "must return an array of real numbers, got list"),
        (None, "it returned nothing"),
    ],
)
def test_what_is_no_estimate_is_refused(little, returned, message):
    problem, _, data = small_problem()

    def wrong(data):
        return returned

    algorithm = algorithm_class(wrong)()
    with pytest.raises(ValueError, match=message):
        algorithm.step(
            problem, data, algorithm.init(problem, data, np.random.default_rng(0))
        )


def test_a_function_must_say_what_it_takes():
    def catches_all(data, **settings):
        return settings

    def takes_nothing():
        return None

    for function, message in (
        (catches_all, "list its parameters"),
        (takes_nothing, "first argument"),
    ):
        with pytest.raises(TypeError, match=message):
            algorithm_class(function)


HEAD = "from smimbench import Capabilities, hookimpl\n"
ITEM = """
class Mine:
    "Mine."
    name, version, reference, capabilities = "mine", 1, "here", Capabilities()
    {body}


@hookimpl
def smimbench_register_{kind}s(register):
    register(Mine)
"""


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (
            "prior",
            "denoise = 1",
            "prior Mine: the class needs sample and denoise, or law",
        ),
        (
            "prior",
            "sample = 1",
            "prior Mine: the class needs sample and denoise, or law",
        ),
        (
            "algorithm",
            "step = 1",
            "algorithm Mine: the class needs init and step and estimate, or fit",
        ),
        ("model", "forward = 1", "model Mine: the class lacks rank, sample_count"),
    ],
)
def test_an_item_that_lacks_something_is_refused_in_one_line(
    tmp_path, kind, body, message
):
    file = tmp_path / "mine.py"
    file.write_text(HEAD + ITEM.format(kind=kind, body=body))
    (plugin,) = [p for p in Registry([str(file)]).plugins if p.origin == str(file)]
    assert plugin.failed
    assert message in plugin.problems[0]
    assert "\n" not in plugin.problems[0]


class Steps(Algorithm):
    steps = 7


class Planned(Steps):
    def plan(self, data):
        return Plan(steps=3, batch=data.dimension, students=2, draws_fresh=True)


@pytest.mark.parametrize(
    ("algorithm", "plan"),
    [
        (Algorithm(), Plan()),
        (Steps(), Plan(steps=7)),
        (Planned(), Plan(steps=3, batch=4, students=2, draws_fresh=True)),
    ],
)
def test_a_plan_is_the_own_one_or_the_number_of_steps(algorithm, plan):
    data = placeholder_data(5, 2, 4, 1.25)
    assert (data.inputs.shape, data.labels.shape, data.sample_ratio) == (
        (5, 2, 4),
        (5,),
        1.25,
    )
    assert data.inputs.base.size == 1
    assert algorithm.plan(data) == plan


@pytest.mark.parametrize(
    ("name", "parameters", "plan"),
    [
        ("adam", {}, Plan(1000, 10)),
        ("adam", {"epochs": 3, "batch": 4}, Plan(9, 4)),
        ("sgd", {"steps": 6, "batch": 40}, Plan(6, 10)),
        (
            "sgd",
            {"steps": 6, "batch": 40, "online": True},
            Plan(6, 40, draws_fresh=True),
        ),
        (
            "averaged",
            {"of": {"name": "sgd", "steps": 6, "batch": 3}, "students": 5},
            Plan(6, 3, 5),
        ),
        ("averaged", {"of": "gamp", "students": 2}, Plan(students=2)),
        ("spectral", {}, Plan(1)),
        ("gamp", {}, Plan()),
    ],
)
def test_plans_of_what_ships(name, parameters, plan):
    algorithm = build(
        get_registry().get("algorithm", name).item, "algorithm", parameters
    )
    assert algorithm.plan(placeholder_data(10, 2, 4))[:4] == plan[:4]
