"""How far a run or a theory is, on standard error: bars on a terminal, now and then a line in a file or pipe."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from smimbench.cli.options import complain, make_console
from smimbench.report.labels import kind_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from smimbench.report.theory_document import Stage
    from smimbench.run.campaign import Campaign
    from smimbench.run.executor import Underway
    from smimbench.run.theory_cache import Kept

__all__ = ["Interrupted", "RunProgress", "run_progress", "theory_progress"]

LONG_CELL = 5.0
"""Seconds after which a cell has a bar of its own on a terminal."""
PATIENCE = 2.0
"""Seconds of theory before a file or pipe is told what is being solved."""


class Interrupted(click.Abort):
    """Ctrl-C; the message says what is kept."""


class RunProgress(NamedTuple):
    """What a campaign calls: with every record, and several times a second with what is being run."""

    on_record: Callable[[dict[str, Any]], None]
    on_look: Callable[[list[Underway]], None]


class _Bars:
    """Bars by name, and below them lines of what has no total; on a narrow terminal names and notes give way to numbers."""

    def __init__(self, console: Console) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        def text(field: str, ratio: int | None = None) -> TextColumn:
            column = Column(no_wrap=True, overflow="ellipsis", ratio=ratio)
            return TextColumn(f"{{task.{field}}}", markup=False, table_column=column)

        whole, name, count = Column(no_wrap=True), text("description", 3), text("fields[count]")
        times = (TimeElapsedColumn(table_column=whole), TimeRemainingColumn(table_column=whole))
        bar = BarColumn(16, table_column=whole)
        self.counted = Progress(SpinnerColumn(), name, bar, count, *times, text("fields[note]", 2), expand=True)
        self.others = Progress(SpinnerColumn(), name, count, expand=True)
        self.display = Live(Group(self.counted, self.others), console=console, transient=True)
        self.tasks: dict[Any, tuple[Progress, TaskID]] = {}

    def show(
        self, key: Any, name: str, done: int = 0, total: int | None = None, count: str = "", note: str = ""
    ) -> None:
        """Add or update a bar, or a line where there is no total."""
        count = count or f"{done} / {total}"
        if key not in self.tasks:
            of = self.others if total is None else self.counted
            self.tasks[key] = of, of.add_task(name, total=total, count=count, note=note)
        of, task = self.tasks[key]
        of.update(task, completed=done, total=total, count=count, note=note)

    def keep_only(self, keys: Any) -> None:
        """Remove all others."""
        for key in [key for key in self.tasks if key not in keys]:
            of, task = self.tasks.pop(key)
            of.remove_task(task)


@contextlib.contextmanager
def run_progress(campaign: Campaign, *, silent: bool) -> Iterator[RunProgress]:
    """Say how far a campaign is, and which cells take long."""
    console = make_console(error=True)
    if silent:
        yield RunProgress(lambda record: None, lambda underway: None)
    elif console.is_terminal:
        bars, done, name, total = _Bars(console), [0], campaign.suite.name, len(campaign.missing)

        def on_look(underway: list[Underway]) -> None:
            slow = {one.task.arguments[0].key: one for one in underway if one.seconds > LONG_CELL}
            bars.keep_only({name, *slow})
            for key, one in slow.items():
                bars.show(key, _cell_name(one), count=f"{_iterations(one)}, {_clock(one.seconds)}")

        def on_record(record: dict[str, Any]) -> None:
            done[0] += 1
            bars.show(name, name, done[0], total)
            report(record)

        report = _failures(console)
        bars.show(name, name, 0, total)
        with bars.display:
            yield RunProgress(on_record, on_look)
    else:
        if campaign.missing:
            where = f"on {campaign.dask}" if campaign.dask else f"{campaign.workers} at a time"
            click.echo(f"{campaign.suite.name}: running {len(campaign.missing)} cells, {where}", err=True)
        due: dict[str, float] = {}

        def say(underway: list[Underway]) -> None:
            for one in underway:  # after a minute, and whenever the time has doubled
                key = one.task.arguments[0].key
                if one.seconds >= due.setdefault(key, 60.0):
                    due[key] = 2 * one.seconds
                    complain(f"running for {_clock(one.seconds)}: {_cell_name(one)}: {_iterations(one)}")

        yield RunProgress(_failures(console), say)


def _failures(console: Console) -> Callable[[dict[str, Any]], None]:
    """Print why a cell did not end well; what repeats, for its first cell only."""
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
def theory_progress(*, silent: bool, kept: Callable[[], Kept]) -> Iterator[Callable[[Stage], None]]:
    """Say what of a theory is being solved; ``kept`` is asked when Ctrl-C is pressed.

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
            bars = _Bars(console)

            def on_stage(stage: Stage) -> None:
                key, done, total = (stage.problem, stage.what), stage.progress.done, stage.progress.total
                bars.show(key, f"{stage.problem}: {stage.what}", done, total, note=_where(stage))
                if done >= total:
                    bars.keep_only(bars.tasks.keys() - {key})

            with bars.display:
                yield on_stage
        else:
            yield _theory_lines()
    except KeyboardInterrupt:
        points, thresholds, nodes = kept()
        raise Interrupted(
            f"interrupted; kept so far: {_count(nodes, 'node')} of curves, {_count(points, 'sample ratio')} and the "
            f"thresholds of {_count(thresholds, 'problem')}; run the same command again to go on from there"
        ) from None


def _theory_lines() -> Callable[[Stage], None]:
    """A line for every new stage, and every ten seconds about the current one."""
    begin = time.monotonic()
    last: tuple[tuple[str, str], float] | None = None

    def say(stage: Stage) -> None:
        nonlocal last
        now, name = time.monotonic(), (stage.problem, stage.what)
        if now - begin < PATIENCE or (last is not None and last[0] == name and now - last[1] < 10):
            return
        last = name, now
        where = f", {_where(stage)}" if _where(stage) else ""
        found = f"{stage.progress.done} of {stage.progress.total} found"
        complain(f"theory of {stage.problem}: {stage.what}, {found}{where} ({now - begin:.0f} s so far)")

    return say


def _where(stage: Stage) -> str:
    """Nodes in use and where the curve has arrived, or what the stage notes."""
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
    """``0:05``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
