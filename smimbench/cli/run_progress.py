"""How far a run is: cells done, and what a cell that takes long is at; bars on a terminal, lines in a file or pipe."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from smimbench.cli.options import complain, make_console
from smimbench.report.labels import kind_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import TaskID

    from smimbench.run.campaign import Campaign
    from smimbench.run.processes import Underway

__all__ = ["Watchers", "watchers"]

SHORT = 5.0
"""Seconds after which a cell has a line of its own on a terminal. Doubled: fewer lines come and go."""

FIRST_LINE = 60.0
"""Seconds after which a file or pipe is told what a cell is at; told again whenever its time has doubled. Doubled: logs of cells
of a minute stay empty."""


class Watchers(NamedTuple):
    """What a campaign calls: with every record, and several times a second with what is being run."""

    on_record: Callable[[dict[str, Any]], None]
    on_look: Callable[[list[Underway]], None]


@contextlib.contextmanager
def watchers(campaign: Campaign, *, silent: bool) -> Iterator[Watchers]:
    """Says on standard error how far a campaign is; ``silent``: nothing."""
    console = make_console(error=True)
    if silent:
        yield Watchers(lambda record: None, lambda underway: None)
    elif console.is_terminal:
        with _bars(campaign, console) as found:
            yield found
    else:
        if campaign.missing:
            where = f"on {campaign.dask}" if campaign.dask else f"{campaign.workers} at a time"
            click.echo(f"{campaign.suite.name}: running {len(campaign.missing)} cells, {where}", err=True)
        yield Watchers(_complaints(console), _lines())


def _name(underway: Underway) -> str:
    """Of the first cell, and how many seeds share its pass."""
    cell, more = underway.cells[0], len(underway.cells) - 1
    seed = f"seed {cell.replicate}" + (f" and {more} more" if more else "")
    return f"{cell.algorithm_label}, {cell.problem_label}, alpha {cell.alpha:g}, D {cell.dimension}, {seed}"


def _made(underway: Underway) -> str:
    return f"{underway.iterations} iterations" if underway.iterations else "starting"


def _complaints(console: Console) -> Callable[[dict[str, Any]], None]:
    """Prints how a cell ended that did not end well; what repeats, for its first cell only."""
    said: set[tuple[str, str]] = set()

    def on_record(record: dict[str, Any]) -> None:
        if record["status"] == "ok":
            return
        reason = reason_of(record)
        kind = (record["algorithm"], kind_of(reason))
        if kind not in said:
            said.add(kind)
            line = f"{record['algorithm']} at alpha {record['cell']['alpha']:g}: {reason}"
            console.print(line, style="yellow", soft_wrap=True, markup=False)

    return on_record


@contextlib.contextmanager
def _bars(campaign: Campaign, console: Console) -> Iterator[Watchers]:
    """A bar of all cells, and below it a line for each that takes long."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    left = (TextColumn("left"), TimeRemainingColumn())
    name = TextColumn("{task.description}", markup=False)
    cells = Progress(name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *left, console=console)
    # On a narrow terminal the name gives way, and not what the cell is at.
    short = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    whole = Column(no_wrap=True)
    text = TextColumn("{task.description}", markup=False, table_column=short)
    where = TextColumn("{task.fields[where]}", markup=False, table_column=whole)
    long = Progress(SpinnerColumn(), text, where, console=console, expand=True)
    total = cells.add_task(campaign.suite.name, total=len(campaign.missing))
    shown: dict[str, TaskID] = {}

    def on_look(underway: list[Underway]) -> None:
        taking_long = {one.cells[0].key: one for one in underway if one.seconds > SHORT}
        for key in [key for key in shown if key not in taking_long]:
            long.remove_task(shown.pop(key))
        for key, one in taking_long.items():
            at = f"{_made(one)}, {_clock(one.seconds)}"
            if key not in shown:
                shown[key] = long.add_task(_name(one), total=None, where=at)
            else:
                long.update(shown[key], where=at)

    complaint = _complaints(console)

    def on_record(record: dict[str, Any]) -> None:
        cells.advance(total)
        complaint(record)

    with Live(Group(cells, long), console=console, transient=True):
        yield Watchers(on_record, on_look)


def _lines() -> Callable[[list[Underway]], None]:
    """A line about a cell that takes long, and another whenever its time has doubled."""
    due: dict[str, float] = {}

    def on_look(underway: list[Underway]) -> None:
        for one in underway:
            key = one.cells[0].key
            if one.seconds >= due.setdefault(key, FIRST_LINE):
                due[key] = 2 * one.seconds
                complain(f"running for {_clock(one.seconds)}: {_name(one)}: {_made(one)}")

    return on_look


def _clock(seconds: float) -> str:
    """``0:05``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
