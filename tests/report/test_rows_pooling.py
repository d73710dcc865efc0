"""Runs are pooled and matched by what was run; a label is only what it is called."""

import json
from dataclasses import replace

import numpy as np
import pytest

from smimbench.problem.problem import without
from smimbench.report.comparison import compare_rows, exceeds_limit
from smimbench.report.results import Results, with_unique_labels
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from tests.helpers import SUITE, loaded, output, silent, write_suite
from tests.records import record
from tests.report.rows import row

ONE = SUITE.replace("[0.5, 1.0]", "[0.5]").partition('[[algorithms]]\nname  = "adam"')[
    0
]
TWO = ONE.replace("noise = 0.2", "noise = [0.2, 0.8]")
COMPONENTS = ONE.replace("noise = 0.2", "noise = 0.2, components = 2")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """The folder ``results`` is that of the test."""
    monkeypatch.chdir(tmp_path)


def stored(folder, suite, mse):
    """Results of a suite, every cell with the error that is given for its noise."""
    store = Store(folder)
    for i, cell in enumerate({cell.key: cell for cell in suite.cells()}.values()):
        value = mse[cell.problem["channel"]["noise"]] + 0.01 * (i % 2)
        store.write(
            record(
                cell=cell.identity(), iterations=2, problem=cell.problem_label, algorithm=cell.algorithm_label,
                metrics={"mse": [value], "overlap": [1 - value]}, timing={"seconds": 1.0, "cpu_seconds": 1.0},
                trajectory={"iteration": [0], "seconds": [0.0], "mse": [[value]], "overlap": [[0.1]], "samples": [None]},
            )
        )  # fmt: skip
    return store


def rows_of(suite, store):
    return [
        r
        for r in Results(suite, store, answers=TheorySolver()).rows
        if r.metric == "mse"
    ]


def test_two_problems_of_one_label_are_two_rows_each_with_its_theory(tmp_path):
    suite = loaded(tmp_path, TWO)
    suite = replace(
        suite, plans=tuple(replace(plan, label="same") for plan in suite.plans)
    )
    rows = rows_of(suite, stored(tmp_path / "r", suite, {0.2: 0.3, 0.8: 0.7}))
    assert [r.estimate.n for r in rows] == [2, 2]
    assert [r.estimate.mean for r in rows] == pytest.approx([0.305, 0.705], abs=0.006)
    assert rows[0].theory.value < rows[1].theory.value
    assert [r.place.problem for r in rows] == [
        "same (channel.noise=0.2)",
        "same (channel.noise=0.8)",
    ]


def test_a_channel_of_another_package_is_told_apart_by_its_package():
    table = {"channel": {"name": "twice", "gain": 2}}
    theirs = {"channel": {**table["channel"], "distribution": "theirs"}}
    algorithm = {"name": "gamp"}
    rows = with_unique_labels(
        [
            row(problem="twice", identity={"problem": table, "algorithm": algorithm}),
            row(problem="twice", identity={"problem": theirs, "algorithm": algorithm}),
            row(problem="other"),
        ]
    )
    assert [r.place.problem for r in rows] == [
        "twice (channel.distribution=smimbench)",
        "twice (channel.distribution=theirs)",
        "other",
    ]
    assert {r.place.algorithm for r in rows} == {"gamp"}


def identified(noise, algorithm="gamp", version=1, **more):
    what = {
        "problem": {"channel": {"name": "linear", "noise": noise}},
        "algorithm": {"name": algorithm},
    }
    return row(identity=without("version", {**what, "version": version}), **more)


def test_a_comparison_matches_what_was_run_not_what_it_is_called():
    before = [
        identified(0.2, problem="old name", mean=0.5),
        identified(0.8, problem="noisy", mean=0.9),
    ]
    after = [
        identified(0.2, problem="noisy", mean=0.5, version=2),
        identified(0.4, problem="noisy", mean=0.1),
    ]
    entries = compare_rows(before, after)
    verdicts = {entry.place.problem: entry.judgment.verdict for entry in entries}
    assert verdicts == {
        "noisy (channel.noise=0.2)": "unchanged",
        "noisy (channel.noise=0.8)": "only before",
        "noisy (channel.noise=0.4)": "only after",
    }
    assert (
        sum(exceeds_limit(entry.judgment, 5.0, entry.time_percent) for entry in entries)
        == 2
    )


def test_an_estimate_of_two_components_from_elsewhere_is_scored(tmp_path, capsys):
    suite = write_suite(tmp_path, COMPONENTS)
    data, found = tmp_path / "data.npz", tmp_path / "found.npz"
    output(capsys, "data", suite, "--output", data)
    with np.load(data) as arrays:
        shape = json.loads(str(arrays["about"]))["estimate_shape"]
    np.savez(found, estimate=np.ones(shape))
    text = silent(
        capsys, "score", suite, "--estimate", found, "--label", "mine", "--json"
    )
    rows = json.loads(text)["rows"]
    assert [(r["metric"], r["component"], r["n"]) for r in rows] == [
        ("mse", 1, 1), ("mse", 2, 1), ("overlap", 1, 1), ("overlap", 2, 1),
    ]  # fmt: skip
    text = output(capsys, "score", suite, "--estimate", found)
    assert "component" in text
