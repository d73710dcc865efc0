"""Progress of a run or of theory on standard error: bars on a terminal, occasional lines in a file or pipe."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from smimbench.cli.options import complain, make_console
from smimbench.report.row import kind_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from rich.console import Console
    from rich.progress import TaskID

    from smimbench.cli.options import Request
    from smimbench.problem.problem import Problem
    from smimbench.report.charts import Chart
    from smimbench.run.campaign import Campaign
    from smimbench.run.executor import RunningTask
    from smimbench.run.record import Record
    from smimbench.run.theory_solver import Progress, TheorySolver
    from smimbench.suite.cells import Suite

LONG_CELL = 5.0
"""Seconds after which a cell gets its own progress bar on a terminal."""
LONG_WAIT = 60.0
"""Seconds after which a line in a file or pipe says how many cells are done, or names one that is still running; repeated
whenever its time has doubled."""
PATIENCE = 1.0
"""Seconds after which a line in a file or pipe names the theory being solved; repeated whenever the time has doubled."""


class Interrupted(click.Abort):
    """Error raised at Ctrl-C; its message says what has been stored."""


class RunCallbacks(NamedTuple):
    """Callbacks of a campaign: on each record, on progress of running cells, and when it has to wait."""

    on_record: Callable[[Record], None]
    on_progress: Callable[[list[RunningTask]], None]
    on_wait: Callable[[str], None]


class _Lines(contextlib.AbstractContextManager["_Lines"]):
    """Print a line about a task after ``delay`` seconds and whenever its time has doubled; None prints nothing."""

    def __init__(self, delay: float | None) -> None:
        self._delay = delay
        self._due: dict[str, float] = {}

    def __exit__(self, *error: object) -> None:
        """Do nothing, because printed lines remain."""

    def show(
        self, key: str, name: str, count: str, seconds: float = 0.0, **numbers: object
    ) -> None:
        """Print how long a task has been running and how far it is."""
        if self._delay is None or seconds < self._due.get(key, self._delay):
            return
        self._due[key] = 2 * seconds
        complain(f"running for {_clock(seconds)}: {name}: {count}")

    def keep_only(self, keys: Iterable[str]) -> None:
        """Do nothing, because printed lines remain."""


class _Bars:
    """Progress bars by key; on a narrow terminal, names are shortened to make room for numbers."""

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
            return TextColumn(f"{{task.{field}}}", table_column=column)

        self._display = Progress(
            SpinnerColumn(),
            text("description", 3),
            BarColumn(16),
            text("fields[count]"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._display.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._display.stop()

    def show(
        self,
        key: str,
        name: str,
        count: str,
        seconds: float = 0.0,
        *,
        completed: float = 0,
        total: int | None = None,
    ) -> None:
        """Add or update a progress bar, which pulses if the total is unknown."""
        if key not in self._tasks:
            self._tasks[key] = self._display.add_task(name, count=count)
        if total is None:
            count = f"{count}, {_clock(seconds)}"
        self._display.update(
            self._tasks[key],
            description=name,
            completed=completed,
            total=total,
            count=count,
        )

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove all other bars."""
        for key in self._tasks.keys() - set(keys):
            self._display.remove_task(self._tasks.pop(key))
            self._display.refresh()


def _display(delay: float | None) -> _Bars | _Lines:
    """Choose the progress display: bars on a terminal, otherwise a line every ``delay`` seconds; None shows nothing."""
    console = make_console(error=True)
    if console.is_terminal and delay is not None:
        return _Bars(console)
    return _Lines(delay)


def run_watched(campaign: Campaign, request: Request) -> None:
    """Run a campaign, showing its remarks and progress."""
    request.remark(*campaign.remarks)
    with run_progress(campaign, silent=request.silent) as callbacks:
        campaign.run(*callbacks)


@contextlib.contextmanager
def run_progress(campaign: Campaign, *, silent: bool) -> Iterator[RunCallbacks]:
    """Show the progress of a campaign, its slow cells, and why cells fail."""
    name, total = campaign.suite.name, len(campaign.missing)
    console = make_console(error=True)
    display = _display(None if silent else LONG_WAIT)
    reported: set[tuple[str, str]] = set()
    begin, finished = time.monotonic(), 0

    def on_wait(line: str) -> None:
        if not silent:
            console.print(line, style="yellow", soft_wrap=True)

    def on_record(record: Record) -> None:
        """Print each kind of failure for its first cell only."""
        nonlocal finished
        finished += 1
        seconds = time.monotonic() - begin
        display.show(
            name,
            name,
            f"{finished} / {total}",
            seconds,
            completed=finished,
            total=total,
        )
        if silent or record.status == "ok":
            return
        algorithm, reason = record.algorithm, reason_of(record)
        kind = algorithm, kind_of(reason)
        if kind not in reported:
            reported.add(kind)
            on_wait(f"{algorithm} at alpha {record.cell['alpha']:g}: {reason}")

    def on_progress(underway: list[RunningTask]) -> None:
        slow = [task for task in underway if task.seconds > LONG_CELL]
        display.keep_only([name, *map(_cell_key, slow)])
        for task in slow:
            display.show(
                _cell_key(task), _cell_name(task), _iterations(task), task.seconds
            )

    if isinstance(display, _Lines) and total and not silent:
        workers = f"{campaign.workers} at a time"
        place = f"on {campaign.dask}" if campaign.dask else workers
        cells = "1 cell" if total == 1 else f"{total} cells"
        click.echo(f"{name}: running {cells}, {place}", err=True)
    display.show(name, name, f"0 / {total}", total=total)
    with display:
        yield RunCallbacks(on_record, on_progress, on_wait)


