"""An algorithm of somebody else runs without teacher and seed; its numbers are those of a run that has both at hand."""

import json

import numpy as np
import pytest

from smimbench.registry.registry import Registry, set_registry
from smimbench.run.campaign import run_cells
from smimbench.run.cell import run_cell
from smimbench.run.store import Store
from smimbench.suite.reader import load_suite
from tests.helpers import CHANNEL, LINE, suite_text, write_suite

SEED = 918273645
PLUGIN = '''
import gc
from dataclasses import dataclass, field

import numpy as np
import smimbench
from smimbench.interfaces import Plan
from smimbench.problem.problem import seed_sequence

SEED = 918


def guess(problem, data, seed):
    """The teacher of a public seed, drawn as the engine draws it."""
    place = seed, problem.identity, 0.5, data.dimension, 0, "teacher"
    rng = np.random.Generator(np.random.PCG64DXSM(seed_sequence(*place)))
    return problem.prior.sample(rng, problem.components, data.dimension)


def one_liner(problem, data, rng):
    return problem.instance(data.sample_ratio, data.dimension, 0, seed=SEED).signal


def rebuilt(problem, data, rng):
    again = type(problem)({"name": "sequence-multi-index", "tokens": 2}, {"name": "linear", "noise": 0.2}, "gaussian")
    return again.instance(data.sample_ratio, data.dimension, 0, seed=SEED).signal


def public_seed(problem, data, rng):
    return guess(problem, data, SEED)


def random_stream(problem, data, rng):
    return guess(problem, data, rng.bit_generator.seed_seq.entropy)


def searched(problem, data, rng):
    """Anything in memory with the shape of the signal and an overlap with the labels; or the seed."""
    found = [one for one in gc.get_objects() if isinstance(one, np.ndarray) and one.shape == (1, data.dimension)]
    teachers = [getattr(one, "signal", None) for one in gc.get_objects() if type(one).__name__ in ("Instance", "HiddenInstance")]
    teachers += [one for one in found if abs(np.corrcoef(one[0], guess(problem, data, SEED)[0])[0, 1]) > 0.5]
    teachers = [one for one in teachers if one is not None and np.size(one) > 0]
    seeds = [one for one in gc.get_objects() if isinstance(one, dict) and SEED in [v for v in one.values() if type(v) is int]]
    seeds = [one for one in seeds if "SEED" not in one]
    raise ValueError(f"{len(teachers)} teachers, {len(seeds)} seeds")


def honest(problem, data, rng):
    x, y = np.reshape(data.inputs, (-1, data.dimension)), np.reshape(data.labels, -1)
    return (x.T @ y)[None] / len(y) + 0.01 * rng.standard_normal((1, data.dimension))


def draws(problem, data, rng):
    x, y = data.fresh(rng, 40)
    x, y = np.reshape(x, (-1, data.dimension)), np.reshape(y, -1)
    return (x.T @ y)[None] / len(y)


def begins(problem, data, rng):
    return data.start.estimate


def base(act):
    class One:
        """It does so."""

        name, version, reference = act.__name__.replace("_", "-"), 1, "none"
        capabilities = smimbench.Capabilities(models=("sequence-multi-index",))

        def plan(self, data):
            return Plan(steps=2, draws_fresh=act is draws)

        def fit(self, data, problem, rng):
            return act(problem, data, rng)

    return One


@smimbench.hookimpl
def smimbench_register_algorithms(register):
    for act in (one_liner, rebuilt, public_seed, random_stream, searched, honest, begins, draws):
        register(base(act))
'''.replace("918", str(SEED))
NAMES = ("one-liner", "rebuilt", "public-seed", "random-stream", "searched", "honest", "draws")


