"""Records appear whole or not at all, and what cannot be trusted is set aside, never used and never deleted."""

import hashlib
import json
import math
import os
import subprocess
import sys
import textwrap
import time
import zipfile

import numpy as np
import pytest

from smimbench.files import (
    LEFTOVER,
    StoreError,
    canonical_json,
    remove_leftovers,
    write_atomically,
)
from smimbench.run.record import LongTrajectory, json_value, with_digest
from smimbench.run.store import ASIDE, LONG, Store, pairs_of_other_code
from smimbench.suite.cells import key_of
from smimbench.suite.reader import load_suite
from tests import records
from tests.helpers import SUITE, environment, write_suite


def cell(name="a1b2"):
    """A cell whose prior has this name."""
    problem = {**records.CELL["problem"], "prior": {"name": name, "version": 1}}
    return {**records.CELL, "problem": problem}


def key(name="a1b2"):
    return key_of(cell(name))


def record(name="a1b2", **changes):
    """A record with two components and two measured iterations."""
    trajectory = {
        "iteration": [0, 1],
        "mse": [[1.0, 1.0], [0.3, 0.2]],
        "residual": [math.inf, 0.5],
    }
    usual = {
        "metrics": {"mse": [0.1 + 0.2, 1e-17]},
        "trajectory": trajectory,
        "timing": {"trusted": False, "seconds": 0.25},
    }
    return records.record(cell=cell(name), **{**usual, **changes})


def files(store):
    """Names of everything in the folder, hidden files included."""
    return sorted(os.listdir(store.folder))


def test_what_is_written_is_read_to_the_last_digit(tmp_path):
    store = Store(tmp_path / "deep" / "folder")
    assert store.load() == {}
    extra = {"array": np.arange(3.0), "scalar": np.float64(2.5), "pair": (1, 2)}
    given = record(trajectory=long_path(), extra=extra)
    before = repr(given)
    path = store.write(given)
    assert repr(given) == before
    assert path == tmp_path / "deep" / "folder" / f"{key()}.json"
    found = store.load()[key()]
    assert found.metrics["mse"] == [0.1 + 0.2, 1e-17]
    assert found.timing.seconds == 0.25
    assert store.read(key()).document["extra"] == {
        "array": [0.0, 1.0, 2.0],
        "scalar": 2.5,
        "pair": [1, 2],
    }
    assert store.complaints == []


def test_numbers_that_json_cannot_hold_become_null_and_come_back_as_nan(tmp_path):
    store = Store(tmp_path)
    text = store.write(record(final={"residual": float("nan")})).read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["final"]["residual"] is None
    path = store.trajectory(store.load()[key()])
    assert np.isnan(path["residual"][0])
    assert path["residual"][1] == 0.5


def long_path(count=LONG + 1):
    rng = np.random.default_rng(1)
    return {
        "iteration": list(range(count)),
        "mse": rng.random((count, 2)).tolist(),
        "seconds": rng.random(count).tolist(),
    }


@pytest.mark.parametrize("count", [LONG, LONG + 1])
def test_a_long_trajectory_goes_to_a_file_of_its_own_without_pickle(tmp_path, count):
    store, given = Store(tmp_path), long_path(count)
    store.write(record(trajectory=given))
    assert files(store) == [f"{key()}.json"] + [f"{key()}.npz"] * (count > LONG)
    (found,) = store.load().values()
    assert isinstance(found.trajectory, LongTrajectory) == (count > LONG)
    arrays = store.trajectory(found)
    for name, values in given.items():
        np.testing.assert_array_equal(arrays[name], values)


