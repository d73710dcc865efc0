"""Cells to records: whatever happens there is a record, and how cells are spread over processes changes no bit."""

import itertools
import json
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from smimbench import load_suite
from smimbench.backend import machine
from smimbench.backend.device import Backend, get_backend
from smimbench.run import cost
from smimbench.run.campaign import missing_cells, run_cells
from smimbench.run.cell import run_cell
from smimbench.run.store import Store
from tests.helpers import ATTENTION, SUITE, environment, loaded
from tests.records import numbers, numbers_in


def cells_of(tmp_path, registry, *algorithms, text=SUITE, **overrides):
    tables = "".join(f'\n[[algorithms]]\nname = "{name}"\n' for name in algorithms)
    suite = loaded(
        tmp_path,
        text.partition("[[algorithms]]")[0] + tables,
        [f"{key}={value}" for key, value in overrides.items()],
    )
    return suite.cells()


@pytest.mark.slow
def test_a_spectral_start_is_part_of_the_time(tmp_path, registry, monkeypatch):
    from smimbench_attention.algorithms.spectral import Spectral

    original = Spectral.start

    def slow(*arguments):
        time.sleep(0.5)
        return original(*arguments)

    monkeypatch.setattr(Spectral, "start", slow)
    record = run_cell(
        cells_of(tmp_path, registry, "gamp", **{"run.start": '"spectral"'})[0]
    )
    assert record.status == "ok"
    seconds = record.trajectory["seconds"]
    assert record.timing.seconds >= seconds[-1] >= seconds[0] >= 0.5


@pytest.mark.slow
def test_cost_grows_with_students_and_epochs(tmp_path, registry):
    def seconds(*overrides):
        text = ATTENTION.partition("[[algorithms]]")[0]
        table = "\n[[algorithms]]\n" + "\n".join(overrides) + "\n"
        cells = loaded(tmp_path, text + table).cells()
        return cost.estimate_cost(
            [replace(cell, dimension=200) for cell in cells], 1
        ).seconds

    one = seconds('name = "adam"', "steps = 500")
    assert (
        seconds(
            'name = "averaged"', 'of = { name = "adam", steps = 500 }', "students = 32"
        )
        > 8 * one
    )
    assert seconds('name = "adam"', "epochs = 500", "batch = 50") > one / 10


def test_trials_share_their_time_and_pay_once_for_a_first_iteration(
    tmp_path, registry, monkeypatch
):
    cells = cells_of(tmp_path, registry, "gamp", "adam", "ridge", text=ATTENTION)
    timings = {
        "gamp": {"first_iteration": 9.0, "per_iteration": 0.1, "total_seconds": 9.5},
        "adam": {"first_iteration": 9.0, "per_iteration": None, "total_seconds": 9.5},
        "ridge": {"first_iteration": 0.1, "per_iteration": None, "total_seconds": 9.5},
    }
    trials = []

    def run(cell):
        trials.append(cell.algorithm["name"])
        assert cell.run.timeout == cost.TRIALS / 3
        return SimpleNamespace(timing=SimpleNamespace(**timings[trials[-1]]))

    monkeypatch.setattr(cost, "run_cell", run)
    monkeypatch.setattr(cost, "_shipped_costs", dict)
    assert cost.estimate_cost(cells, 1).cells_from_trials == len(cells)
    assert trials == ["gamp", "adam", "adam", "ridge"]


@pytest.mark.parametrize("name", ["smi-three-layers", "untied", "aim-two-layers"])
def test_shipped_suites_are_estimated_without_trials(monkeypatch, name):
    monkeypatch.setattr(cost, "run_cell", lambda cell: pytest.fail("a trial ran"))
    cells = load_suite(name).cells("numpy")
    estimate = cost.estimate_cost(cells, 1)
    assert estimate.cells_from_past == len(cells)
    assert 1 < estimate.seconds < 3600


def test_cost_is_what_the_model_says(tmp_path, registry, monkeypatch):
    """Products of a symmetric matrix take three quarters of what others take."""
    monkeypatch.setattr(cost, "HOST", cost._Speed(1e8))
    monkeypatch.setattr(cost, "_timed_trial", lambda *run: [])
    monkeypatch.setattr(cost, "_shipped_costs", dict)
    cells = cells_of(
        tmp_path, registry, "gamp", text=ATTENTION, **{"grid.dimension": 300}
    )
    problem, _ = cells_of(tmp_path, registry, "gamp", text=ATTENTION)[0].rebuild()
    alpha = cells_of(tmp_path, registry, "gamp", text=ATTENTION)[0].alpha
    flops = problem.model.cost(problem.model.sample_count(alpha, 300), 300, 1).flops
    flops += problem.model.cost(1, 300, 1).denoiser
    assert cost.estimate_cost(cells[:1], 1).seconds == pytest.approx(
        cost.USUAL * flops / 1e8, rel=1e-3
    )


