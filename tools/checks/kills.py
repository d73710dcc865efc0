"""Kills runs while they write records, and checks that nothing finished is lost: ``python tools/checks/kills.py --kills 300``.

A child runs the missing cells of a suite, half of them with a trajectory in a file of its own, and is killed without
warning: half of the times at the moment when a file under a temporary name is there, else at any moment. After every kill
all that was finished must be there to the last byte, and every record must be read without a complaint. In the end what the
killed children made is compared with a run that nobody disturbed. docs/release.md has the figures of a whole run.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from jobs import differ, options, write_suite  # isort: skip - puts the source tree on the path

from smimbench.run.campaign import missing_cells, run_cells
from smimbench.run.store import Store
from smimbench.suite.reader import load_suite


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder that a reader may see, by name."""
    return {
        path.name: path.read_bytes()
        for path in folder.glob("*.*")
        if not path.name.startswith(".")
    }


def unfinished(folder: Path) -> list[str]:
    """Return the names of temporary files in a folder: writes that are going on, or were cut."""
    return [entry.name for entry in os.scandir(folder) if entry.name.endswith(".tmp")]


def killed_child(cells, store: Store, dice: random.Random) -> bool:
    """Run cells in a child process that stores records, and kill it at a random moment; return whether it was still running."""
    for name in unfinished(store.folder):
        (store.folder / name).unlink()
    child = os.fork()
    if child == 0:
        try:
            run_cells(cells, store)
        finally:
            os._exit(0)
    writes_to_skip, was_unfinished = dice.randrange(8), False
    kill_time = time.monotonic() + dice.uniform(0.0, 0.5)
    is_aimed_at_write = dice.random() < 0.5
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if is_aimed_at_write:  # at the write number ``skip``
            is_unfinished = bool(unfinished(store.folder))
            writes_to_skip -= is_unfinished and not was_unfinished
            was_unfinished = is_unfinished
        if writes_to_skip < 0 if is_aimed_at_write else time.monotonic() > kill_time:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
    return False


def main() -> int:
    """Kill runs again and again, and compare what they stored with an undisturbed run; return 1 if anything was lost."""
    arguments = options(__doc__, kills=300, seed=0)
    dice = random.Random(arguments.seed)
    kills = cut_count = lost_count = torn_count = different_count = compared_count = 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        algorithms = ('name = "adam"\nsteps = 2400', 'name = "sgd"\nsteps = 40')
        file = write_suite(Path(temporary) / "kills.toml", 25, *algorithms)
        cells = load_suite(file).cells()
        undisturbed_store = Store(Path(temporary) / "calm")
        run_cells(cells, undisturbed_store)
        expected = undisturbed_store.load()
        number = 0
        while kills < arguments.kills:
            number += 1
            store = Store(Path(temporary) / f"rough-{number}")
            store.folder.mkdir()
            complete: dict[str, bytes] = {}
            while kills < arguments.kills and killed_child(
                missing_cells(cells, store.load()), store, dice
            ):
                kills += 1
                cut_count += bool(unfinished(store.folder))
                files = files_of(store.folder)
                finished = {name for name in complete if name.endswith(".json")}
                finished |= {name.replace(".json", ".npz") for name in finished} & set(
                    complete
                )
                lost_count += sum(
                    files.get(name) != complete[name] for name in finished
                )
                store.load()
                torn_count += len(store.complaints)
                complete = files
            run_cells(missing_cells(cells, store.load()), store)
            records = store.load()
            torn_count += len(store.complaints)
            for key, record in expected.items():
                compared_count += 1
                trajectories = [
                    store_of_record.trajectory(record_of_store)
                    for store_of_record, record_of_store in (
                        (store, records[key]),
                        (undisturbed_store, record),
                    )
                ]
                is_same = (
                    trajectories[0] is not None
                    and trajectories[1] is not None
                    and (trajectories[0]["mse"] == trajectories[1]["mse"]).all()
                )
                different_count += not is_same or differ(records[key], record)
    print(f"{kills} SIGKILLs in {time.monotonic() - begin:.0f} s, {cut_count} of them while a file was being written: "
          f"{lost_count} finished files lost or changed, {torn_count} torn ones believed or complained of; "
          f"{compared_count} cells, {different_count} unlike the calm run")  # fmt: skip
    return 1 if lost_count or torn_count or different_count else 0


if __name__ == "__main__":
    sys.exit(main())
