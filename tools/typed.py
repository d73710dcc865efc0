"""Measures how long every command takes that people type: ``python tools/typed.py [--only WORD ...] [--before FILE]``.

Types commands for all shipped suites and items, each as a process, in folders that are empty at first, and writes
``results/typed.md`` and ``results/typed.csv``: seconds, CPU seconds, peak memory, printed lines. ``--before`` is such a CSV file
of another version, measured on the same machine; its times stand in the table, too. The calibration, a fixed piece of Python and
NumPy timed before every command, tells how fast the machine was in that minute.
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "suites" / "asv"))

from commands import items, suites, typed  # noqa: E402  (its folder is found by the line above)

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
)


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


def measure(only: list[str]) -> list[dict[str, object]]:
    """Run the commands that contain one of the words ``only`` (all if there are none) and return a row of times and output
    for each.
    """
    rows = []
    with tempfile.TemporaryDirectory() as top:
        finished_commands = set()
        for command, name in commands():
            if only and not any(word in command for word in only):
                continue
            folder = Path(top) / name
            folder.mkdir(exist_ok=True)
            title = command + (
                " (again)" if (command, name) in finished_commands else ""
            )
            finished_commands.add((command, name))
            calibration_seconds = calibration()
            usage = typed(command, folder)
            numbers = (
                f"{usage.wall:.2f}",
                f"{usage.cpu:.2f}",
                f"{usage.peak:.0f}",
                usage.lines,
                usage.wide,
                usage.status,
            )
            rows.append(
                dict(
                    zip(
                        FIELDS,
                        (title, *numbers, f"{calibration_seconds:.3f}"),
                        strict=True,
                    )
                )
            )
            sys.stdout.write("  ".join(map(str, rows[-1].values())) + "\n")
            sys.stdout.flush()
    return rows


def page(rows: list[dict[str, object]], earlier: dict[str, dict[str, str]]) -> str:
    """Return the table of commands and times as Markdown; ``earlier`` are rows of another version, by command."""
    median_calibration = statistics.median(
        float(str(row["calibration"])) for row in rows
    )
    extra_columns = " before, s | before, CPU s |" if earlier else ""
    lines = [
        "# What people type, and how long it takes",
        "",
        "`python tools/typed.py`: every command in a process and an empty folder of its own; (again): with its results there.",
        f"{platform.machine()}, {len(rows)} commands, calibration {median_calibration:.2f} s (one thread). "
        "Peak: largest process.",
        "",
        f"| command | s | CPU s | peak, MB | lines |{extra_columns}",
        "|---|---|---|---|---|" + ("---|---|" if earlier else ""),
    ]
    for row in rows:
        wide_lines_text = (
            f" ({row['wide']} over 80 characters)" if int(str(row["wide"])) else ""
        )
        status = "" if str(row["status"]) == "0" else f", exit {row['status']}"
        numbers = f"{row['seconds']} | {row['cpu_seconds']} | {row['peak_mb']} | {row['lines']}{wide_lines_text}"
        line = f"| `{row['command']}`{status} | {numbers} |"
        if earlier:
            earlier_row = earlier.get(str(row["command"]), {})
            line += f" {earlier_row.get('seconds', '')} | {earlier_row.get('cpu_seconds', '')} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


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
        "--before", type=Path, help="CSV of another version on this machine."
    )
    parser.add_argument(
        "--folder", type=Path, default=RESULTS, help="Where the two files go."
    )
    arguments = parser.parse_args()
    earlier = {}
    if arguments.before:
        with arguments.before.open(newline="") as file:
            earlier = {row["command"]: row for row in csv.DictReader(file)}
    rows = measure(arguments.only)
    with (arguments.folder / "typed.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (arguments.folder / "typed.md").write_text(page(rows, earlier))


if __name__ == "__main__":
    main()