def test_a_machine_keeps_its_name_when_scipy_brings_a_blas_of_its_own():
    import scipy.linalg  # noqa: F401

    machine.machine_info.cache_clear()
    code = "from smimbench.backend import machine; print(machine.fingerprint())"
    alone = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert alone.stdout.strip() == machine.fingerprint()


@pytest.mark.parametrize(
    ("algorithm", "status", "reason"),
    [
        ("quiet", "ok", "all 3 steps made"),
        ("raiser", "failed", "ZeroDivisionError: nothing to divide by"),
        ("choosy", "skipped", "no taste for linear"),
        (
            "diverger",
            "diverged",
            "the residual (change of the estimate) is not a finite number at iteration 1",
        ),
        (
            "wrong-shape",
            "failed",
            "ValueError: an estimate must have the signal's shape (1, 30), got (1, 29)",
        ),
        ("vandal", "failed", "ValueError: assignment destination is read-only"),
        ("leaver", "failed", "SystemExit: 7"),
        (
            "unspeakable",
            "failed",
            "Silent: (a Silent that cannot be converted to text)",
        ),
    ],
)
def test_every_end_is_a_record(tmp_path, registry, algorithm, status, reason):
    cell = cells_of(tmp_path, registry, algorithm)[0]
    record = run_cell(cell)
    assert (record.status, record.reason) == (status, reason)
    assert record.key == cell.key
    assert record.cell == json.loads(json.dumps(cell.identity()))
    assert (record.problem, record.algorithm) == ("line", algorithm)
    assert record.timing.machine == machine.fingerprint()
    assert record.versions["smimbench"]
    assert ("traceback" in record.document) == (status == "failed")
    if status == "failed":
        assert "Traceback" in record.traceback
    store = Store(tmp_path / "results")
    store.write(record)
    assert store.load()[cell.key].reason == reason


def test_a_time_limit_ends_a_run(tmp_path, registry):
    cell = cells_of(tmp_path, registry, "sleeper", **{"run.timeout": 0.05})[0]
    record = run_cell(cell)
    assert record.status == "timeout"
    assert 0.05 < record.timing.seconds < 2
    assert record.metrics["mse"]


def test_warnings_are_kept_once_and_do_not_reach_the_terminal(
    tmp_path, registry, recwarn
):
    record = run_cell(cells_of(tmp_path, registry, "talker")[0])
    assert record.status == "ok"
    assert record.warnings == [
        "by info",
        "UserWarning: by warnings",
        "RuntimeWarning: divide by zero encountered in log",
    ]
    assert not recwarn.list


def test_a_record_says_what_a_reader_needs(tmp_path, registry):
    record = run_cell(cells_of(tmp_path, registry, "gamp")[0])
    assert record.status == "ok"
    assert record.samples == 15
    assert record.sample_ratio == 0.5
    assert record.restarts == 0
    assert record.iterations == record.trajectory["iteration"][-1]
    assert record.metrics["mse"] == record.trajectory["mse"][-1]
    timing = record.timing
    assert timing.trusted is False
    assert 0 < timing.first_iteration <= timing.seconds <= timing.total_seconds
    assert 0 < timing.per_iteration <= timing.seconds
    assert timing.peak_memory > 10 * 2**20
    assert timing.lost_seconds == 0


@pytest.mark.slow
def test_to_resume_is_a_set_difference(tmp_path, registry):
    cells = cells_of(tmp_path, registry, "quiet", "gamp")
    store = Store(tmp_path / "results")
    run_cells(cells[:3], store)
    missing = missing_cells(cells, store.load())
    assert missing == cells[3:]
    ran = []
    run_cells(missing, store, on_record=lambda record: ran.append(record.key))
    assert ran == [cell.key for cell in cells[3:]]
    assert missing_cells(cells, store.load()) == []
    more = cells_of(tmp_path, registry, "quiet", "gamp", **{"grid.seeds": 3})
    assert {c.replicate for c in missing_cells(more, store.load())} == {2}