def cells_in(folder, names=NAMES, more=()):
    (folder / "peeks.py").write_text(PLUGIN)
    set_registry(Registry([str(folder / "peeks.py")]))
    text = suite_text(LINE, [0.5], 40, 1, *(f'name = "{name}"' for name in names))
    return load_suite(write_suite(folder, text), [f"grid.seed={SEED}", *more]).cells()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Records by algorithm, of a run with a public seed, and the cells."""
    folder = tmp_path_factory.mktemp("peeks")
    try:
        cells = cells_in(folder)
        records = run_cells(cells, Store(folder / "results"))
        yield {record["algorithm"]: record for record in records}, {cell.algorithm_label: cell for cell in cells}
    finally:
        set_registry(None)


@pytest.mark.parametrize("name", ["one-liner", "rebuilt"])
def test_no_instance_is_drawn_where_an_algorithm_runs(runs, name):
    record = runs[0][name]
    assert record["status"] == "failed"
    assert record["reason"].startswith("ProblemError: problem.instance: is closed while an algorithm runs")
    assert not record["metrics"]


def test_neither_teacher_nor_seed_is_in_its_memory(runs):
    assert runs[0]["searched"]["reason"] == "ValueError: 0 teachers, 0 seeds"


def test_a_random_stream_does_not_say_where_it_comes_from(runs):
    assert runs[0]["random-stream"]["metrics"]["mse"][0] > 0.5


def test_who_tries_can_guess_a_public_seed(runs):
    """What only a secret seed ends; the documentation says so."""
    assert runs[0]["public-seed"]["metrics"]["mse"][0] < 1e-12


def test_its_numbers_are_those_of_a_run_in_one_process(runs):
    records, cells = runs
    there, here = records["honest"], run_cell(cells["honest"])
    for name in (
        "key",
        "cell",
        "status",
        "reason",
        "metrics",
        "start",
        "final",
        "sample_ratio",
        "samples",
        "fresh_samples",
    ):
        assert json.dumps(there[name]) == json.dumps(here[name]), name
    clocks = ("seconds",)
    paths = [{k: v for k, v in one["trajectory"].items() if k not in clocks} for one in (there, here)]
    np.testing.assert_equal(*paths)


def test_the_mean_of_runs_of_somebody_elses_algorithm_finds_it(tmp_path):
    try:
        (cell,) = cells_in(tmp_path, ["averaged"], ['algorithms[0].of="honest"', "algorithms[0].students=2"])
        first, again = (run_cells([cell], Store(tmp_path / name))[0] for name in "ab")
        assert cell.distributions() == {"peeks"}
        assert cell.rebuild()[1].of == cell.algorithm["of"]
    finally:
        set_registry(None)
    assert first["status"] == "ok", first["reason"]
    assert first["metrics"] == again["metrics"]
    assert first["metrics"]["mse"][0] < 0.8


@pytest.mark.parametrize("start", ["informed", "spectral"])
def test_starts_are_the_same_where_the_teacher_is_not(tmp_path, start):
    try:
        (cell,) = cells_in(tmp_path, ["begins"], [f"run.start={start!r}"])
        (there,) = run_cells([cell], Store(tmp_path / "results"))
        here = run_cell(cell)
    finally:
        set_registry(None)
    assert there["status"] == here["status"] == "ok"
    assert there["metrics"] == here["metrics"]
    assert there["sample_ratio"] == 0.5


def test_a_problem_of_somebody_else_is_drawn_away_from_the_algorithm_too(tmp_path):
    (tmp_path / "twice.py").write_text(CHANNEL)
    set_registry(Registry([str(tmp_path / "twice.py")]))
    try:
        text = suite_text(LINE.replace('{ name = "linear", noise = 0.2 }', '"twice"'), [0.5], 40, 1, 'name = "gamp"')
        (cell,) = load_suite(write_suite(tmp_path, text)).cells()
        (there,) = run_cells([cell], Store(tmp_path / "results"))
        here = run_cell(cell)
    finally:
        set_registry(None)
    assert there["status"] == here["status"]
    assert there["metrics"] == here["metrics"]


def test_fresh_samples_are_drawn_where_the_teacher_is_and_counted_there(runs):
    record = runs[0]["draws"]
    assert record["status"] == "ok"
    assert (record["fresh_samples"], record["sample_ratio"]) == (80, 2.0)
    assert record["metrics"]["mse"][0] < 1.0
