"""Parts of a suite that know nothing of each other, and runs that share a folder: together they are the serial run."""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import time

import pytest

from smimbench.run import processes
from smimbench.run.campaign import Shard, run_cells
from smimbench.run.processes import STALE, ClaimFiles
from smimbench.run.store import Store
from smimbench.suite.reader import load_suite
from tests.helpers import ATTENTION, SUITE, call, loaded, refusal, started, write_suite
from tests.records import numbers_in
from tests.run.test_store_kill import age_claims

TEXT = SUITE.replace("seeds     = 2", "seeds     = 4").replace(
    "steps = 5", "steps = 200"
)
SHARDS = 4


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_shards_are_disjoint_complete_and_each_has_all_algorithms(tmp_path, count):
    text = (
        ATTENTION.replace("[30]", "[30, 60, 90, 120]")
        + '[[algorithms]]\nname = "adam"\nsteps = 15\n'
    )
    cells = loaded(tmp_path, text).cells()
    parts = [Shard(number, count).select(cells) for number in range(1, count + 1)]
    assert sorted(cell.key for part in parts for cell in part) == sorted(
        cell.key for cell in cells
    )
    assert max(map(len, parts)) <= min(map(len, parts)) + 1
    algorithms = {cell.algorithm_label for cell in cells}
    assert all({cell.algorithm_label for cell in part} == algorithms for part in parts)
    assert [c.key for c in Shard(2, count).select(cells[::-1])] == [
        c.key for c in parts[1]
    ][::-1]
    assert Shard(1, 1).select(cells) == cells


@pytest.mark.parametrize(
    "text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/" + "9" * 100, "١/٣"]
)
def test_a_shard_that_is_none_is_one_line(tmp_path, capsys, text):
    refusal(capsys, "run", write_suite(tmp_path), "--shard", text)


def shard(suite, results, number):
    words = f"--workers 1 --shard {number}/{SHARDS} --quiet --no-figure".split()
    return started("run", suite, "--results", results, *words)


@pytest.mark.slow
def test_shards_two_of_them_killed_are_the_serial_run(tmp_path):
    suite = write_suite(tmp_path, TEXT)
    cells = load_suite(suite).cells()
    run_cells(cells, Store(tmp_path / "serial"))
    serial = numbers_in(Store(tmp_path / "serial"))
    folder = tmp_path / "shards" / "small"
    running = {
        number: shard(suite, tmp_path / "shards", number)
        for number in range(1, SHARDS + 1)
    }
    for number in (2, 3):
        limit = time.monotonic() + 60
        keys = {cell.key for cell in Shard(number, SHARDS).select(cells)}
        while (
            not any((folder / f"{key}.json").exists() for key in keys)
            and time.monotonic() < limit
        ):
            time.sleep(0.01)
        process = running.pop(number)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        age_claims(folder, process)
    kept = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    for number in (2, 3):
        running[number] = shard(suite, tmp_path / "shards", number)
    for number, process in running.items():
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert re.fullmatch(
            rf"shard {number}/{SHARDS} of small: \d+ cells: \d+ ok, 0 not run yet\n",
            out,
        )
    for name, content in kept.items():
        if name != "run.json":
            assert (folder / name).read_bytes() == content
    store = Store(folder)
    assert numbers_in(store) == serial
    assert store.complaints == []
    assert (
        len(list(folder.rglob("*.tmp"))) <= 2
    )  # one for each kill in the middle of a write


@pytest.mark.slow
def test_two_runs_into_one_folder_share_the_cells(tmp_path):
    suite = write_suite(tmp_path, TEXT)
    words = (
        "run",
        suite,
        "--results",
        tmp_path / "r",
        "--workers",
        "1",
        "--no-figure",
        "--json",
        "--quiet",
    )
    pair = [started(*words, out=subprocess.DEVNULL) for _ in range(2)]
    folder, inodes = tmp_path / "r" / "small", {}
    while any(process.poll() is None for process in pair):
        for path in folder.glob("*.json"):
            with contextlib.suppress(OSError):
                inodes.setdefault(path.name, set()).add(path.stat().st_ino)
        time.sleep(0.02)
    for process in pair:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    inodes.pop("run.json")
    assert len(inodes) == len(load_suite(suite).cells())
    # A record that was written twice would have been another file for a while.
    assert sum(len(found) > 1 for found in inodes.values()) <= 1
    assert not (folder / "claims").exists()