def test_trusted_timings_are_records_of_their_own_and_bound_to_the_machine(
    tmp_path, registry, monkeypatch
):
    cells = cells_of(tmp_path, registry, "quiet")[:2]
    store = Store(tmp_path / "results")
    run_cells(cells, store)
    assert missing_cells(cells, store.load()) == []
    assert missing_cells(cells, store.load(), timing=True) == cells
    run_cells(cells, store, timing=True, workers=4)
    for cell in cells:  # a timing alone also answers for the error
        (tmp_path / "results" / f"{cell.key}.json").rename(
            tmp_path / f"{cell.key}.json"
        )
    assert missing_cells(cells, store.load()) == []
    for cell in cells:
        (tmp_path / f"{cell.key}.json").rename(
            tmp_path / "results" / f"{cell.key}.json"
        )
    assert missing_cells(cells, store.load(), timing=True) == []
    records, same = store.load(), numbers_in(store)
    assert len(records) == 4
    trusted = [record for stem, record in records.items() if ".timing-" in stem]
    assert all(record.timing.trusted for record in trusted)
    assert len(trusted) == 2
    # Errors do not depend on the mode, and on another machine only the times are missing.
    for record in trusted:
        assert numbers(store.read(record.file_stem).document) == same[record.key]
    monkeypatch.setattr(machine, "fingerprint", lambda: "elsewhere")
    assert missing_cells(cells, records, timing=True) == cells
    assert missing_cells(cells, records) == []


@pytest.mark.slow
def test_serial_and_parallel_agree_bit_for_bit(tmp_path, registry):
    small = {
        "algorithms.adam.steps": 20,
        "run.max_iterations": 20,
        "grid.dimension": [12, 30],
    }
    cells = cells_of(tmp_path, registry, "gamp", "adam", text=ATTENTION, **small)
    serial = run_cells(cells, Store(tmp_path / "serial"))
    parallel = run_cells(cells, Store(tmp_path / "parallel"), workers=2)
    by_key = {record.key: record for record in parallel}
    assert len(by_key) == len(serial) == len(cells) == 16
    for record in serial:
        assert numbers(record.document) == numbers(by_key[record.key].document)
    stored = Store(tmp_path / "parallel").load()
    assert set(stored) == set(by_key)


def _is_fatal(cell, registry):
    problem, _ = cell.rebuild()
    return (
        problem.instance(
            cell.alpha, cell.dimension, cell.replicate, seed=cell.seed
        ).inputs[0, 0, 0]
        > 0
    )


@pytest.mark.slow
def test_a_process_that_dies_takes_only_its_own_cell(tmp_path, registry):
    """Eight cells, one of which kills its process: the others are all there, and the dead one has a record too."""
    for seed in range(100):
        cells = cells_of(
            tmp_path, registry, "killer-of-some", "quiet", **{"grid.seed": seed}
        )
        fatal = {
            c.key
            for c in cells
            if c.algorithm_label != "quiet" and _is_fatal(c, registry)
        }
        if len(fatal) == 1:
            break
    store = Store(tmp_path / "results")
    run_cells(cells, store, workers=2)
    records = store.load()
    assert set(records) == {cell.key for cell in cells}
    assert {
        key for key, record in records.items() if record.status == "failed"
    } == fatal
    assert {record.status for key, record in records.items() if key not in fatal} == {
        "ok"
    }
    (dead,) = fatal
    assert "worker process died" in records[dead].reason
    assert missing_cells(cells, records) == []


SPOILERS = {
    "unlocker": "cannot set WRITEABLE flag",
    "digger": "wrote into the data that all algorithms share",
    "raising-digger": "cannot open [/data/x]",
}


def test_data_cannot_be_spoiled_for_siblings(tmp_path, registry):
    """The sibling runs afterwards on the same instance, and finds the very numbers that it finds alone."""
    alone = run_cell(cells_of(tmp_path, registry, "gamp")[0])
    *bad, sibling = run_cells(
        cells_of(tmp_path, registry, *SPOILERS, "gamp")[:4], Store(tmp_path / "results")
    )
    for record, reason in zip(bad, SPOILERS.values(), strict=True):
        assert record.status == "failed"
        assert reason in record.reason
        assert not record.metrics
    assert numbers(sibling.document) == numbers(alone.document)


def test_odd_findings_and_warnings_are_named_and_dropped(tmp_path, registry):
    record = run_cell(cells_of(tmp_path, registry, "odd-reporter")[0])
    assert record.status == "ok"
    assert record.final["fine"] == [1.5, None]
    assert record.final["3"] == [1.0, None]
    dropped = [line for line in record.warnings if "must be a list of numbers" in line]
    assert [line.split("'")[1] for line in dropped] == [
        "table",
        "text",
        "object",
        "deep",
    ]
    assert "\x1b" not in json.dumps(record.document, ensure_ascii=False)