def test_a_trajectory_that_was_changed_or_lost_is_not_used(tmp_path):
    store = Store(tmp_path)
    store.write(record(trajectory=long_path()))
    (found,) = store.load().values()
    path = tmp_path / f"{key()}.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] + b"changed")
    assert store.trajectory(found) is None
    assert "changed after it was written" in store.complaints[-1]
    path.unlink()
    assert store.trajectory(found) is None
    assert "missing" in store.complaints[-1]


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*No space left"):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_writer_that_dies_leaves_the_old_file_and_no_record(tmp_path):
    """Killed between writing and renaming: only a hidden temporary file remains, which no reader looks at."""
    store = Store(tmp_path)
    store.write(record())
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from smimbench.files import write_atomically
        os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
        write_atomically(Path(sys.argv[1]), b"{}")
        """
    )
    for name in (f"{key()}.json", "new.json"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / name)],
            env=environment(),
            check=False,
        )
        assert done.returncode == -9
    left = [name for name in files(store) if name != f"{key()}.json"]
    assert len(left) == 2
    assert all(name.startswith(".") and name.endswith(".tmp") for name in left)
    assert list(store.load()) == [key()]
    assert store.complaints == []
    # Another process may be writing now; what is an hour old is removed by the next run, and what is not ours stays.
    foreign = tmp_path / ".mine.tmp"
    foreign.write_text("")
    for path in (foreign, tmp_path / left[0]):
        os.utime(path, (time.time() - 2 * LEFTOVER,) * 2)
    assert remove_leftovers(tmp_path) == 1
    assert set(tmp_path.rglob(".*.tmp")) == {foreign, tmp_path / left[1]}
    os.utime(
        tmp_path / left[1], (time.time() + 2 * LEFTOVER,) * 2
    )  # by a clock that was ahead
    assert remove_leftovers(tmp_path) == 1
    assert list(store.load()) == [key()]


def test_the_file_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    steps = []
    real = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: (steps.append("sync"), real[0](handle))
    )
    monkeypatch.setattr(os, "replace", lambda *a: (steps.append("rename"), real[1](*a)))
    write_atomically(tmp_path / "file", b"x")
    assert steps[:2] == ["sync", "rename"]


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "file" / "results").write(record())


def _edit(change, *, seal=False):
    """A change of what a record says; with ``seal`` under a digest that fits."""

    def edit(path):
        found = json.loads(path.read_text())
        change(found)
        path.write_text(json.dumps(with_digest(found) if seal else found))

    return edit


def _write(data):
    return lambda path: path.write_bytes(data)


SPOILED = {
    "torn": (lambda p: p.write_bytes(p.read_bytes()[:100]), "the file is incomplete or not JSON"),
    "not text": (_write(b"\xff\x00\xfe"), "the file is incomplete or not JSON"),
    "foreign": (_write(b'{"hello": "world"}'), "not a record written by smimbench"),
    "hand-edited": (_edit(lambda r: r["metrics"].update(mse=[0.0, 0.0])), "digest does not match"),
    "without digest": (_edit(lambda r: r.pop("digest")), "not a record written by smimbench"),
    "of the future": (_edit(lambda r: r.update(format=99)), "has format 99"),
    "another cell": (_edit(lambda r: r.update(cell=cell("b"), key=key("b")), seal=True), "renamed"),
    "the key of another cell": (_edit(lambda r: r.update(key=key("b")), seal=True), "its key does not match the cell"),
    "a word for a number": (_edit(lambda r: r["metrics"].update(mse=["small"]), seal=True), "metrics.mse"),
    "a list for a reason": (_edit(lambda r: r.update(reason=[1]), seal=True), "reason"),
    "no reason": (_edit(lambda r: r.update(resaon=r.pop("reason")), seal=True), "reason"),
    "no versions": (_edit(lambda r: r.pop("versions"), seal=True), "versions"),
    "a status of its own": (_edit(lambda r: r.update(status="splendid"), seal=True), "status"),
    "warnings that are no text": (_edit(lambda r: r.update(warnings=[{"a": 1}]), seal=True), "warnings.0"),
    "findings in a table": (_edit(lambda r: r.update(final={"found": {"a": [1]}}), seal=True), "final.found"),
    "samples that were drawn without their ratio": (_edit(lambda r: r.update(fresh_samples=5), seal=True), "sample_ratio"),
    "a path out of the folder": (
        _edit(lambda r: r.update(trajectory={"file": "../x.npz", "sha256": "0" * 64}), seal=True), "trajectory"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_file_is_reported_set_aside_and_kept(tmp_path, name):
    spoil, reason = SPOILED[name]
    store = Store(tmp_path)
    path = store.write(record())
    sound = store.write(record("sound"))
    sound.write_text(
        json.dumps(json.loads(sound.read_text()))
    )  # other whitespace is no change
    spoil(path)
    content = path.read_bytes()

    assert list(store.load()) == [key("sound")]
    assert path.read_bytes() == content
    assert len(store.complaints) == 1
    assert str(path) in store.complaints[0]
    assert reason in store.complaints[0]

    assert list(store.load(set_aside=True)) == [key("sound")]
    assert not path.exists()
    (kept,) = (tmp_path / ASIDE).iterdir()
    assert kept.read_bytes() == content
    assert str(kept) in store.complaints[0]

    assert list(store.load(set_aside=True)) == [key("sound")]
    assert store.complaints == []


def test_setting_aside_never_overwrites(tmp_path):
    store = Store(tmp_path)
    for i in range(3):
        (tmp_path / "same.json").write_text(f"spoiled {i}")
        store.load(set_aside=True)
    kept = sorted(path.read_text() for path in (tmp_path / ASIDE).iterdir())
    assert kept == ["spoiled 0", "spoiled 1", "spoiled 2"]


def test_retired_records_are_moved_not_deleted(tmp_path):
    store = Store(tmp_path)
    store.write(record("aaaa", trajectory=long_path()))
    store.write(record("bbbb"))
    for _ in range(2):  # two runs may retire the same records
        store.retire([key("aaaa")])
    assert list(store.load()) == [key("bbbb")]
    kept = {path.suffix: path for path in (tmp_path / ASIDE).iterdir()}
    assert set(kept) == {".json", ".npz"}
    assert all(path.name.startswith(f"{key('aaaa')}.") for path in kept.values())
    before = kept[".npz"].read_bytes()
    store.write(record("aaaa", trajectory=long_path(LONG + 50)))
    assert set(store.load()) == {key("aaaa"), key("bbbb")}
    assert kept[".npz"].read_bytes() == before


def test_a_trusted_timing_is_a_file_of_its_own_per_machine(tmp_path):
    store = Store(tmp_path)
    store.write(record())
    store.write(record(timing={"trusted": True, "machine": "here", "seconds": 1.0}))
    store.write(record(timing={"trusted": True, "machine": "there", "seconds": 2.0}))
    assert set(store.load()) == {key(), f"{key()}.timing-here", f"{key()}.timing-there"}


def test_what_is_shared_is_read_back_or_empty(tmp_path):
    store = Store(tmp_path)
    assert store.read_run_json() == {}
    store.write_run_json({"suite": "x", "text": "ä", "timeout": None})
    assert store.read_run_json() == {"suite": "x", "text": "ä", "timeout": None}
    assert store.load() == {}
    text = (tmp_path / "run.json").read_text()
    for spoiled in (
        '{"suite": ',
        "[]",
        text.replace('"x"', '"y"'),
        '{"suite": "x", "text": "no digest"}',
    ):
        (tmp_path / "run.json").write_text(spoiled)
        store.complaints = []
        assert store.read_run_json() == {}
        assert len(store.complaints) == 1


def test_pipes_deep_and_huge_files_are_reported_at_once(tmp_path):
    store = Store(tmp_path)
    store.write(record())
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "digits.json").write_text("1" * 5_000)
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(1 << 33)  # a hole, no bytes on the disk
    os.mkfifo(tmp_path / "run.json")
    assert list(store.load()) == [key()]
    assert store.read_run_json() == {}
    said = dict(line.rsplit("/", 1)[1].split(": ", 1) for line in store.complaints)
    assert said == {
        "deep.json": "the file is incomplete or not JSON; not used",
        "digits.json": "the file is incomplete or not JSON; not used",
        "huge.json": "the file is larger than 256 MB, the largest that smimbench reads; not used",
        "pipe.json": "this is not a regular file; not used",
        "run.json": "this is not a regular file; not used",
    }


@pytest.mark.slow
def test_a_trajectory_that_unpacks_to_more_than_memory_is_not_read(tmp_path):
    store = Store(tmp_path)
    packed = zipfile.ZipFile(tmp_path / f"{key()}.npz", "w", zipfile.ZIP_DEFLATED)
    with packed, packed.open("mse.npy", "w", force_zip64=True) as part:
        for _ in range(300):
            part.write(bytes(1 << 20))
    data = (tmp_path / f"{key()}.npz").read_bytes()
    assert len(data) < 1 << 20
    found = record(
        trajectory={"file": f"{key()}.npz", "sha256": hashlib.sha256(data).hexdigest()}
    )
    assert store.trajectory(found) is None
    assert "larger than 256 MB when unpacked" in store.complaints[-1]


def test_columns_of_different_lengths_are_no_trajectory(tmp_path):
    store = Store(tmp_path)
    assert store.trajectory(record(trajectory=None)) is None
    assert (
        store.trajectory(record(trajectory={"iteration": [0, 1], "mse": [[1.0]]}))
        is None
    )
    assert store.trajectory(record(trajectory={"mse": [[1.0], [1.0, 2.0]]})) is None
    assert len(store.complaints) == 2


def test_what_a_plugin_puts_in_a_record_becomes_plain():
    class Odd:
        def __str__(self):
            raise OSError

    found = json_value(
        {
            "a": Odd(),
            "b": {1: np.float32(0.5)},
            "d": np.longdouble(3),
            "e": np.array([math.inf]),
        }
    )
    assert found["a"] == "(a Odd that cannot be converted to text)"
    assert found["b"] == {"1": 0.5}
    assert found["d"] == "3.0"
    assert found["e"] == [None]
    json.dumps(found, allow_nan=False)


def test_records_of_other_code_come_in_the_order_of_the_cells(tmp_path):
    """Names of files have no order: the questions of theory and the last bits of means depend on that of the runs."""
    cells = load_suite(write_suite(tmp_path, SUITE)).cells("numpy")
    made = []
    for cell in cells:
        identity = json.loads(canonical_json(cell.identity()))
        identity["algorithm"]["version"] = 99
        made.append(records.record(cell=identity))
    pairs = pairs_of_other_code(cells, sorted(made, key=lambda record: record.key))
    assert [cell for cell, _ in pairs] == list(cells)
    assert [record for _, record in pairs] == made
