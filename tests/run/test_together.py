"""Seeds of a point in one pass: the records of seeds one by one, with a share of the time, and no seed the others' keeper."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from smimbench_algorithms.gamp.batch import GampBatch

from smimbench.backend import memory
from smimbench.backend.arrays import to_host
from smimbench.backend.device import Backend, Elapsed, get_backend
from smimbench.registry.registry import Registry
from smimbench.run import groups
from smimbench.run.campaign import plan_campaign, run_cells
from smimbench.run.cell import run_cells_together
from smimbench.run.loop import LoopSettings, run_algorithm
from smimbench.run.store import Store
from smimbench.run.together import joined, run_together
from smimbench.suite.reader import load_suite
from tests.backend.launches import DEVICE, Counts
from tests.helpers import ATTENTION, SUITE, attention, call, sequence, write_suite

REGISTRY = Registry(third_party=False)
GAMP = REGISTRY.get("algorithm", "gamp").item
HOST = get_backend("numpy")

PROBLEMS = {
    "softmax": (attention(), 0.1, 20),
    "softmax of four tokens": (attention(tokens=4), 0.05, 16),
    "hardmax": (attention("hardmax"), 0.3, 20),
    "noisy": (attention("linear", noise=0.1, noise_convention="plain"), 0.3, 20),
    "low rank": (sequence(), 1.5, 60),
    "low rank of three tokens": (sequence(tokens=3), 0.7, 60),
    "three components": (sequence("linear", noise=0.2, components=3), 0.8, 40),
    "signs": (sequence("sign"), 1.0, 40),
    "noisy signs": (sequence("probit", tokens=1), 2.0, 40),
}


@pytest.fixture(params=["host", "device"])
def backend(request, monkeypatch):
    if request.param == "device":
        Counts().watch(monkeypatch)
        return DEVICE
    return HOST


def one_by_one_and_together(problem, instances, backend, algorithm=None, **settings):
    """Results of runs one after the other, and of the same in one pass."""
    how, gamp = LoopSettings(**settings), algorithm or GAMP()
    data = [instance.data(backend) for instance in instances]

    def rng(k):
        return lambda attempt: np.random.default_rng([k, attempt])

    alone = []
    for k, (instance, own) in enumerate(zip(instances, data)):
        try:
            alone.append(run_algorithm(problem, instance, own, gamp, rng(k), how, backend))
        except ValueError as error:
            alone.append(error)
    rngs = [rng(k) for k in range(len(data))]
    return alone, run_together(problem, instances, data, gamp, rngs, [how] * len(data), backend)


def same(one, other, together):
    """Whether two results are the same run."""
    assert (one.restarts, one.restart_reason) == (other.restarts, other.restart_reason)
    one, other = one.attempt, other.attempt
    assert (one.status, one.reason, one.iterations) == (other.status, other.reason, other.iterations)
    assert (one.together, other.together) == (1, together)
    assert one.warnings == other.warnings
    np.testing.assert_allclose(to_host(one.estimate), to_host(other.estimate), rtol=0, atol=1e-8)
    np.testing.assert_allclose(one.V, other.V, rtol=0, atol=1e-8)
    assert one.trajectory.keys() == other.trajectory.keys()
    for name in set(one.trajectory) - {"seconds"}:
        np.testing.assert_allclose(one.trajectory[name], other.trajectory[name], rtol=1e-7, atol=1e-8)
    for name in one.final:
        np.testing.assert_allclose(one.final[name], other.final[name], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_numbers_are_those_of_seeds_one_by_one(backend, name):
    problem, alpha, dimension = PROBLEMS[name]
    instances = [problem.instance(alpha, dimension, k) for k in range(3)]
    damped = GAMP(damping=0.2)  # such runs are started anew with more damping
    for one, other in zip(*one_by_one_and_together(problem, instances, backend, damped, max_iterations=3)):
        same(one, other, 3)


def test_each_seed_ends_and_restarts_for_itself():
    """Seeds that end after different numbers of steps, and some that are started anew."""
    problem = sequence()
    instances = [problem.instance(1.3, 50, k) for k in range(5)]
    alone, found = one_by_one_and_together(problem, instances, HOST, max_iterations=33)
    assert [result.restarts for result in alone] == [0, 1, 1, 0, 1]
    assert len({result.attempt.iterations for result in alone if result.restarts == 0}) == 2
    for one, other in zip(alone, found):
        same(one, other, 3 if one.restarts else 5)  # those that are started anew are a pass of their own


def test_those_that_are_resumed_go_on_alone():
    """Some end within their iterations; the others go on as another version, which has a step of its own."""
    problem = attention()
    instances = [problem.instance(0.06, 20, k) for k in range(4)]
    alone, found = one_by_one_and_together(problem, instances, HOST, max_iterations=43)
    assert {result.restarts for result in alone} == {0, 1}
    for one, other in zip(alone, found):
        same(one, other, 4)
        assert (one.attempt.resumed is None) == (one.restarts == 0)


def test_in_single_precision_and_from_a_start(backend):
    problem = attention()
    backend = dataclasses.replace(backend, dtype="float32")
    instances = [problem.instance(0.2, 20, k, dtype="float32") for k in range(2)]
    data = [
        one.data(backend, problem.start(one, 9.0, np.random.default_rng(k), backend, informed=True))
        for k, one in enumerate(instances)
    ]
    gamp = GAMP(damping=0.3)
    states = [gamp.init(problem, one, np.random.default_rng(0)) for one in data]
    batch = gamp.batched(problem)
    whole, both = batch.join(states), joined(data)
    for _ in range(4):
        states = [gamp.step(problem, one, state)[0] for one, state in zip(data, states)]
        whole, info = batch.step(problem, both, whole)
    assert whole.V.dtype == np.float32
    np.testing.assert_allclose(info.damping, [0.3, 0.3], rtol=1e-6)
    for own, state in zip(batch.split(whole), states):
        np.testing.assert_allclose(to_host(own.estimate), to_host(state.estimate), rtol=0, atol=1e-4)


def test_a_seed_that_fails_or_diverges_changes_no_other(backend):
    """One has labels that are no numbers; another one's labels make the channel raise."""
    problem = attention("linear", noise=0.1)
    instances = [problem.instance(0.4, 16, k) for k in range(4)]

    def with_label(k, value):
        labels = instances[k].labels.copy()
        labels[3] = value
        return dataclasses.replace(instances[k], labels=labels)

    instances[1] = with_label(1, np.nan)
    instances[2] = with_label(2, 1e9)
    plain = problem.channel.posterior

    class Strict:
        def __getattr__(self, name):
            return getattr(problem.channel, name)

        def posterior(self, y, omega, V, **options):
            if bool((to_host(y) > 1e8).any()):
                raise ValueError("a label of this size cannot be")
            return plain(y, omega, V, **options)

    strict = attention("linear", noise=0.1)
    strict.channel = Strict()
    alone, found = one_by_one_and_together(strict, instances, backend, max_iterations=6)
    assert [type(result).__name__ for result in found] == ["LoopResult", "LoopResult", "ValueError", "LoopResult"]
    assert str(found[2]) == str(alone[2]) == "a label of this size cannot be"
    assert found[1].attempt.status.value == alone[1].attempt.status.value == "diverged"
    for k in (0, 3):  # the first pass raised, and each went on alone
        same(alone[k], found[k], 1)
    # Without the one that raises the other three share their steps, and what is no number stays with one of them.
    alone, found = one_by_one_and_together(problem, [instances[k] for k in (0, 1, 3)], backend, max_iterations=6)
    assert found[1].attempt.reason == alone[1].attempt.reason
    for k in (0, 2):
        same(alone[k], found[k], 3)


