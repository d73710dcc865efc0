"""Which cells are run in one pass: the seeds of a point that are so small that several of them fill a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend.device import get_backend
from smimbench.backend.streaming import instances_in_a_chunk
from smimbench.files import canonical_json
from smimbench.interfaces import member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.registry.registry import Registry
    from smimbench.suite.cells import Cell

__all__ = ["grouped"]


def grouped(cells: Sequence[Cell], registry: Registry, most: int | None = None) -> list[tuple[Cell, ...]]:
    """The cells, those that differ in their replicate alone side by side as far as they can be run in one pass.

    On a device as many are as fit one of its chunks of samples (``smimbench.backend.memory``): a larger instance fills it alone.
    Only algorithms take part that say how (``batched``), on inputs that are not stored in another precision (``mixed``).

    Parameters
    ----------
    most : int or None
        Seeds of a pass at most, on the host too; 1: every cell on its own. None: as many as fit on a device, 1 on the host.
    """
    points: dict[str, list[int]] = {}
    for place, cell in enumerate(cells):
        point = {name: value for name, value in cell.identity().items() if name != "replicate"}
        points.setdefault(canonical_json(point), []).append(place)
    found = []
    for places in points.values():
        size = 1 if most == 1 or len(places) == 1 else _seeds_of_a_pass(cells[places[0]], len(places), registry, most)
        step = math.ceil(len(places) / math.ceil(len(places) / size))
        found += [places[k : k + step] for k in range(0, len(places), step)]
    return [tuple(cells[place] for place in places) for places in sorted(found)]


def _seeds_of_a_pass(cell: Cell, count: int, registry: Registry, most: int | None) -> int:
    """How many of so many seeds like a cell are run in one pass."""
    backend, wanted = get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32), min(count, most or count)
    if cell.run.dtype == "mixed" or (most is None and not backend.accelerated):
        return 1
    try:
        problem, algorithm = cell.rebuild(registry)
        ask = member(algorithm, "batched")
        if ask is None or ask(problem) is None:
            return 1
    except Exception:  # what is wrong with an item, stands in the record of each cell
        return 1
    if not backend.accelerated:
        return wanted
    n, like = problem.model.sample_count(cell.alpha, cell.dimension), backend.asarray(np.empty(0))
    return instances_in_a_chunk(problem.model, n, cell.dimension, problem.components, like, wanted)
