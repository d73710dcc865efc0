"""Fresh samples are counted by the engine: who draws undeclared fails, who declares stands at what was handed out."""

import numpy as np
import pytest

import smimbench
from smimbench.backend.device import get_backend
from smimbench.interfaces import Algorithm, Capabilities, Info, Plan
from smimbench.registry.registry import Registry, set_registry
from smimbench.run.cell import run_cell
from smimbench.run.loop import run_algorithm
from smimbench.suite.reader import load_suite
from smimbench.suite.schema import RunOptions
from tests.helpers import LINE, sequence, suite_text, write_suite

PLUGIN = '''
import numpy as np
import smimbench
from smimbench.interfaces import Plan


class Ridge:
    """Ridge regression on so many times the size of the data set, all of them fresh."""

    version, reference, capabilities = 1, "none", smimbench.Capabilities(models=("sequence-multi-index",))
    declares = True

    def plan(self, data):
        return Plan(steps=1, draws_fresh=self.declares if data.inputs.shape[0] > 1 else False)

    def fit(self, data, problem, rng):
        x, y = data.fresh(rng, 20 * data.inputs.shape[0])
        x, y = np.reshape(x, (-1, data.dimension)), np.reshape(y, -1)
        return np.sqrt(data.dimension) * np.linalg.solve(x.T @ x + np.eye(data.dimension), x.T @ y)[None]


class Online(Ridge):
    """It says so, though not for a data set of one sample."""

    name = "ridge-online"


class Undeclared(Ridge):
    """It does not."""

    name, declares = "ridge-undeclared", False


class Both(Ridge):
    """It draws one sample and learns from the data set."""

    name = "ridge-both"

    def fit(self, data, problem, rng):
        data.fresh(rng, 1)
        x, y = np.reshape(data.inputs, (-1, data.dimension)), np.reshape(data.labels, -1)
        return (x.T @ y)[None] / len(y)


@smimbench.hookimpl
def smimbench_register_algorithms(register):
    for one in (Online, Undeclared, Both):
        register(one)
'''


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Rows and records of the three."""
    folder = tmp_path_factory.mktemp("fresh")
    (folder / "fresh.py").write_text(PLUGIN)
    set_registry(Registry([str(folder / "fresh.py")]))
    names = ("ridge-online", "ridge-undeclared", "ridge-both")
    path = write_suite(
        folder, suite_text(LINE, [0.5], 40, 2, *(f'name = "{name}"' for name in names))
    )
    try:
        records: list = []
        rows = smimbench.run(path, results=folder / "results", on_record=records.append)
        yield (
            rows,
            {record["algorithm"]: record for record in records},
            load_suite(path),
        )
    finally:
        set_registry(None)


def test_who_declares_stands_at_what_was_handed_out(runs):
    rows, records, _ = runs
    record = records["ridge-online"]
    assert record["status"] == "ok"
    assert (record["samples"], record["fresh_samples"]) == (20, 400)
    assert record["sample_ratio"] == 10.0
    assert record["trajectory"]["samples"][-1] == 400
    row = next(
        row
        for row in rows
        if row["algorithm"] == "ridge-online" and row["metric"] == "mse"
    )
    assert row["alpha"] == 10.0
    assert row["bayes"] < row["mean"] < 10 * row["bayes"]


def test_who_does_not_declare_gets_none(runs):
    _, records, _ = runs
    record = records["ridge-undeclared"]
    assert record["status"] == "failed"
    assert record["reason"].startswith(
        "ValueError: data.fresh is only for algorithms that declare it: plan(data) must return"
    )
    assert not record["metrics"]


def test_who_declares_sees_no_data_set_that_would_not_count(runs):
    _, records, _ = runs
    assert records["ridge-both"]["status"] == "diverged"


def test_a_trusted_time_counts_no_sample_of_the_warm_up(runs):
    _, records, suite = runs
    cell = next(
        cell for cell in suite.cells() if cell.algorithm_label == "ridge-online"
    )
    record = run_cell(cell, timing=True).document
    assert record["fresh_samples"] == 400
    assert record["metrics"] == {
        **records["ridge-online"]["metrics"],
        **record["metrics"],
    }


class Stream(Algorithm):
    """Draws a sample in every step; claims none."""

    name, version, reference, capabilities = "stream", 1, "none", Capabilities()

    def __init__(self, steps=3, outcome="ok", again=None):
        self.steps, self.outcome, self.again = steps, outcome, again

    def plan(self, data):
        assert not np.any(data.inputs), "a plan sees no numbers"
        return Plan(self.steps, batch=1, draws_fresh=True)

    def init(self, problem, data, rng):
        data.fresh(rng, 2)
        assert np.isnan(data.inputs).all()
        assert np.isnan(data.labels).all()
        return rng, np.zeros((1, data.dimension))

    def step(self, problem, data, state):
        inputs, _ = data.fresh(state[0], 5)
        assert inputs.shape[0] == 5
        worth = float("nan") if self.outcome == "diverged" else 1.0
        return state, Info(worth, samples=1.0)

    def estimate(self, state):
        return state[1]

    def retry(self, problem, outcome):
        return self.again if outcome in ("diverged", "unsettled") else None


def run_stream(algorithm, **settings):
    problem = sequence("linear", 1)
    instance = problem.instance(0.5, 20)
    data = instance.data(get_backend())
    return run_algorithm(
        problem,
        instance,
        data,
        algorithm,
        np.random.default_rng,
        RunOptions(**settings),
        get_backend(),
    )


def test_the_claim_of_an_algorithm_is_not_asked():
    assert run_stream(Stream()).trajectory["samples"] == [2, 7, 12, 17]


def test_a_second_attempt_goes_on_counting():
    found = run_stream(Stream(2, "diverged", again=Stream(2)))
    assert found.restarts == 1
    assert found.trajectory["samples"] == [
        9,
        14,
        19,
    ]  # 7 until the first had diverged, then 2 in its start and 5 in a step


def test_a_resumed_run_goes_on_counting():
    found = run_stream(Stream(None, again=Stream(None)), max_iterations=2)
    assert (found.restarts, found.iterations) == (1, 4)
    assert found.trajectory["samples"] == [2, 7, 12, 17, 22]
