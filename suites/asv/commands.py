"""What people type: seconds, peak memory and printed lines of every command, each in a process and a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

SUITES = Path(__file__).resolve().parent.parent


class Typed(NamedTuple):
    """What a command took.

    Attributes
    ----------
    wall, cpu : float
        Seconds until the prompt returns, and of all its processes together.
    peak : float
        Memory of its largest process, in MB.
    lines, wide : int
        Printed lines, and how many of them are longer than 80 characters.
    status : int
        Exit status; -9 for a command that was killed at its limit.
    """

    wall: float
    cpu: float
    peak: float
    lines: int
    wide: int
    status: int


def typed(
    command: str,
    folder: str | Path,
    *,
    python: str = sys.executable,
    limit: float | None = None,
) -> Typed:
    """Type ``smimbench COMMAND`` in a folder, at 80 columns and into a pipe, with the smimbench of a ``python``; it is killed
    with all its processes after ``limit`` seconds.
    """
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [python, "-P", "-m", "smimbench", *command.split()],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}, start_new_session=True,
        )  # fmt: skip
        kill = threading.Timer(
            limit or threading.TIMEOUT_MAX, os.killpg, (process.pid, signal.SIGKILL)
        )
        kill.daemon = True
        kill.start()
        try:
            # The usage of this child and of those it waited for, which subprocess does not tell.
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            kill.cancel()
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    wide = sum(len(line) > 80 for line in lines)
    peak = used.ru_maxrss * unit / 1e6
    return Typed(
        wall, used.ru_utime + used.ru_stime, peak, len(lines), wide, process.returncode
    )


def suites() -> list[str]:
    """Names of the shipped suites."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))


def items() -> list[str]:
    """Everything that ``smimbench check`` takes."""
    listed = subprocess.run(
        [sys.executable, "-P", "-m", "smimbench", "list", "--json"],
        check=True,
        capture_output=True,
    )
    entries_listed = json.loads(listed.stdout)
    return sorted(
        {
            entry["name"]
            for kind, entries in entries_listed.items()
            if kind != "suites"
            for entry in entries
        }
    )


class Quick:
    """What is typed again and again; asv compares the seconds of every commit."""

    params = (
        "--help",
        "list",
        "list suites",
        "info softmax",
        "run quickstart --dry-run",
        "theory quickstart",
    )
    param_names = ("command",)
    timeout = 120
    number = 1
    repeat = (2, 5, 20.0)
    warmup_time = 0

    def setup(self, command):
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self, command):
        self.folder.cleanup()

    def time_command(self, command):
        """In a folder with nothing in it at first."""
        assert typed(command, self.folder.name).status == 0


class Quickstart:
    """A first run, the same again, and what is made of it."""

    params = (
        "run quickstart",
        "show quickstart",
        "report quickstart --output page.html",
    )
    param_names = ("command",)
    timeout = 300
    number = 1
    repeat = (1, 3, 30.0)
    warmup_time = 0

    def setup_cache(self):
        """A folder with its results."""
        folder = Path.cwd() / "typed"
        folder.mkdir()
        assert typed("run quickstart", folder).status == 0
        return str(folder)

    def time_again(self, folder, command):
        """With every cell and all theory there."""
        assert typed(command, folder).status == 0

    def track_lines(self, folder, command):
        """Lines printed, more than one page of a terminal being too many."""
        return typed(command, folder).lines


class Cold:
    """A suite from nothing."""

    timeout = 600
    number = 1
    repeat = 1
    warmup_time = 0

    def setup(self):
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self):
        self.folder.cleanup()

    def time_quickstart(self):
        """All cells, tables and figures."""
        assert typed("run quickstart", self.folder.name).status == 0

    def time_three_layers(self):
        """All thresholds and predictions of the slowest shipped theory."""
        assert typed("theory smi-three-layers", self.folder.name).status == 0
