"""Records appear whole or not at all, and what cannot be trusted is set aside, never used and never deleted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from smimbench.files import StoreError, write_atomically
from smimbench.run.store import ASIDE, LONG, Store
from tests.helpers import environment


def record(key: str = "a1b2", **more):
    """A record as the runner makes them, cut down to what the store looks at."""
    found = {
        "key": key,
        "cell": {"alpha": 0.1, "dimension": 30},
        "status": "ok",
        "metrics": {"mse": [0.1 + 0.2, 1e-17]},
        "trajectory": {"iteration": [0, 1], "mse": [[1.0], [0.3]], "residual": [math.inf, 0.5]},
        "timing": {"trusted": False, "machine": "here", "seconds": 0.25},
    }
    return {**found, **more}


def files(store: Store) -> list[str]:
    """Names of everything in the folder, hidden files included."""
    return sorted(os.listdir(store.folder))


def test_what_is_written_is_read_to_the_last_digit(tmp_path):
    store = Store(tmp_path / "deep" / "folder")
    path = store.write(record())
    assert path == tmp_path / "deep" / "folder" / "a1b2.json"
    found = store.load()["a1b2"]
    assert found["metrics"]["mse"] == [0.1 + 0.2, 1e-17]
    assert found["timing"]["seconds"] == 0.25
    assert store.complaints == []
    assert files(store) == ["a1b2.json"]


def test_numbers_that_json_cannot_hold_become_null_and_come_back_as_nan(tmp_path):
    store = Store(tmp_path)
    text = store.write(record(final={"residual": float("nan")})).read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["final"]["residual"] is None
    path = store.trajectory(store.load()["a1b2"])
    assert np.isnan(path["residual"][0])
    assert path["residual"][1] == 0.5


def test_arrays_and_tuples_are_written_as_lists(tmp_path):
    store = Store(tmp_path)
    store.write(record(extra={"array": np.arange(3.0), "scalar": np.float64(2.5), "pair": (1, 2)}))
    assert store.load()["a1b2"]["extra"] == {"array": [0.0, 1.0, 2.0], "scalar": 2.5, "pair": [1, 2]}


def test_a_record_is_not_changed_by_writing_it(tmp_path):
    given = record(trajectory=long_path())
    before = json.dumps(given, sort_keys=True)
    Store(tmp_path).write(given)
    assert json.dumps(given, sort_keys=True) == before


def test_the_folder_need_not_exist_to_be_read(tmp_path):
    assert Store(tmp_path / "nothing").load() == {}


# -- trajectories -------------------------------------------------------------------------------------------------


def long_path(count: int = LONG + 1):
    rng = np.random.default_rng(1)
    return {
        "iteration": list(range(count)),
        "mse": rng.random((count, 2)).tolist(),
        "seconds": rng.random(count).tolist(),
    }


def test_a_long_trajectory_goes_beside_the_record_without_pickle(tmp_path):
    store = Store(tmp_path)
    given = long_path()
    store.write(record(trajectory=given))
    assert files(store) == ["a1b2.json", "a1b2.npz"]
    (found,) = store.load().values()
    assert set(found["trajectory"]) == {"file", "sha256"}
    arrays = store.trajectory(found)
    for name, values in given.items():
        np.testing.assert_array_equal(arrays[name], values)
    with np.load(tmp_path / "a1b2.npz", allow_pickle=False) as direct:
        assert direct["mse"].shape == (LONG + 1, 2)


def test_a_short_trajectory_stays_in_the_record(tmp_path):
    store = Store(tmp_path)
    store.write(record(trajectory=long_path(LONG)))
    assert files(store) == ["a1b2.json"]
    assert store.trajectory(store.load()["a1b2"])["mse"].shape == (LONG, 2)


def test_a_trajectory_that_was_changed_or_lost_is_not_used(tmp_path):
    store = Store(tmp_path)
    store.write(record(trajectory=long_path()))
    (found,) = store.load().values()
    path = tmp_path / "a1b2.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] + b"changed")
    assert store.trajectory(found) is None
    assert "changed after it was written" in store.complaints[-1]
    path.unlink()
    assert store.trajectory(found) is None
    assert "missing" in store.complaints[-1]


def test_no_trajectory_is_no_trajectory(tmp_path):
    assert Store(tmp_path).trajectory({"trajectory": None}) is None
    assert Store(tmp_path).trajectory({}) is None


# -- atomic -------------------------------------------------------------------------------------------------------


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
    for name in ("a1b2.json", "new.json"):
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], env=environment(), check=False)
        assert done.returncode == -9
    left = [name for name in files(store) if name != "a1b2.json"]
    assert len(left) == 2
    assert all(name.startswith(".") and name.endswith(".tmp") for name in left)
    assert list(store.load()) == ["a1b2"]
    assert store.complaints == []


def test_the_file_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    steps = []
    real = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), real[0](handle)))
    monkeypatch.setattr(os, "replace", lambda *a: (steps.append("rename"), real[1](*a)))
    write_atomically(tmp_path / "file", b"x")
    assert steps[:2] == ["sync", "rename"]


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "file" / "results").write(record())


# -- what cannot be trusted ---------------------------------------------------------------------------------------


def _edit(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


SPOILED = {
    "torn": (lambda p: p.write_bytes(p.read_bytes()[:100]), "torn or not JSON"),
    "empty": (lambda p: p.write_bytes(b""), "torn or not JSON"),
    "not text": (lambda p: p.write_bytes(b"\xff\x00\xfe"), "torn or not JSON"),
    "foreign": (lambda p: p.write_text('{"hello": "world"}'), "not a record of smimbench"),
    "a list": (lambda p: p.write_text("[1, 2]"), "not a record of smimbench"),
    "hand-edited": (lambda p: _edit(p, lambda r: r["metrics"].update(mse=[0.0, 0.0])), "digest does not match"),
    "a status made ok": (lambda p: _edit(p, lambda r: r.update(status="failed")), "digest does not match"),
    "a key added": (lambda p: _edit(p, lambda r: r.update(note="mine")), "digest does not match"),
    "without digest": (lambda p: _edit(p, lambda r: r.pop("digest")), "not a record of smimbench"),
    "of the future": (lambda p: _edit(p, lambda r: r.update(format=99)), "written in format 99"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_file_is_reported_set_aside_and_kept(tmp_path, name):
    spoil, reason = SPOILED[name]
    store = Store(tmp_path)
    path = store.write(record())
    store.write(record("sound"))
    spoil(path)
    content = path.read_bytes()

    assert list(store.load()) == ["sound"]
    assert path.read_bytes() == content
    assert len(store.complaints) == 1
    assert str(path) in store.complaints[0]
    assert reason in store.complaints[0]

    assert list(store.load(set_aside=True)) == ["sound"]
    assert not path.exists()
    (kept,) = (tmp_path / ASIDE).iterdir()
    assert kept.read_bytes() == content
    assert str(kept) in store.complaints[0]

    assert list(store.load(set_aside=True)) == ["sound"]
    assert store.complaints == []


def test_a_renamed_file_does_not_stand_for_another_cell(tmp_path):
    store = Store(tmp_path)
    store.write(record("aaaa")).rename(tmp_path / "bbbb.json")
    assert store.load(set_aside=True) == {}
    assert "renamed" in store.complaints[0]
    assert len(list((tmp_path / ASIDE).iterdir())) == 1


def test_setting_aside_never_overwrites(tmp_path):
    store = Store(tmp_path)
    for i in range(3):
        (tmp_path / "same.json").write_text(f"spoiled {i}")
        store.load(set_aside=True)
    kept = sorted(path.read_text() for path in (tmp_path / ASIDE).iterdir())
    assert kept == ["spoiled 0", "spoiled 1", "spoiled 2"]


def test_whitespace_is_no_change(tmp_path):
    store = Store(tmp_path)
    path = store.write(record())
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert list(store.load()) == ["a1b2"]


def test_retired_records_are_moved_not_deleted(tmp_path):
    store = Store(tmp_path)
    store.write(record("aaaa", trajectory=long_path()))
    store.write(record("bbbb"))
    store.retire(["aaaa"])
    assert list(store.load()) == ["bbbb"]
    kept = {path.suffix: path for path in (tmp_path / ASIDE).iterdir()}
    assert set(kept) == {".json", ".npz"}
    assert all(path.name.startswith("aaaa.") for path in kept.values())
    before = kept[".npz"].read_bytes()
    store.write(record("aaaa", trajectory=long_path(LONG + 50)))
    assert set(store.load()) == {"aaaa", "bbbb"}
    assert kept[".npz"].read_bytes() == before


# -- timings and what is shared -----------------------------------------------------------------------------------


def test_a_trusted_timing_is_a_file_of_its_own_per_machine(tmp_path):
    store = Store(tmp_path)
    store.write(record())
    store.write(record(timing={"trusted": True, "machine": "here", "seconds": 1.0}))
    store.write(record(timing={"trusted": True, "machine": "there", "seconds": 2.0}))
    assert set(store.load()) == {"a1b2", "a1b2.timing-here", "a1b2.timing-there"}


def test_what_is_shared_is_read_back_or_empty(tmp_path):
    store = Store(tmp_path)
    assert store.read_shared() == {}
    store.write_shared({"suite": "x", "text": "ä", "timeout": None})
    assert store.read_shared() == {"suite": "x", "text": "ä", "timeout": None}
    assert store.load() == {}
    (tmp_path / "run.json").write_text('{"suite": ')
    assert store.read_shared() == {}
    (tmp_path / "run.json").write_text("[]")
    assert store.read_shared() == {}
