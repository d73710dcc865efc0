"""Cells under watch from outside: what ends a process, or does not end, is a record, and its siblings run as if alone."""

import json
import os
import time

import pytest

from smimbench.run.campaign import run_cells
from smimbench.run.executor import Limits
from smimbench.run.processes import ClaimFiles, run_in_processes
from smimbench.run.store import Store
from tests.helpers import SUITE, call_outside, write_suite
from tests.records import numbers
from tests.run.conftest import PLUGIN
from tests.run.test_campaign import cells_of

pytestmark = [pytest.mark.usefixtures("started_workers"), pytest.mark.slow]

ENDS = {
    "aborter": "the worker process died 2 times: SIGABRT",
    "faulter": "the worker process died 2 times: SIGSEGV",
    "killer": "the worker process died 2 times: SIGKILL (out of memory, or killed)",
    "exiter": "the worker process died 2 times: it left with exit code 0 before it was finished",
    "interrupter": "KeyboardInterrupt: no message",
    "leaver": "SystemExit: 7",
}


def test_one_process_outlives_every_end(tmp_path, registry):
    """One worker, cell after cell: each bad one fails with its reason, and the last is as good as alone."""
    cells = [
        c
        for c in cells_of(tmp_path, registry, *ENDS, "quiet")
        if c.replicate == 0 and c.alpha == 0.5
    ]
    records = run_cells(cells, Store(tmp_path / "results"), in_subprocess=True)
    assert [record.algorithm for record in records] == [*ENDS, "quiet"]
    found = {record.algorithm: record for record in records}
    assert {name: found[name].reason for name in ENDS} == ENDS
    assert {found[name].status for name in ENDS} == {"failed"}
    assert (
        "faulthandler" in found["faulter"].output
        or "Segmentation fault" in found["faulter"].output
    )
    alone = run_cells(cells[-1:], Store(tmp_path / "alone"))
    assert numbers(found["quiet"].document) == numbers(alone[0].document)
    assert len(Store(tmp_path / "results").load()) == len(cells)


def test_the_next_cell_begins_before_a_record_is_stored(tmp_path, registry):
    cells = cells_of(tmp_path, registry, "quiet")[:3]
    for workers, begun_before_the_first_record in ((2, 3), (1, 1)):
        claims = ClaimFiles(tmp_path / str(workers))
        records = run_in_processes(cells, workers, 1, claims=claims)
        next(records)
        assert len(list(claims.folder.iterdir())) == begun_before_the_first_record
        records.close()


def test_a_cell_whose_process_died_once_is_run_again(tmp_path, registry):
    cells = cells_of(
        tmp_path,
        registry,
        "dies-once",
        **{"algorithms[0].flag": f'"{tmp_path / "flag"}"'},
    )[:2]
    records = run_cells(cells, Store(tmp_path / "results"), in_subprocess=True)
    assert [record.status for record in records] == ["ok", "ok"]


def test_a_step_that_never_returns_ends_at_the_time_limit(tmp_path, registry):
    endless = ("endless", "endless-start")
    cells = cells_of(tmp_path, registry, *endless, "quiet", **{"run.timeout": 0.5})[:3]
    begin = time.monotonic()
    records = run_cells(cells, Store(tmp_path / "results"), workers=2)
    assert time.monotonic() - begin < 60
    found = {record.algorithm: record for record in records}
    for name in endless:
        assert found[name].status == "timeout"
        assert (
            found[name].reason
            == "0.5 s reached in a step that did not return; ended from outside"
        )
    assert found["quiet"].status == "ok"


def test_what_is_being_run_is_seen_from_outside(tmp_path, registry):
    cells = cells_of(tmp_path, registry, "sleeper", **{"run.timeout": 1.0})[:2]
    seen = {cell.key: [] for cell in cells}

    def look(underway):
        for one in underway:
            seen[one.task.arguments[0].key].append(one.iterations)

    records = run_cells(
        cells, Store(tmp_path / "results"), in_subprocess=True, on_progress=look
    )
    made = {record.key: record.iterations for record in records}
    for key, looks in seen.items():
        assert len(looks) >= 5
        assert looks == sorted(
            looks
        )  # the second begins again at 0, in the same process
        assert looks[0] < made[key] / 2 < looks[-1] <= made[key]


def test_limits_of_a_cell_hold_whatever_the_suite_says(tmp_path, registry):
    (endless, *_), (hoarder, *_) = (
        cells_of(tmp_path, registry, name) for name in ("endless", "hoarder")
    )
    (late,) = run_cells(
        [endless], Store(tmp_path / "a"), limits=Limits(seconds=0.5), in_subprocess=True
    )
    assert (late.status, late.reason) == (
        "timeout",
        "the cell took more than 0.5 s; ended from outside",
    )
    (large,) = run_cells(
        [hoarder],
        Store(tmp_path / "b"),
        limits=Limits(memory=400 << 20),
        in_subprocess=True,
    )
    assert large.status == "failed"
    assert "GB, more than 0.391; ended from outside" in large.reason


def test_a_budget_ends_a_run_and_leaves_the_rest_to_be_run(tmp_path, registry):
    cells = cells_of(tmp_path, registry, "endless")
    begin = time.monotonic()
    limits = Limits(deadline=begin + 1.0)
    assert (
        run_cells(cells, Store(tmp_path / "a"), in_subprocess=True, limits=limits) == []
    )
    assert 1 < time.monotonic() - begin < 30
    assert Store(tmp_path / "a").load() == {}


def test_what_a_plugin_prints_is_kept_and_disturbs_nobody(tmp_path):
    text = SUITE.partition("[[algorithms]]")[0] + '\n[[algorithms]]\nname = "printer"\n'
    suite = write_suite(tmp_path, text)
    options = (
        "--plugins",
        PLUGIN,
        "--results",
        "results",
        "--workers",
        "1",
        "--json",
        "--no-figure",
        "--quiet",
    )
    done = call_outside("run", suite, *options, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status_counts"] == {"ok": 4}
    assert done.stderr == ""
    records = Store(tmp_path / "results" / "small").load()
    assert len(records) == 4
    for record in records.values():
        assert record.output.count("from C") == 3
        assert '{"rows": []} \ufffd[2J' in record.output
    assert not os.path.exists("/results")


def test_what_a_plugin_compiles_counts_once_in_a_dry_run(tmp_path, registry):
    from smimbench.run import cost

    (cell, *_) = cells_of(tmp_path, registry, "compiler")
    assert (
        0.5 < cost.estimate_cost([cell], 1).seconds < 100
    )  # 1000 steps of a millisecond, or more on a busy machine


def test_a_dry_run_tries_plugins_where_they_can_be_ended(
    tmp_path, registry, monkeypatch
):
    from smimbench.run import cost

    monkeypatch.setattr(cost, "LONGEST_TRIAL", 0.3)
    cells = cells_of(tmp_path, registry, "endless", "exiter")
    begin = time.monotonic()
    found = cost.estimate_cost(cells, 1)
    assert time.monotonic() - begin < 60
    assert found.seconds > 0