def test_an_error_after_some_steps_is_met_by_each_alone(monkeypatch):
    problem = attention()
    instances = [problem.instance(0.2, 16, k) for k in range(3)]
    steps, plain = [], GampBatch.step

    def step(self, *arguments):
        steps.append(1)
        if len(steps) == 5:
            raise MemoryError("no room for all of them")
        return plain(self, *arguments)

    monkeypatch.setattr(GampBatch, "step", step)
    alone, found = one_by_one_and_together(problem, instances, HOST, max_iterations=12)
    assert len(steps) == 5
    for one, other in zip(alone, found):
        same(one, other, 3)


class Clocked(Backend):
    """Every piece of work takes 6 seconds, a processor's and a device's too."""

    def stopwatch(self):
        return lambda: Elapsed(6.0, 3.0)


class Once(GAMP):
    """It does not go on after its iterations."""

    def resumed(self, problem):
        return None


def test_the_time_of_a_step_is_shared_evenly():
    problem = attention()
    backend = Clocked("numpy", HOST.xp)
    instances = [problem.instance(0.2, 16, k) for k in range(3)]
    data = [one.data(backend) for one in instances]
    limits = [LoopSettings(max_iterations=k) for k in (4, 2, 4)]
    rngs = [np.random.default_rng] * 3
    found = [one.attempt for one in run_together(problem, instances, data, Once(), rngs, limits, backend)]
    assert [one.iteration_seconds for one in found] == [[2.0, 2.0, 3.0, 3.0], [2.0, 2.0], [2.0, 2.0, 3.0, 3.0]]
    assert [one.seconds for one in found] == [16.0, 10.0, 16.0]  # the starts are made one by one
    assert [one.device_seconds for one in found] == [8.0, 5.0, 8.0]
    late = [LoopSettings(max_iterations=9, timeout=11.0)] * 3
    found = [one.attempt for one in run_together(problem, instances, data, GAMP(), rngs, late, backend)]
    assert [(one.status.value, one.iterations) for one in found] == [("timeout", 3)] * 3


