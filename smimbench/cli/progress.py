"""Progress of a run or of theory on standard error: bars on a terminal, occasional lines in a file or pipe."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from smimbench.cli.options import complain, make_console
from smimbench.report.labels import kind_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console
    from rich.progress import TaskID

    from smimbench.files import JsonObject
    from smimbench.report.theory_document import Stage
    from smimbench.run.campaign import Campaign
    from smimbench.run.executor import Underway
    from smimbench.run.theory_cache import Kept

LONG_CELL = 5.0
"""Seconds after which a cell has a bar of its own on a terminal."""
PATIENCE = 2.0
"""Seconds of theory before a file or pipe is told what is being solved."""


class Interrupted(click.Abort):
    """Raised at Ctrl-C; the message says what has been stored."""


class RunProgress(NamedTuple):
    """Interface for reporting progress of a campaign, called with every record and several times a second."""

    on_record: Callable[[JsonObject], None]
    on_look: Callable[[list[Underway]], None]


class _Bars:
    """Progress bars by name; on a narrow terminal, names and notes are shortened to make room for numbers."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        def text(field: str, ratio: int | None = None) -> TextColumn:
            column = Column(no_wrap=True, overflow="ellipsis", ratio=ratio)
            return TextColumn(f"{{task.{field}}}", markup=False, table_column=column)

        whole = Column(no_wrap=True)
        times = (TimeElapsedColumn(table_column=whole), TimeRemainingColumn(table_column=whole))
        columns = (SpinnerColumn(), text("description", 3), BarColumn(16), text("fields[count]"), *times)
        self.display = Progress(*columns, text("fields[note]", 2), console=console, transient=True, expand=True)
        self.tasks: dict[Any, TaskID] = {}

    def show(self, key: Any, name: str, count: str, done: int = 0, total: int | None = None, note: str = "") -> None:
        """Add or update a progress bar, which moves to and fro if the total is unknown."""
        if key not in self.tasks:
            self.tasks[key] = self.display.add_task(name, count=count, note=note)
        self.display.update(self.tasks[key], completed=done, total=total, count=count, note=note)

    def keep_only(self, keys: Iterable[Any]) -> None:
        """Remove all other bars."""
        for key in self.tasks.keys() - set(keys):
            self.display.remove_task(self.tasks.pop(key))
            self.display.refresh()


@contextlib.contextmanager
def run_progress(campaign: Campaign, *, silent: bool) -> Iterator[RunProgress]:
    """Report how far a campaign is, and which cells take long."""
    if silent:
        yield RunProgress(lambda record: None, lambda underway: None)
        return
    console, name, total = make_console(error=True), campaign.suite.name, len(campaign.missing)
    said: set[tuple[str, str]] = set()

    def report(record: JsonObject) -> None:
        """Print why a cell did not end well; a repeated reason is printed for its first cell only."""
        reason = "ok" if record["status"] == "ok" else reason_of(record)
        kind = (record["algorithm"], kind_of(reason))
        if reason != "ok" and kind not in said:
            said.add(kind)
            line = f"{record['algorithm']} at alpha {record['cell']['alpha']:g}: {reason}"
            console.print(line, style="yellow", soft_wrap=True, markup=False)

    if not console.is_terminal:
        if total:
            where = f"on {campaign.dask}" if campaign.dask else f"{campaign.workers} at a time"
            click.echo(f"{name}: running {total} cells, {where}", err=True)
        due: dict[str, float] = {}

        def say(underway: list[Underway]) -> None:
            for one in underway:  # after a minute, and whenever the time has doubled
                key = one.task.arguments[0].key
                if one.seconds >= due.setdefault(key, 60.0):
                    due[key] = 2 * one.seconds
                    complain(f"running for {_clock(one.seconds)}: {_cell_name(one)}: {_iterations(one)}")

        yield RunProgress(report, say)
        return
    bars, done = _Bars(console), [0]

    def on_look(underway: list[Underway]) -> None:
        slow = {one.task.arguments[0].key: one for one in underway if one.seconds > LONG_CELL}
        bars.keep_only({name, *slow})
        for key, one in slow.items():
            bars.show(key, _cell_name(one), f"{_iterations(one)}, {_clock(one.seconds)}")

    def on_record(record: JsonObject) -> None:
        done[0] += 1
        bars.show(name, name, f"{done[0]} / {total}", done[0], total)
        report(record)

    bars.show(name, name, f"0 / {total}", 0, total)
    with bars.display:
        yield RunProgress(on_record, on_look)


@contextlib.contextmanager
def theory_progress(*, silent: bool, kept: Callable[[], Kept]) -> Iterator[Callable[[Stage], None]]:
    """Report which theory is being solved; ``kept`` is called at Ctrl-C to say what has been stored.

    Raises
    ------
    Interrupted
        After Ctrl-C.
    """
    console = make_console(error=True)
    bars = _Bars(console) if console.is_terminal and not silent else None
    begin, last = time.monotonic(), [("", "", 0.0)]

    def on_stage(stage: Stage) -> None:
        key, done, total = (stage.problem, stage.what), stage.progress.done, stage.progress.total
        if bars is not None:
            bars.show(key, f"{stage.problem}: {stage.what}", f"{done} / {total}", done, total, _where(stage))
            if done >= total:
                bars.keep_only(bars.tasks.keys() - {key})
        elif not silent:  # a line for every new stage, and every ten seconds about the current one
            now = time.monotonic() - begin
            if now >= PATIENCE and (last[0][:2] != key or now - last[0][2] >= 10):
                last[0] = (*key, now)
                found = ", ".join(filter(None, (f"{done} of {total} found", _where(stage))))
                complain(f"theory of {stage.problem}: {stage.what}, {found} ({now:.0f} s so far)")

    try:
        with contextlib.nullcontext() if bars is None else bars.display:
            yield on_stage
    except KeyboardInterrupt:
        points, thresholds, nodes = kept()
        raise Interrupted(
            f"interrupted; kept so far: {_count(nodes, 'node')} of curves, {_count(points, 'sample ratio')} and the "
            f"thresholds of {_count(thresholds, 'problem')}; run the same command again to go on from there"
        ) from None


def _where(stage: Stage) -> str:
    """Number of nodes used and the current position on the curve, or the note of this stage."""
    nodes, alpha = stage.progress.nodes, stage.progress.alpha
    reached = "" if alpha is None else f", curve at alpha {alpha:.4g}"
    return f"{_count(nodes, 'node')}{reached}" if nodes else stage.note


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _cell_name(underway: Underway) -> str:
    (cell,) = underway.task.arguments
    where = f"alpha {cell.alpha:g}, D {cell.dimension}, seed {cell.replicate}"
    return f"{cell.algorithm_label}, {cell.problem_label}, {where}"


def _iterations(underway: Underway) -> str:
    return f"{underway.iterations} iterations" if underway.iterations else "starting"


def _clock(seconds: float) -> str:
    """Duration as text: ``0:05``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
