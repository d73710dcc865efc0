"""Measures how long every command takes that people type: ``python tools/typed.py [--only WORD ...] [--against PYTHON]``.

Types commands for all shipped suites and items, each as a process, in folders that are empty at first, and writes
``results/typed.md`` and ``results/typed.csv`` after each: seconds, CPU seconds, peak memory, printed lines. ``--against`` is the
Python of an environment with another version of smimbench: each command is typed with both, right after one another, in folders
of their own; which of the two is first takes turns. Both must have run before, or what Numba compiles is timed, too. The
calibration, a fixed piece of Python and NumPy timed before every command, tells how fast the machine was in that minute.
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "suites" / "asv"))

from commands import Typed, items, suites, typed  # noqa: E402  (its folder is found by the line above)

RESULTS = ROOT / "results"
FIELDS = (
    "command",
    "seconds",
    "cpu_seconds",
    "peak_mb",
    "lines",
    "wide",
    "status",
    "calibration",
    "before_seconds",
    "before_cpu_seconds",
    "before_status",
)
LIMIT = 600.0
"""Seconds after which a command is killed. Doubled: a suite whose theory takes a quarter of an hour has a time."""
USAGE = 2
"""Exit status of a command that a version does not know."""


def calibration() -> float:
    """Measure the CPU seconds of a fixed amount of work: half a loop in Python, half arrays of NumPy."""
    begin = time.process_time()
    total = 0
    for k in range(2_000_000):
        total += k & 7
    a = np.linspace(0.0, 1.0, 100_000)
    for _ in range(100):
        np.exp(-a * a)
    return time.process_time() - begin


def commands() -> list[tuple[str, str]]:
    """Return the commands in their order, each with the folder it is run in; those of one folder find the earlier results."""
    typed = [("--help", "a"), ("list", "a"), ("doctor", "a")]
    quickstart = (
        "run quickstart",
        "run quickstart",
        "show quickstart",
        "report quickstart --output page.html",
    )
    typed += [(command, "quickstart") for command in quickstart]
    typed.append(("tune quickstart", "tuned"))
    typed += [(f"run {suite} --dry-run", "a") for suite in suites()]
    typed += [(f"theory {suite}", suite + " theory") for suite in suites()]
    typed += [(f"check {name}", "a") for name in items()]
    return typed


def type_in_turns(
    command: str, folder: Path, pythons: list[str], first: int
) -> list[Typed]:
    """Type a command with each of the ``pythons``, in a subfolder of ``folder`` for each, from number ``first`` on; return what
    they took, in the order of ``pythons``.
    """
    usages = {}
    for turn in range(len(pythons)):
        index = (first + turn) % len(pythons)
        own_folder = folder / str(index)
        own_folder.mkdir(parents=True, exist_ok=True)
        usages[index] = typed(command, own_folder, python=pythons[index], limit=LIMIT)
    return [usages[index] for index in range(len(pythons))]


def measure(only: list[str], against: str | None) -> Iterator[dict[str, object]]:
    """Run the commands that contain one of the words ``only`` (all if there are none) and yield a row of times and output
    for each, with the times that the version of the Python ``against`` takes, empty for commands that it does not know.
    """
    pythons = [sys.executable, *([against] if against else [])]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as top:
        finished_commands = set()
        for command, name in commands():
            if only and not any(word in command for word in only):
                continue
            title = command + (
                " (again)" if (command, name) in finished_commands else ""
            )
            finished_commands.add((command, name))
            calibration_seconds = calibration()
            usage, *others = type_in_turns(
                command, Path(top) / name, pythons, len(finished_commands)
            )
            numbers = [
                f"{usage.wall:.2f}",
                f"{usage.cpu:.2f}",
                f"{usage.peak:.0f}",
                usage.lines,
                usage.wide,
                usage.status,
                f"{calibration_seconds:.3f}",
            ]
            before: list[object] = ["", "", ""]
            for other in others:
                if other.status != USAGE:
                    before = [f"{other.wall:.2f}", f"{other.cpu:.2f}", other.status]
            yield dict(zip(FIELDS, (title, *numbers, *before), strict=True))


def comparison(rows: list[dict[str, object]]) -> str:
    """Return a line that compares the CPU seconds of the two versions, over the commands that both finished with one status."""
    pairs = [
        (float(str(row["cpu_seconds"])), float(str(row["before_cpu_seconds"])))
        for row in rows
        if row["before_status"] == row["status"] != -9
    ]
    if not pairs:
        return "Before: another version, each command typed with both in turn; they have no command in common."
    ratio = statistics.median(now / before for now, before in pairs)
    now, before = (sum(seconds) for seconds in zip(*pairs))
    return (
        "Before: another version, each command typed with both in turn. CPU seconds over those before, "
        f"{len(pairs)} commands: median {ratio:.2f}; all together {now:.0f} s, before {before:.0f} s."
    )


def page(rows: list[dict[str, object]], *, compared: bool) -> str:
    """Return the table of commands and times as Markdown, with those of another version where it was ``compared``."""
    median_calibration = statistics.median(
        float(str(row["calibration"])) for row in rows
    )
    extra_columns = " before, s | before, CPU s |" if compared else ""
    lines = [
        "# What people type, and how long it takes",
        "",
        "`python tools/typed.py`: every command in a process and an empty folder of its own; (again): with its results there.",
        "What Numba compiles was compiled by an earlier run.",
        f"{platform.machine()}, {len(rows)} commands, calibration {median_calibration:.2f} s (one thread). "
        "Peak: largest process.",
        *([comparison(rows)] if compared else []),
        "",
        f"| command | s | CPU s | peak, MB | lines |{extra_columns}",
        "|---|---|---|---|---|" + ("---|---|" if compared else ""),
    ]
    for row in rows:
        wide_lines_text = (
            f" ({row['wide']} over 80 characters)" if int(str(row["wide"])) else ""
        )
        numbers = f"{row['seconds']} | {row['cpu_seconds']} | {row['peak_mb']} | {row['lines']}{wide_lines_text}"
        line = f"| `{row['command']}`{_exit(row['status'])} | {numbers} |"
        if compared:
            line += f" {row['before_seconds']}{_exit(row['before_status'])} | {row['before_cpu_seconds']} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _exit(status: object) -> str:
    """Return how a command ended that did not succeed, to be written after it; nothing for others."""
    if status == -9:
        return f", over {LIMIT:.0f} s"
    return f", exit {status}" if status else ""


def main() -> None:
    """Run the commands, and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="Commands with one of these words.",
    )
    parser.add_argument(
        "--against",
        metavar="PYTHON",
        help="Python of an environment with another version.",
    )
    parser.add_argument(
        "--folder", type=Path, default=RESULTS, help="Where the two files go."
    )
    arguments = parser.parse_args()
    rows = []
    for row in measure(arguments.only, arguments.against):
        rows.append(row)
        sys.stdout.write("  ".join(map(str, row.values())) + "\n")
        sys.stdout.flush()
        with (arguments.folder / "typed.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        (arguments.folder / "typed.md").write_text(
            page(rows, compared=bool(arguments.against))
        )


if __name__ == "__main__":
    main()
