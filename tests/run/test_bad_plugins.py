"""Plugins that do what they should not: each harms itself alone, and what it did is said."""

from __future__ import annotations

import json

import numpy as np
import pytest

from smimbench.registry.registry import Registry, set_registry
from smimbench.run.campaign import run_cells
from smimbench.run.cell import run_cell
from smimbench.run.store import Store
from smimbench.suite.reader import load_suite
from tests.helpers import ROOT, SUITE, write_suite
from tests.run.test_campaign import cells_of, numbers

PLUGIN = str(ROOT / "tests" / "faulty_algorithms.py")


@pytest.fixture(scope="module")
def registry():
    found = Registry([PLUGIN])
    set_registry(found)
    yield found
    set_registry(None)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unlocker", "cannot set WRITEABLE flag"),
        ("digger", "wrote into the data that all algorithms share"),
        ("raising-digger", "cannot open [/data/x]"),
    ],
)
def test_data_cannot_be_spoiled_for_siblings(tmp_path, registry, name, reason):
    """The sibling runs afterwards on the same instance, and finds the very numbers that it finds alone."""
    alone = run_cell(cells_of(tmp_path, registry, "gamp")[0], registry=registry)
    bad, sibling = cells_of(tmp_path, registry, name, "gamp")[:2]
    records = run_cells([bad, sibling], Store(tmp_path / "results"), registry=registry)
    assert records[0]["status"] == "failed"
    assert reason in records[0]["reason"]
    assert not records[0]["metrics"]
    assert numbers(records[1]) == numbers(alone)


def test_odd_findings_and_warnings_are_named_and_dropped(tmp_path, registry):
    record = run_cell(cells_of(tmp_path, registry, "odd-reporter")[0], registry=registry)
    assert record["status"] == "ok"
    assert record["final"]["fine"] == [1.5, None]
    assert record["final"]["3"] == [1.0, None]
    dropped = [line for line in record["warnings"] if "must be a list of numbers" in line]
    assert [line.split("'")[1] for line in dropped] == ["table", "text", "object", "deep"]
    assert "\x1b" not in json.dumps(record, ensure_ascii=False)


def test_an_error_of_any_kind_is_a_record(tmp_path, registry):
    record = run_cell(cells_of(tmp_path, registry, "unspeakable")[0], registry=registry)
    assert record["status"] == "failed"
    assert record["reason"] == "Silent: (a Silent whose text cannot be had)"


def test_warnings_without_end_are_cut(tmp_path, registry):
    record = run_cell(cells_of(tmp_path, registry, "tower")[0], registry=registry)
    assert record["status"] == "ok"
    assert len(record["warnings"]) == 101
    assert record["warnings"][-1] == "and 200 more"
    assert len(json.dumps(record)) < 500_000


def test_what_a_record_cannot_hold_fails_its_cell_alone(tmp_path, registry, monkeypatch):
    from smimbench_metrics.mse import MSE

    monkeypatch.setattr(MSE, "measure", lambda *_: ["nought"])
    record = run_cell(cells_of(tmp_path, registry, "quiet")[0], registry=registry)
    assert record["status"] in ("ok", "failed")
    Store(tmp_path / "results").write(record)
    assert len(Store(tmp_path / "results").load()) == 1


def test_data_are_handed_out_without_copies(tmp_path, registry):
    suite = load_suite(write_suite(tmp_path, SUITE), registry=registry)
    instance = suite.plans[0].problem.instance(1.0, 30)
    from smimbench.backend.device import get_backend

    data = instance.data(get_backend("numpy"))
    assert np.shares_memory(data.inputs, instance.inputs)
    assert not data.inputs.flags.writeable
    assert not data.labels.flags.writeable
