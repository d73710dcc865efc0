"""SIGKILL at random moments: nothing that was finished is lost, and the end is the same as if nothing had happened."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time

import psutil
import pytest

from smimbench.run.store import Store
from tests.helpers import ATTENTION, call, started, write_suite
from tests.records import records_in

KILLS = 3  # tools/checks/kills.py kills hundreds of times
CELLS = 16
QUIETLY = ("--quiet", "--no-figure")
SUITE = (
    ATTENTION.replace("seeds     = 2", "seeds     = 4")
    + '[[algorithms]]\nname = "adam"\nsteps = 15\n[run]\nmax_iterations = 15\n'
)
# What of a row does not come from a clock.
ERRORS = (
    "problem", "algorithm", "backend", "alpha", "dimension", "n", "metric", "component", "mean", "sem", "theory",
    "theory_error", "difference", "z", "bayes", "ratio_to_bayes", "branch", "iterations", "restarts", "status_counts",
    "reasons", "warnings",
)  # fmt: skip


def finished(folder):
    """Records on disk, by name."""
    return {path.name: path.read_bytes() for path in records_in(folder)}


def start(suite, results, workers):
    words = ("run", suite, "--results", results, "--workers", workers, *QUIETLY)
    return started(*words, out=subprocess.DEVNULL, err=subprocess.DEVNULL)


def interruptible(*arguments):
    """The command, with Ctrl-C as in a terminal: a test run in the background has it ignored."""
    return started(
        *arguments, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )


def kill_after(process, folder, records, delay):
    """Kill the whole group once ``records`` files are there and ``delay`` has passed; whether it was still running."""
    limit = time.monotonic() + 60
    while (
        len(finished(folder)) < records
        and process.poll() is None
        and time.monotonic() < limit
    ):
        time.sleep(0.002)
    time.sleep(delay)
    running = process.poll() is None
    if running:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    age_claims(folder, process)
    return running


def age_claims(folder, process):
    """Let the minute pass after which claims of a killed run belong to nobody."""
    for claim in (folder / "claims").glob("*"):
        if claim.read_text().startswith(f"process {process.pid} "):
            os.utime(claim, (0, 0))


def table(capsys, suite, results):
    """Rows as a user reads them, without what a clock says."""
    code, out, err = call(capsys, "show", suite, "--results", results, "--json")
    assert code in (0, 1), err
    rows = json.loads(out)["rows"]
    return [{name: row[name] for name in ERRORS} for row in rows]


@pytest.mark.slow
def test_killed_again_and_again_the_table_is_the_same_bit_for_bit(tmp_path, capsys):
    suite = write_suite(tmp_path, SUITE)
    calm_run = start(suite, tmp_path / "calm", workers=1)
    assert calm_run.wait() in (0, 1)
    assert len(finished(tmp_path / "calm" / "small")) == CELLS

    dice = random.Random(20261120)
    folder = tmp_path / "rough" / "small"
    folder.mkdir(parents=True)
    kept: dict[str, bytes] = {}
    kills = 0
    while kills < KILLS:
        process = start(suite, tmp_path / "rough", workers=1 + kills % 2)
        wanted = min(len(kept) + dice.choice([0, 1, 2, 3]), CELLS - 1)
        delay = (
            dice.uniform(0.0, 0.4) if wanted == len(kept) else dice.uniform(0.0, 0.02)
        )
        if not kill_after(process, folder, wanted, delay):
            assert len(finished(folder)) == CELLS
            break
        kills += 1
        now = finished(folder)
        assert {name: now.get(name) for name in kept} == kept, (
            "a finished record was lost or written again"
        )
        kept = now
    assert kills >= KILLS // 2
    assert kept

    assert start(suite, tmp_path / "rough", workers=2).wait() in (0, 1)
    assert "set-aside" not in os.listdir(folder)
    final = finished(folder)
    assert {name: final[name] for name in kept} == kept
    assert sorted(final) == sorted(finished(tmp_path / "calm" / "small"))

    calm, rough = (
        Store(tmp_path / name / "small").load() for name in ("calm", "rough")
    )
    for key, record in calm.items():
        for field in ("metrics", "status", "reason", "iterations", "restarts", "final"):
            assert getattr(rough[key], field) == getattr(record, field), (key, field)
    assert table(capsys, suite, tmp_path / "rough") == table(
        capsys, suite, tmp_path / "calm"
    )


@pytest.mark.slow
def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path):
    """Only the parent is killed here, as the system does when memory runs out: its children have to notice."""
    suite = write_suite(
        tmp_path,
        SUITE.replace("max_iterations = 15", "max_iterations = 15\ntolerance = 1e-12"),
    )
    process = start(suite, tmp_path / "results", workers=2)
    try:
        folder = tmp_path / "results" / "small"
        limit = time.monotonic() + 60
        while not finished(folder) and time.monotonic() < limit:
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_ctrl_c_is_one_line_and_loses_nothing(tmp_path):
    suite = write_suite(tmp_path, SUITE.replace("= 4\n", "= 500\n", 1))
    folder = tmp_path / "results" / "small"
    process = interruptible(
        "run", suite, "--results", tmp_path / "results", "--workers", "2"
    )
    limit = time.monotonic() + 60
    while not finished(folder) and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.rstrip().endswith(
        "interrupted; finished cells and points of theory are kept, rerun the same command to continue"
    )
    store = Store(folder)
    assert store.load()
    assert store.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting", "working"])
def test_ctrl_c_waits_for_no_cell(moment, tmp_path):
    """Cells of an hour: workers that are still importing, and workers in the middle of a cell, end at once and in silence."""
    suite = write_suite(
        tmp_path, SUITE.replace('"adam"\nsteps = 15', '"adam"\nsteps = 10000000')
    )
    process = interruptible(
        "run",
        suite,
        "--results",
        tmp_path / "results",
        "--workers",
        "2",
        "--only",
        "algorithm=adam",
    )
    try:
        limit = time.monotonic() + 60
        ready = (
            1.2 if moment == "working" else 0.0
        )  # seconds of CPU: a worker imports for less than one
        workers: list[psutil.Process] = []
        while time.monotonic() < limit and process.poll() is None:
            workers = []
            for child in psutil.Process(process.pid).children():
                with contextlib.suppress(
                    psutil.NoSuchProcess
                ):  # git and others come and go
                    if child.cpu_times().user >= ready and any(
                        "smimbench.run.executor" in word for word in child.cmdline()
                    ):
                        workers.append(child)
            if len(workers) == 2:
                break
            time.sleep(0.01)
        assert len(workers) == 2
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in err
        assert err.rstrip().endswith("rerun the same command to continue")
        assert not psutil.wait_procs(workers, timeout=20)[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