def test_findings_that_fail_do_not_cost_the_run(tmp_path, registry):
    record = run_cell(cells_of(tmp_path, registry, "failing-reporter")[0])
    assert record.status == "ok"
    assert "it has no findings: RuntimeError: nothing kept" in record.warnings


def test_warnings_without_end_are_cut(tmp_path, registry):
    record = run_cell(cells_of(tmp_path, registry, "tower")[0])
    assert record.status == "ok"
    assert len(record.warnings) == 101
    assert record.warnings[-1] == "and 200 more"
    assert len(json.dumps(record.document)) < 500_000


def test_what_a_record_cannot_hold_fails_its_cell_alone(
    tmp_path, registry, monkeypatch
):
    from smimbench_attention.metrics.mse import MSE

    monkeypatch.setattr(MSE, "measure", lambda *_: ["nought"])
    record = run_cell(cells_of(tmp_path, registry, "quiet")[0])
    assert record.status in ("ok", "failed")
    Store(tmp_path / "results").write(record)
    assert len(Store(tmp_path / "results").load()) == 1


def test_a_machine_keeps_its_name_whatever_memory_it_has(monkeypatch):
    before = machine.fingerprint()
    info = machine.machine_info()
    machine.fingerprint.cache_clear()
    monkeypatch.setattr(
        machine, "machine_info", lambda: {**info, "memory_gib": info["memory_gib"] // 2}
    )
    assert machine.fingerprint() == before
    machine.fingerprint.cache_clear()
    monkeypatch.setattr(
        machine, "machine_info", lambda: {**info, "cores": 1 + info["cores"]}
    )
    assert machine.fingerprint() != before
    machine.fingerprint.cache_clear()


def test_cells_of_a_device_are_priced_by_its_ceilings(tmp_path, registry, monkeypatch):
    class Device(Backend):
        accelerated = True

    place = Device("device", get_backend("numpy").xp)
    rates = {"float64": 1e14, "float32": 4e14, "bandwidth": 1e13}
    cells = cells_of(
        tmp_path, registry, "gamp", text=ATTENTION, **{"grid.dimension": 400}
    )
    monkeypatch.setattr(cost, "_timed_trial", lambda *run: [])
    monkeypatch.setattr(cost, "_shipped_costs", dict)
    host = cost.estimate_cost(cells, 1).seconds
    monkeypatch.setattr(cost, "get_backend", lambda name: place)
    monkeypatch.setattr(machine, "peak_rates", lambda backend: rates)
    device = cost.estimate_cost(cells, 1).seconds
    assert device < 1e-2 * host
    rates["bandwidth"] = 1e6
    reading = cost.estimate_cost(cells, 1).seconds
    assert reading > 20 * device
    rates["bandwidth"] = 5e5
    assert cost.estimate_cost(cells, 1).seconds == pytest.approx(2 * reading, rel=1e-2)


@pytest.mark.parametrize("kind", ["model", "channel", "prior", "algorithm"])
def test_a_worker_with_another_version_of_an_item_computes_nothing(
    tmp_path, registry, kind
):
    """Its numbers would be kept under the version of whoever sent the cell."""
    cell = cells_of(tmp_path, registry, "gamp")[0]
    if kind == "algorithm":
        other = replace(cell, algorithm={**cell.algorithm, "version": 99})
    else:
        other = replace(
            cell, problem={**cell.problem, kind: {**cell.problem[kind], "version": 99}}
        )
    record = run_cell(other)
    assert record.status == "failed"
    assert not record.metrics
    assert "the cell needs version 99" in record.reason


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_changes_no_duration(tmp_path, registry, monkeypatch, jump):
    (cell, *_) = cells_of(tmp_path, registry, "gamp")
    dates = itertools.count(1.7e9, jump)
    monkeypatch.setattr("time.time", lambda: next(dates))
    begin = time.monotonic()
    timing = run_cell(cell).document["timing"]
    elapsed = time.monotonic() - begin
    assert timing["started"] >= 1.6e9
    durations = {
        name: seconds
        for name, seconds in timing.items()
        if seconds and name.endswith("seconds")
    }
    assert {"seconds", "total_seconds"} <= durations.keys()
    assert all(
        0 < seconds <= elapsed
        for name, seconds in durations.items()
        if name != "cpu_seconds"
    )
