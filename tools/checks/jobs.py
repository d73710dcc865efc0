"""Helpers of the checks in this folder: a small suite, numeric command-line options, and the comparison of two records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smimbench.run.record import Record

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

TEXT = """
[problem]
model   = {{ name = "sequence-multi-index", tokens = 2 }}
channel = {{ name = "linear", noise = 0.2 }}
prior   = {{ name = "gaussian" }}
[grid]
alpha     = [0.5, 1.0]
dimension = [12]
seeds     = {seeds}
{algorithms}
"""
UNCLOCKED = ("metrics", "status", "reason", "iterations", "restarts", "start", "final")


def write_suite(file: Path, seeds: int, *algorithms: str) -> Path:
    """Write a suite of two sample ratios and some algorithms (TOML texts), with this number of seeds, to a file, and return
    it.
    """
    file.write_text(
        TEXT.format(
            seeds=seeds,
            algorithms="\n".join(f"[[algorithms]]\n{text}" for text in algorithms),
        )
    )
    return file


def differ(record: Record, repeated: Record) -> bool:
    """Whether two records of the same cell differ in anything but times."""
    return any(getattr(record, name) != getattr(repeated, name) for name in UNCLOCKED)


def options(description: str | None, **numbers: float) -> argparse.Namespace:
    """Parse numeric options of a command line, given by their names and defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    return parser.parse_args()