# -- cells ---------------------------------------------------------------------------------------------------------


def cells_of(folder, text=ATTENTION, *overrides, only=("algorithm=gamp",)):
    return load_suite(write_suite(folder, text), list(overrides), list(only), registry=REGISTRY).cells(
        "numpy", REGISTRY
    )


def test_records_are_those_of_cells_alone_with_their_keys(tmp_path):
    cells = cells_of(
        tmp_path, ATTENTION, "grid.seeds=3", "grid.alpha=0.2", "grid.dimension=16", "run.max_iterations=20"
    )
    alone = run_cells(cells, Store(tmp_path / "alone"), registry=REGISTRY)
    for isolated in (False, True):
        store = Store(tmp_path / f"together {isolated}")
        found = {r["key"]: r for r in run_cells(cells, store, registry=REGISTRY, seeds_at_once=3, isolated=isolated)}
        assert store.load().keys() == found.keys() == {cell.key for cell in cells}
        for one in alone:
            other = found[one["key"]]
            names = ("cell", "status", "reason", "iterations", "samples", "placement", "start", "warnings")
            assert json.dumps([one[name] for name in names]) == json.dumps([other[name] for name in names])
            for name, values in one["metrics"].items():
                np.testing.assert_allclose(other["metrics"][name], values, rtol=0, atol=1e-8)
            assert "together" not in one["timing"]
            assert (other["timing"]["together"], other["timing"]["trusted"]) == (3, False)
            assert 0 < other["timing"]["per_iteration"] < other["timing"]["seconds"] < other["timing"]["total_seconds"]


def test_a_cell_that_cannot_begin_is_a_failed_cell_and_the_others_go_on(tmp_path, monkeypatch):
    from smimbench.run import cell as module

    cells = cells_of(tmp_path, ATTENTION, "grid.seeds=3", "grid.dimension=16", "run.max_iterations=6", "grid.alpha=0.2")
    plain = module._instance_of_cell

    def draw(cell, *arguments):
        if cell.replicate == 1:
            raise RuntimeError("this one cannot be drawn")
        return plain(cell, *arguments)

    monkeypatch.setattr(module, "_instance_of_cell", draw)
    found = run_cells_together(cells, registry=REGISTRY)
    assert [record["status"] == "failed" for record in found] == [False, True, False]
    assert found[1]["reason"] == "RuntimeError: this one cannot be drawn"
    assert [record["timing"].get("together") for record in found] == [2, None, 2]


