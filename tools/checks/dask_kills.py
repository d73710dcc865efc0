"""Runs cells on a Dask cluster whose processes are killed again and again: ``python tools/checks/dask_kills.py --pause 5``.

Two workers on loopback, one of which is killed every so many seconds and started again; the client is killed twice, the
scheduler once, each of them started again by the same command. In the end all cells have to be there, no file set aside, and
every error must be that of a serial run. docs/release.md has the figures of a whole run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jobs import ROOT, differ, options, write_suite  # isort: skip - puts the source tree on the path

from smimbench.run.campaign import run_cells
from smimbench.run.store import Store
from smimbench.suite.reader import load_suite

CLIENT, SCHEDULER = (0.25, 0.5), (0.7,)
"""Parts of the cells that are there when the client and the scheduler are killed."""
QUIET = {
    "stdout": subprocess.DEVNULL,
    "stderr": subprocess.DEVNULL,
    "start_new_session": True,
}


class Service:
    """A process (a command) that is started again whenever it has died; it counts how often it was started and killed."""

    def __init__(self, *words: str, **environment: str) -> None:
        """Start the command: Python with these ``words``, and further environment variables."""
        self._words, self._environment = (
            [sys.executable, *words],
            {**os.environ, **environment},
        )
        self.starts, self.killed, self.code = 0, 0, None
        self.look()

    def look(self) -> None:
        """Start the process again if it has died."""
        if self.starts == 0 or self._process.poll() is not None:
            self.code = self._process.returncode if self.starts else None
            self._process = subprocess.Popen(
                self._words, env=self._environment, **QUIET
            )
            self.starts += 1

    def ended(self) -> bool:
        """Whether the process has ended by itself: with exit code 0, or 1 if a cell of a finished run is not ok, as in the
        serial run.
        """
        return self._process.poll() in (0, 1)

    def kill(self) -> None:
        """Kill this process alone by SIGKILL, and count that."""
        if self._process.poll() is None:  # its own processes have to notice
            self._process.kill()
            self._process.wait()
            self.killed += 1

    def end(self) -> None:
        """Kill this process and all that it started by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def main() -> int:
    """Run cells on a cluster whose workers, client and scheduler are killed, and compare their records with a serial run;
    return 1 if a cell is missing or differs.
    """
    arguments = options(__doc__, pause=5.0, seeds=250)
    pause = arguments.pause
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = write_suite(
            folder / "fire.toml",
            arguments.seeds,
            'name = "sgd"\nsteps = 40',
            'name = "gamp"',
        )
        cells = load_suite(file).cells()
        begin = time.monotonic()
        serial_store = Store(folder / "calm")
        run_cells(cells, serial_store)
        print(
            f"{len(cells)} cells in series: {time.monotonic() - begin:.0f} s",
            flush=True,
        )

        begin = time.monotonic()
        host_options = ["--host", "127.0.0.1", "--no-dashboard"]
        environment = {
            "PYTHONPATH": paths,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        scheduler = Service(
            "-m",
            "distributed.cli.dask_scheduler",
            *host_options,
            "--port",
            str(port),
            **environment,
        )
        worker_command = (
            "-m",
            "distributed.cli.dask_worker",
            address,
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
        )
        worker_command = (*worker_command, "--local-directory", str(folder / "scratch"))
        workers = [Service(*worker_command, **environment) for _ in range(2)]
        run_command = (
            "run",
            str(file),
            "--dask",
            address,
            "--results",
            str(folder / "rough"),
            "--quiet",
            "--no-figure",
        )
        client = Service("-m", "smimbench", *run_command, **environment)
        store, next_workers = Store(folder / "rough" / "fire"), itertools.cycle(workers)
        planned_kills = [(share, client) for share in CLIENT] + [
            (share, scheduler) for share in SCHEDULER
        ]
        kills_by_count = sorted(
            ((share * len(cells), service) for share, service in planned_kills),
            key=lambda kill: kill[0],
        )
        last_kill_time = time.monotonic()
        try:
            while not client.ended():
                time.sleep(0.1)
                stored = sum(1 for _ in store.folder.glob("*.json")) - 1
                if kills_by_count and stored >= kills_by_count[0][0]:
                    kills_by_count.pop(0)[1].kill()
                if time.monotonic() - last_kill_time > pause:
                    next(next_workers).kill()
                    last_kill_time = time.monotonic()
                for service in (scheduler, *workers):
                    service.look()
                if not client.ended():
                    client.look()
        finally:
            for service in (client, *workers, scheduler):
                service.end()
        stored_records, expected = store.load(), serial_store.load()
        set_aside_files = [path.name for path in (store.folder / "set-aside").glob("*")]
    different_count = sum(
        key not in stored_records or differ(stored_records[key], record)
        for key, record in expected.items()
    )
    print(f"{len(stored_records)} of {len(expected)} cells in {time.monotonic() - begin:.0f} s; killed: workers "
          f"{sum(worker.killed for worker in workers)} times, the client {client.killed}, the scheduler {scheduler.killed}; "
          f"the client was started {client.starts} times; "
          f"{different_count} cells unlike the serial run, {len(store.complaints)} complaints, "
          f"{len(set_aside_files)} set aside")  # fmt: skip
    all_killed = client.killed == len(CLIENT) and scheduler.killed == len(SCHEDULER)
    return (
        0
        if all_killed
        and len(stored_records) == len(expected)
        and not (different_count or store.complaints or set_aside_files)
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
