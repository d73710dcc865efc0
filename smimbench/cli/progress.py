"""Progress of a run or of theory on standard error: bars on a terminal, occasional lines in a file or pipe."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from smimbench.cli.options import complain, make_console
from smimbench.report.labels import kind_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from rich.console import Console
    from rich.progress import TaskID

    from smimbench.cli.options import Request
    from smimbench.files import JsonObject
    from smimbench.problem.problem import Problem
    from smimbench.report.charts import Chart
    from smimbench.run.campaign import Campaign
    from smimbench.run.executor import Underway
    from smimbench.run.theory_process import Progress
    from smimbench.suite.cells import Suite

LONG_CELL = 5.0
"""Seconds after which a cell has a bar of its own on a terminal."""
LONG_WAIT = 60.0
"""Seconds after which a line in a file or pipe says how many cells are done, or names one that is still running; repeated
whenever its time has doubled."""
PATIENCE = 1.0
"""Seconds after which a line in a file or pipe names the theory being solved; repeated whenever the time has doubled."""


class Interrupted(click.Abort):
    """Raised at Ctrl-C; the message says what has been stored."""


class RunProgress(NamedTuple):
    """Interface for reporting progress of a campaign: called with every record, several times a second, and where it waits."""

    on_record: Callable[[JsonObject], None]
    on_look: Callable[[list[Underway]], None]
    on_wait: Callable[[str], None]


class _Lines(contextlib.nullcontext[None]):
    """A line about what takes ``first`` seconds, and again whenever its time has doubled; nothing if None."""

    def __init__(self, first: float | None) -> None:
        super().__init__()
        self._first, self._due = first, {"": 0.0}

    def show(
        self, key: str, name: str, count: str, seconds: float = 0.0, **numbers: Any
    ) -> None:
        """Tell of a task that has taken so many seconds, and what was counted."""
        if self._first is not None and seconds >= self._due.setdefault(
            key, self._first
        ):
            self._due[key] = 2 * seconds
            complain(f"running for {_clock(seconds)}: {name}: {count}")

    def keep_only(self, keys: Iterable[str]) -> None:
        """Forget nothing: a task that goes on is not new."""


class _Bars:
    """Progress bars by name; on a narrow terminal, names are shortened to make room for numbers."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        def text(field: str, ratio: int | None = None) -> TextColumn:
            column = Column(no_wrap=True, overflow="ellipsis", ratio=ratio)
            return TextColumn(f"{{task.{field}}}", markup=False, table_column=column)

        whole = Column(no_wrap=True)
        times = (
            TimeElapsedColumn(table_column=whole),
            TimeRemainingColumn(table_column=whole),
        )
        columns = (
            SpinnerColumn(),
            text("description", 3),
            BarColumn(16),
            text("fields[count]"),
            *times,
        )
        self._display = Progress(*columns, console=console, transient=True, expand=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> None:
        self._display.start()

    def __exit__(self, *error: object) -> None:
        self._display.stop()

    def show(
        self,
        key: str,
        name: str,
        count: str,
        seconds: float = 0.0,
        *,
        done: float = 0,
        total: int | None = None,
    ) -> None:
        """Add or update a progress bar, which moves to and fro if the total is unknown."""
        if key not in self._tasks:
            self._tasks[key] = self._display.add_task(name, count=count)
        if total is None:
            count = f"{count}, {_clock(seconds)}"
        self._display.update(
            self._tasks[key], description=name, completed=done, total=total, count=count
        )

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove all other bars."""
        for key in self._tasks.keys() - set(keys):
            self._display.remove_task(self._tasks.pop(key))
            self._display.refresh()


def _display(console: Console, patience: float | None) -> _Bars | _Lines:
    """Bars on a terminal, else lines after so many seconds; None shows nothing."""
    return (
        _Bars(console)
        if console.is_terminal and patience is not None
        else _Lines(patience)
    )


def run_watched(campaign: Campaign, request: Request) -> None:
    """Run a campaign with its remarks and its progress."""
    request.remark(campaign.remarks)
    with run_progress(campaign, silent=request.silent) as progress:
        campaign.run(*progress)


@contextlib.contextmanager
def run_progress(campaign: Campaign, *, silent: bool) -> Iterator[RunProgress]:
    """Report how far a campaign is, which cells take long, and why cells do not end well."""
    console, name, total = (
        make_console(error=True),
        campaign.suite.name,
        len(campaign.missing),
    )
    display = _display(console, None if silent else LONG_WAIT)
    said: set[tuple[str, str]] = set()
    begin, done = time.monotonic(), 0

    def on_record(record: JsonObject) -> None:
        """A repeated reason is printed for its first cell only."""
        nonlocal done
        done += 1
        display.show(
            name,
            name,
            f"{done} / {total}",
            time.monotonic() - begin,
            done=done,
            total=total,
        )
        reason = "ok" if silent or record["status"] == "ok" else reason_of(record)
        if (
            reason != "ok"
            and (kind := (record["algorithm"], kind_of(reason))) not in said
        ):
            said.add(kind)
            line = (
                f"{record['algorithm']} at alpha {record['cell']['alpha']:g}: {reason}"
            )
            console.print(line, style="yellow", soft_wrap=True, markup=False)

    def on_look(underway: list[Underway]) -> None:
        slow = {
            one.task.arguments[0].key: one
            for one in underway
            if one.seconds > LONG_CELL
        }
        display.keep_only({name, *slow})
        for key, one in slow.items():
            display.show(key, _cell_name(one), _iterations(one), one.seconds)

    def on_wait(line: str) -> None:
        if not silent:
            console.print(line, style="yellow", soft_wrap=True, markup=False)

    if isinstance(display, _Lines) and total and not silent:
        where = (
            f"on {campaign.dask}" if campaign.dask else f"{campaign.workers} at a time"
        )
        click.echo(f"{name}: running {total} cells, {where}", err=True)
    display.show(name, name, f"0 / {total}", total=total)
    with display:
        yield RunProgress(on_record, on_look, on_wait)


class TheoryProgress(contextlib.AbstractContextManager["TheoryProgress"]):
    """Shows which curve of a suite is being solved, and how far it is, from the start on.

    Parameters
    ----------
    suite : Suite
    folder : Path
        Folder of stored theory.
    alphas : sequence of float or None
        Sample ratios that are solved; default: the suite's.
    silent : bool
    """

    def __init__(
        self,
        suite: Suite,
        folder: Path,
        alphas: Sequence[float] | None = None,
        *,
        silent: bool,
    ) -> None:
        self.folder = folder
        self._suite, self._alphas, self._silent = suite, alphas, silent
        self._curves = [
            plan for plan in suite.chosen_plans if plan.problem.no_theory is None
        ]
        self._display: _Bars | _Lines | None = None
        self._begin = self._reached = 0.0

    def __enter__(self) -> TheoryProgress:
        self._display = _display(
            make_console(error=True), None if self._silent else PATIENCE
        )
        self._begin, self._reached = time.monotonic(), 0.0
        if self._curves:
            self._show(1, self._curves[0].label, "theory")
        self._display.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise ``Interrupted`` after Ctrl-C: it says what has been stored of the theory."""
        from smimbench.report.theory_document import kept_of
        from smimbench.run.answers import Answers

        display, self._display = self._display, None
        if display is not None:
            display.__exit__(kind, error, traceback)
        if isinstance(error, KeyboardInterrupt):
            points, thresholds, nodes = kept_of(
                self._suite, self._alphas, Answers(self.folder)
            )
            raise Interrupted(
                f"interrupted; kept so far: {_count(nodes, 'node')} of curves, {_count(points, 'sample ratio')} and the "
                f"thresholds of {_count(thresholds, 'problem')}; run the same command again to go on from there"
            ) from None

    def on_progress(self, problem: Problem, progress: Progress) -> None:
        """Show how far the theory of a problem is."""
        for number, plan in enumerate(self._curves):
            if plan.problem is problem and progress.done < progress.total:
                # A curve that has all of its sample ratios may still lack thresholds: the bar is full at the very end.
                self._reached = max(
                    self._reached, number + 0.9 * progress.done / progress.total
                )
                self._show(
                    number + 1,
                    plan.label,
                    f"{progress.done} / {progress.total}{_position(progress)}",
                )

    def _show(self, number: int, name: str, count: str) -> None:
        if self._display is not None:
            title, total = (
                f"curve {number} of {len(self._curves)}: {name}",
                len(self._curves),
            )
            seconds = time.monotonic() - self._begin
            self._display.show(
                "theory", title, count, seconds, done=self._reached, total=total
            )


def _position(progress: Progress) -> str:
    """How far a curve has been followed, or the number of its nodes, or a note."""
    nodes, alpha = progress.nodes, progress.alpha
    note = (
        f"alpha {alpha:.3g}"
        if alpha is not None
        else _count(nodes, "node")
        if nodes
        else progress.note
    )
    return f", {note}" if note else ""


def figures_progress(charts: Sequence[Chart], *, silent: bool) -> Iterator[Chart]:
    """The same charts, and how many of them have been drawn."""
    display, begin = (
        _display(make_console(error=True), None if silent else LONG_WAIT),
        time.monotonic(),
    )
    with display:
        for number, chart in enumerate(charts):
            count = f"{number + 1} of {len(charts)}"
            display.show(
                "figures",
                f"figure {chart.name}",
                count,
                time.monotonic() - begin,
                done=number,
                total=len(charts),
            )
            yield chart


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