def test_what_is_run_together(tmp_path, monkeypatch):
    text = SUITE.replace("seeds     = 2", "seeds     = 5")
    cells = cells_of(tmp_path, text, only=())
    alone = [(cell,) for cell in cells]
    assert groups.grouped(cells, REGISTRY) == alone  # on the host, unless it is asked for
    assert groups.grouped(cells, REGISTRY, 1) == alone
    found = groups.grouped(cells, REGISTRY, 4)
    assert sorted(map(len, found)) == [1] * 10 + [2, 2, 3, 3]  # adam steps one seed after the other
    assert {cell.key for group in found for cell in group} == {cell.key for cell in cells}
    for group in found:
        assert len({(cell.alpha, cell.algorithm["name"]) for cell in group}) == 1
    gamp = [cell for cell in cells if cell.algorithm["name"] == "gamp"]
    mixed = [dataclasses.replace(cell, run=cell.run.model_copy(update={"dtype": "mixed"})) for cell in gamp]
    assert {len(group) for group in groups.grouped(mixed, REGISTRY, 4)} == {1}

    class Accelerated(Backend):
        accelerated = True

    Counts().watch(monkeypatch)
    backend = Accelerated("strict", DEVICE.xp, "float64", DEVICE.device)
    monkeypatch.setattr(groups, "get_backend", lambda *_, **__: backend)
    assert sorted(map(len, groups.grouped(gamp, REGISTRY))) == [5, 5]
    monkeypatch.setattr(memory, "SMALLEST_CHUNK", 1)
    Counts().watch(monkeypatch, free=8 << 17)  # chunks of 87 samples: 15 or 30 to an instance
    found = groups.grouped(gamp, REGISTRY)
    assert [(group[0].alpha, len(group)) for group in found] == [(0.5, 5), (1.0, 2), (1.0, 2), (1.0, 1)]


def test_a_pass_whose_process_is_ended_is_run_again_cell_by_cell(tmp_path):
    plugin = tmp_path / "fragile.py"
    plugin.write_text(FRAGILE)
    registry = Registry([str(plugin)])
    text = ATTENTION.replace('name = "gamp"', 'name = "fragile"')
    suite = load_suite(
        write_suite(tmp_path, text), ["grid.seeds=2", "grid.alpha=0.2", "grid.dimension=8"], registry=registry
    )
    cells = suite.cells("numpy", registry)
    found = run_cells(cells, Store(tmp_path / "r"), registry=registry, isolated=True, seeds_at_once=2)
    assert sorted(record["key"] for record in found) == sorted(cell.key for cell in cells)
    assert {record["status"] for record in found} == {"ok"}
    assert all("together" not in record["timing"] for record in found)


FRAGILE = '''
import os

import numpy as np

import smimbench
from smimbench import Capabilities, Info, hookimpl


class Fragile:
    """Finds nothing, in two steps; several at once are the end of its process."""

    name = "fragile"
    version = 1
    reference = "none"
    capabilities = Capabilities()
    steps = 2

    def init(self, problem, data, rng):
        return problem.prior.mean(problem.components, data.dimension)

    def step(self, problem, data, state):
        return state, Info(residual=1.0)

    def estimate(self, state):
        return state

    def batched(self, problem):
        return self

    def join(self, states):
        os._exit(3)


@hookimpl
def smimbench_register_algorithms(register):
    register(Fragile)
'''


def test_the_option_says_where_it_is_not_used(tmp_path, capsys):
    suite = load_suite(write_suite(tmp_path), registry=REGISTRY)
    store = Store(tmp_path / "results")
    for timing in (False, True):
        plan = plan_campaign(suite, store, seeds_at_once=3, timing=timing, dry_run=True, registry=REGISTRY)
        assert any("--seeds-at-once 3 is not used" in line for line in plan.remarks) == timing
    folder = str(tmp_path / "r")
    arguments = (
        "run",
        str(tmp_path / "small.toml"),
        "--results",
        folder,
        "--seeds-at-once",
        "2",
        "--no-figure",
        "--json",
    )
    code, _, err = call(capsys, *arguments, "--only", "algorithm=gamp")
    assert code == 0, err
    records = Store(tmp_path / "r" / "small").load().values()
    assert {record["timing"]["together"] for record in records} == {2}
