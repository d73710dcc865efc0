"""A part of a suite's cells for each of several runs that know nothing of each other, of about the same cost."""

from __future__ import annotations

import heapq
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smimbench.run.cost import prices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.suite.cells import Cell

__all__ = ["Shard", "array_shard", "cells_of_shard", "read_shard"]


@dataclass(frozen=True)
class Shard:
    """Part ``number`` (from 1) of ``count``."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def read_shard(text: str) -> Shard:
    """``"3/8"``; ValueError for anything that is no part of a whole."""
    number, slash, count = text.partition("/")
    if not (slash and number.isascii() and count.isascii() and number.isdigit() and count.isdigit() and len(text) < 20):
        raise ValueError(f"must look like 3/8, got {text[:40]!r}")
    shard = Shard(int(number), int(count))
    if not 1 <= shard.number <= shard.count:
        raise ValueError(f"must be one of 1/{shard.count} to {shard.count}/{shard.count}, got {text!r}")
    return shard


def array_shard(environment: Mapping[str, str] = os.environ) -> Shard | None:
    """The part of this task of a SLURM job array; None outside of one."""
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP")
    found = [environment.get(name, default) for name, default in zip(names, ("", "", "0", "1"))]
    if not all(value.isdigit() for value in found):
        return None
    task, count, first, step = map(int, found)
    number = (task - first) // max(1, step) + 1
    return Shard(number, count) if 1 <= number <= count and count > 1 else None


def cells_of_shard(cells: Sequence[Cell], shard: Shard) -> list[Cell]:
    """The cells of a part, in the order of the suite.

    The dearest first, each to the part that has least: the same on every machine, because prices count operations, not
    seconds, and no part depends on what has been run.
    """
    price = prices(cells)
    loads = [(0.0, number) for number in range(1, shard.count + 1)]
    own = set()
    for cell in sorted(cells, key=lambda cell: (-price[cell.key], cell.key)):
        load, number = heapq.heappop(loads)
        heapq.heappush(loads, (load + price[cell.key], number))
        if number == shard.number:
            own.add(cell.key)
    return [cell for cell in cells if cell.key in own]