def test_a_claim_is_one_runs_until_it_is_stale(tmp_path):
    one, other = ClaimFiles(tmp_path), ClaimFiles(tmp_path)
    assert one.claim("a")
    assert one.claim("a")
    assert not other.claim("a")
    os.utime(tmp_path / "claims" / "a", (time.time() - 2 * STALE,) * 2)
    assert other.claim("a")
    other.release("a")
    (tmp_path / "b.json").write_text("{}")
    assert not one.claim("b")
    assert one.is_done("b")
    one.release_all()
    other.release_all()
    assert not (tmp_path / "claims").exists()


@pytest.mark.parametrize("age", [-1e9, -STALE - 5, STALE + 5, 1e9])
def test_a_claim_of_another_time_is_nobodys(tmp_path, age):
    """The clock of a machine, or of a file server, may be ahead of this one for years."""
    ours, theirs = ClaimFiles(tmp_path), ClaimFiles(tmp_path)
    assert theirs.claim("a")
    os.utime(tmp_path / "claims" / "a", (time.time() - age,) * 2)
    assert ours.claim("a")
    for age in (-STALE / 2, STALE / 2):
        os.utime(tmp_path / "claims" / "a", (time.time() - age,) * 2)
        assert not ClaimFiles(tmp_path).claim("a")


def test_a_run_says_for_whom_it_waits_and_does_not_wait_for_the_future(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(processes, "STALE", 3.0)
    suite, folder = write_suite(tmp_path), tmp_path / "r" / "small" / "claims"
    folder.mkdir(parents=True)
    claimed = [
        (0.0, "process 7 on node9"),
        (0.0, "process 8 on \x1b[31mnode9"),
        (0.0, ""),
        (-1e6, "process 9 on node9"),
    ]
    for cell, (age, owner) in zip(load_suite(suite).cells(), claimed):
        (folder / cell.key).write_text(owner)
        os.utime(folder / cell.key, (time.time() - age,) * 2)
    code, out, err = call(
        capsys,
        "run",
        suite,
        "--results",
        tmp_path / "r",
        "--no-figure",
        "--workers",
        "1",
    )
    assert code == 0, err
    assert "8 ok" in out
    waiting = [line for line in err.splitlines() if line.startswith("waiting: ")]
    owners = "another run, process 7 on node9, process 8 on \ufffd[31mnode9"
    assert waiting[0] == f"waiting: all remaining cells are claimed by {owners}"
    assert len(waiting) <= 3
    assert not folder.exists()


def test_a_budget_that_is_spent_has_an_exit_code_of_its_own(tmp_path, capsys):
    suite = write_suite(tmp_path, TEXT.replace("steps = 200", "steps = 100000000"))
    words = (
        "run",
        suite,
        "--results",
        tmp_path / "r",
        "--budget",
        "1s",
        "--workers",
        "1",
        "--no-figure",
    )
    code, _, err = call(capsys, *words, "--only", "algorithm=adam", "--shard", "1/2")
    assert code == 75
    assert "time budget exhausted" in err


def test_a_job_array_of_somebody_runs_the_whole_suite(tmp_path, capsys, monkeypatch):
    array = {"ID": "1", "COUNT": "2", "MIN": "1", "MAX": "2", "STEP": "1"}
    for name, number in array.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", number)
    run = (
        "run",
        write_suite(tmp_path),
        "--results",
        tmp_path / "r",
        "--json",
        "--no-figure",
        "--workers",
        "1",
    )
    code, out, _ = call(capsys, *run)
    assert (code, json.loads(out)["status_counts"]) == (0, {"ok": 8})


def test_a_claim_says_whose_it_is(tmp_path):
    ours, theirs = ClaimFiles(tmp_path), ClaimFiles(tmp_path)
    assert ours.claim("a")
    assert not theirs.claim("a")
    assert theirs.owner_of_other_claims == {
        "a": f"process {os.getpid()} on {platform.node()}"
    }
    ours.release("a")
    assert theirs.claim("a")
    assert theirs.owner_of_other_claims == {}
