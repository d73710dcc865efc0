"""What of theory is being solved and how far it is: bars on a terminal, lines in a file or pipe."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from smimbench.cli.options import complain, make_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import TaskID

    from smimbench.report.theory_document import Stage
    from smimbench.run.theory_cache import Kept

__all__ = ["Interrupted", "stages"]

PATIENCE = 2.0
"""Seconds of theory before a file or pipe is told what is being solved; doubled, short ones say nothing twice as long."""
PAUSE = 10.0
"""Seconds between two lines about the same stage; doubled, logs are half as long."""


BAR, COUNT, CLOCK = 16, 7, 7
"""Widths of the bar, of ``12 / 120`` and of ``1:23:45`` in letters; doubled, words are cut on a terminal of 80."""


class Interrupted(click.Abort):
    """Ctrl-C; the message says what is kept."""


@contextlib.contextmanager
def stages(*, silent: bool, kept: Callable[[], Kept]) -> Iterator[Callable[[Stage], None]]:
    """Says on standard error what is being solved: a bar for all that is at work on a terminal, else a line now and then.

    Parameters
    ----------
    silent : bool
        Say nothing.
    kept : callable
        How much is kept, asked when Ctrl-C is pressed.

    Raises
    ------
    Interrupted
        After Ctrl-C.
    """
    console = make_console(error=True)
    try:
        if silent:
            yield lambda stage: None
        elif console.is_terminal:
            with _progress_bars() as say:
                yield say
        else:
            yield _progress_lines()
    except KeyboardInterrupt:
        points, thresholds, nodes = kept()
        raise Interrupted(
            f"interrupted; kept so far: {_count(nodes, 'node')} of curves, {_count(points, 'sample ratio')} and the "
            f"thresholds of {_count(thresholds, 'problem')}; run the same command again to go on from there"
        ) from None


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _where(stage: Stage) -> str:
    """Nodes in use and where the curve has arrived, or what the stage notes."""
    nodes, alpha = stage.progress.nodes, stage.progress.alpha
    reached = "" if alpha is None else f", curve at alpha {alpha:.4g}"
    return f"{_count(nodes, 'node')}{reached}" if nodes else stage.note


@contextlib.contextmanager
def _progress_bars() -> Iterator[Callable[[Stage], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    # On a narrow terminal words give way, and not the bar, the count and the time.
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=3)),
        BarColumn(BAR, table_column=Column(min_width=BAR, no_wrap=True)),
        MofNCompleteColumn(table_column=Column(min_width=COUNT, no_wrap=True)),
        TimeElapsedColumn(table_column=Column(min_width=CLOCK, no_wrap=True)),
        TextColumn(
            "{task.fields[where]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=2)
        ),
    )
    with Progress(*columns, console=make_console(error=True), transient=True, expand=True) as progress:
        tasks: dict[tuple[str, str], TaskID] = {}

        def say(stage: Stage) -> None:
            name = stage.problem, stage.what
            if name not in tasks:
                tasks[name] = progress.add_task(f"{stage.problem}: {stage.what}", total=stage.progress.total, where="")
            done, total = stage.progress.done, stage.progress.total
            progress.update(tasks[name], completed=done, total=total, where=_where(stage), visible=done < total)

        yield say


def _progress_lines() -> Callable[[Stage], None]:
    begin = time.monotonic()
    last: tuple[str, str] | None = None
    said = begin + PATIENCE - PAUSE

    def say(stage: Stage) -> None:
        nonlocal last, said
        now, name = time.monotonic(), (stage.problem, stage.what)
        if now - begin < PATIENCE or (name == last and now - said < PAUSE):
            return
        last, said = name, now
        where = _where(stage)
        done, total = stage.progress.done, stage.progress.total
        complain(
            f"theory of {stage.problem}: {stage.what}, {done} of {total} found"
            f"{f', {where}' if where else ''} ({now - begin:.0f} s so far)"
        )

    return say
