"""What the jobs of this folder share: a small suite, numbers of their command lines, and what of a record is compared."""

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
    """A suite of four cells for each seed and two algorithms; the file."""
    file.write_text(
        TEXT.format(
            seeds=seeds,
            algorithms="\n".join(f"[[algorithms]]\n{text}" for text in algorithms),
        )
    )
    return file


def differ(record: Record, repeated: Record) -> bool:
    """Whether two records of a cell say different things."""
    return any(getattr(record, name) != getattr(repeated, name) for name in UNCLOCKED)


def options(description: str | None, **numbers: float) -> argparse.Namespace:
    """Numbers from the command line, by their names and usual values."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    return parser.parse_args()
