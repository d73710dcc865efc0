"""Cells in supervised processes: a cell whose process dies gets a second chance in a new one, then it is a failed cell."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from smimbench.run.cell import lost_record
from smimbench.run.executor import Ended, Executor, Limits, Task
from smimbench.run.record import check_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smimbench.files import JsonObject
    from smimbench.registry.registry import Registry
    from smimbench.run.claims import Claims
    from smimbench.run.executor import Underway
    from smimbench.suite.cells import Cell

__all__ = ["cell_task", "check_record_of", "in_processes", "record_of"]


def in_processes(
    cells: Sequence[Cell],
    workers: int,
    threads: int,
    registry: Registry,
    *,
    timing: bool = False,
    limits: Limits | None = None,
    claims: Claims | None = None,
    on_look: Callable[[list[Underway]], None] | None = None,
) -> Iterator[JsonObject]:
    """Run cells in so many processes at a time; records come as they end.

    With ``claims`` those that another run has taken are left to it, and are taken over if it goes away. ``on_look`` is told
    several times a second what is being run.
    """
    budget = None if limits is None else limits.budget
    end = None if budget is None else time.monotonic() + budget

    def may_begin(task: Task) -> bool | None:
        key = task.arguments[0].key
        if claims is None or claims.take(key):
            return True
        return False if claims.is_done(key) else None  # of another run, until that is done with it

    def look(underway: list[Underway]) -> None:
        if on_look is not None:
            on_look(underway)
        if claims is not None:
            claims.touch()

    executor = Executor(workers, threads, registry, timing=timing)
    try:
        tasks = [cell_task(cell, cell.distributions(registry)) for cell in cells]
        for ended in executor.run(tasks, limits, end=end, may_begin=may_begin, on_look=look):
            yield record_of(ended, threads)
    finally:
        if claims is not None:
            claims.close()
        executor.end()


def cell_task(cell: Cell, distributions: frozenset[str]) -> Task:
    """A cell as work for a process."""
    accept = partial(check_record_of, cell)
    return Task("cell", (cell,), distributions, accept, chances=2, timeout=cell.run.timeout)


def check_record_of(cell: Cell, record: Any) -> None:
    """Raise ValueError unless this is a record of the cell."""
    if not isinstance(record, dict) or record.get("key") != cell.key:
        raise ValueError("the record of another cell")
    check_types(record)


def record_of(ended: Ended, threads: int) -> JsonObject:
    """The record of a cell, whatever became of its process."""
    if ended.event is not None and "answer" in ended.event:
        record: JsonObject = ended.event["answer"]
    else:
        times = f" {ended.task.lost} times" if ended.task.lost > 1 else ""
        reason = ended.reason if ended.status else f"the worker process died{times}: {ended.reason}"
        if ended.event is not None:
            reason = f"{ended.event.get('error')}: {ended.event.get('message')}"
        record = lost_record(ended.task.arguments[0], threads, reason)
        record |= {"status": ended.status.value} if ended.status else {}
    return {**record, **({"output": ended.output} if ended.output else {})}