class TheoryProgress(contextlib.AbstractContextManager["TheorySolver"]):
    """Solver of a suite's theory, as a context that shows which curve is being solved and its progress.

    Parameters
    ----------
    request : Request
        Says whether anything is shown.
    suite : Suite
    folder : Path
        Folder where answers are stored.
    alphas : sequence of float or None
        Sample ratios that are solved; default: the suite's.
    predictions : bool
        Whether generalization errors are computed; always where a metric of the suite needs them.
    deadline : float or None
        Moment (``time.monotonic``) after which nothing more is solved.
    """

    def __init__(
        self,
        request: Request,
        suite: Suite,
        folder: Path,
        alphas: Sequence[float] | None = None,
        *,
        predictions: bool = False,
        deadline: float | None = None,
    ) -> None:
        from smimbench.run.theory_solver import TheorySolver

        self.solver = TheorySolver(
            folder,
            isolated=True,
            deadline=deadline,
            predictions=predictions or suite.needs_prediction_errors,
            on_progress=self.on_progress,
            on_remark=request.remark,
        )
        self._suite, self._folder, self._alphas = suite, folder, alphas
        self._patience = None if request.silent else PATIENCE
        self._plans = [
            plan for plan in suite.chosen_plans if plan.problem.no_theory is None
        ]
        self._display: _Bars | _Lines = _Lines(None)
        self._begin = self._reached = 0.0

    def __enter__(self) -> TheorySolver:
        self._display = _display(self._patience)
        self._begin, self._reached = time.monotonic(), 0.0
        if self._plans:
            self._show(0, "theory")
        self._display.__enter__()
        return self.solver

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise ``Interrupted`` after Ctrl-C, with a message on how much theory has been stored."""
        from smimbench.report.theory_document import stored_counts
        from smimbench.run.answers import Answers

        self._display.__exit__(kind, error, traceback)
        self._display = _Lines(None)
        if isinstance(error, KeyboardInterrupt):
            points, thresholds, nodes = stored_counts(
                self._suite, self._alphas, Answers(self._folder)
            )
            raise Interrupted(
                f"interrupted; kept so far: {_count(nodes, 'node')} of curves, {_count(points, 'sample ratio')} and the "
                f"thresholds of {_count(thresholds, 'problem')}; rerun the same command to continue"
            ) from None

    def on_progress(self, problem: Problem, progress: Progress) -> None:
        """Show the progress of the theory of a problem."""
        for index, plan in enumerate(self._plans):
            if plan.problem is problem and progress.solved < progress.total:
                # A curve that has all of its sample ratios may still lack thresholds: the bar is full at the very end.
                share = 0.9 * progress.solved / progress.total
                self._reached = max(self._reached, index + share)
                count = f"{progress.solved} / {progress.total}{_position(progress)}"
                self._show(index, count)

    def _show(self, index: int, count: str) -> None:
        total = len(self._plans)
        title = f"curve {index + 1} of {total}: {self._plans[index].label}"
        seconds = time.monotonic() - self._begin
        self._display.show(
            "theory", title, count, seconds, completed=self._reached, total=total
        )


def _position(progress: Progress) -> str:
    """Format the progress of a curve: the sample ratio reached, the number of nodes, or a note."""
    if progress.alpha is not None:
        return f", alpha {progress.alpha:.3g}"
    if progress.nodes:
        return f", {_count(progress.nodes, 'node')}"
    return f", {progress.note}" if progress.note else ""


def figures_progress(charts: Sequence[Chart], *, silent: bool) -> Iterator[Chart]:
    """Yield the charts, showing how many have been drawn."""
    begin, total = time.monotonic(), len(charts)
    with _display(None if silent else LONG_WAIT) as display:
        for index, chart in enumerate(charts):
            name, count = f"figure {chart.name}", f"{index + 1} of {total}"
            seconds = time.monotonic() - begin
            display.show("figures", name, count, seconds, completed=index, total=total)
            yield chart


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cell_key(underway: RunningTask) -> str:
    (cell,) = underway.task.arguments
    return str(cell.key)


def _cell_name(underway: RunningTask) -> str:
    (cell,) = underway.task.arguments
    place = f"alpha {cell.alpha:g}, D {cell.dimension}, seed {cell.replicate}"
    return f"{cell.algorithm_label}, {cell.problem_label}, {place}"


def _iterations(underway: RunningTask) -> str:
    return f"{underway.iterations} iterations" if underway.iterations else "starting"


def _clock(seconds: float) -> str:
    """Format a duration as ``0:05``, ``12:34`` or ``1:02:03``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"
