"""Progress of a run or of theory on standard error: bars on a terminal, occasional lines in a file or pipe."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from smimbench.cli.options import make_console, print_message
from smimbench.files import counted
from smimbench.run.record import reason_kind, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from rich.console import Console
    from rich.progress import Progress as Bars
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
    """Functions that a campaign calls: ``on_record`` with each record, ``on_progress`` with the running cells, and ``on_wait``
    with the reason when it has to wait.
    """

    on_record: Callable[[Record], None]
    on_progress: Callable[[list[RunningTask]], None]
    on_wait: Callable[[str], None]


class _Display(contextlib.AbstractContextManager["_Display"]):
    """Progress of tasks, by key: a bar for each on a terminal; in a file or pipe a line after ``delay`` seconds and whenever the
    time of the task has doubled. Nothing is shown if ``delay`` is None.
    """

    def __init__(self, delay: float | None) -> None:
        """Prepare the bars of a terminal, or keep the ``delay`` in seconds until the first line about a task."""
        console = make_console(to_stderr=True)
        has_bars = console.is_terminal and delay is not None
        self.bars = _bars_on(console) if has_bars else None
        self._delay = math.inf if delay is None else delay
        self._due: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}

    def __exit__(self, *error: object) -> None:
        """Remove the bars; printed lines stay."""
        if self.bars is not None:
            self.bars.stop()

    def show(
        self,
        task_key: str,
        name: str,
        count_text: str,
        seconds: float = 0.0,
        completed: float = 0,
        total: int | None = None,
    ) -> None:
        """Show how long the task of this key has been running, in seconds, and how far it is (``count_text``), with its name; a
        bar pulses if the total is unknown.
        """
        if self.bars is None:
            if seconds >= self._due.get(task_key, self._delay):
                self._due[task_key] = 2 * seconds
                time_text = _duration_text(seconds)
                print_message(f"running for {time_text}: {name}: {count_text}")
            return
        self.bars.start()
        if task_key not in self._tasks:
            self._tasks[task_key] = self.bars.add_task(name, count=count_text)
        if total is None:
            count_text = f"{count_text}, {_duration_text(seconds)}"
        self.bars.update(
            self._tasks[task_key],
            description=name,
            completed=completed,
            total=total,
            count=count_text,
        )

    def keep_only(self, task_keys: Iterable[str]) -> None:
        """Remove the bars of all tasks but these (``task_keys``)."""
        for task_key in self._tasks.keys() - set(task_keys):
            assert self.bars is not None
            self.bars.remove_task(self._tasks.pop(task_key))
            self.bars.refresh()


def _bars_on(console: Console) -> Bars:
    """Make progress bars on the console of a terminal; on a narrow one, names are shortened to fit."""
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    one_line = Column(no_wrap=True, overflow="ellipsis")
    return Progress(
        SpinnerColumn(),
        TextColumn(
            "{task.description}",
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=3),
        ),
        BarColumn(16),
        TextColumn("{task.fields[count]}", table_column=one_line),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
        expand=True,
    )


def run_with_progress(campaign: Campaign, request: Request) -> None:
    """Run a campaign, showing its progress; its remarks become notes."""
    request.notes.extend(campaign.remarks)
    with run_progress(campaign, silent=request.silent) as callbacks:
        campaign.run(*callbacks)


@contextlib.contextmanager
def run_progress(campaign: Campaign, *, silent: bool) -> Iterator[RunCallbacks]:
    """Show the progress of a campaign, its slow cells, and why cells fail; nothing if ``silent``."""
    suite_name = campaign.suite.name
    cell_count = len(campaign.cells_to_run)
    console = make_console(to_stderr=True)
    display = _Display(None if silent else LONG_WAIT)
    reported_failures: set[tuple[str, str]] = set()
    begin_time, finished_count = time.monotonic(), 0

    def on_wait(message: str) -> None:
        """Print the ``message`` why the campaign has to wait, unless nothing is to be shown."""
        if not silent:
            console.print(message, style="yellow", soft_wrap=True)

    def on_record(record: Record) -> None:
        """Print the failure in a cell's ``record``, if it failed and no earlier cell failed in the same way."""
        nonlocal finished_count
        finished_count += 1
        seconds = time.monotonic() - begin_time
        display.show(
            suite_name,
            suite_name,
            f"{finished_count} / {cell_count}",
            seconds,
            completed=finished_count,
            total=cell_count,
        )
        if silent or record.status == "ok":
            return
        algorithm = record.algorithm
        reason = reason_of(record)
        failure_kind = algorithm, reason_kind(reason)
        if failure_kind not in reported_failures:
            reported_failures.add(failure_kind)
            on_wait(f"{algorithm} at alpha {record.cell['alpha']:g}: {reason}")

    def on_progress(running_tasks: list[RunningTask]) -> None:
        """Show a bar, or a line now and then, for each running cell (``running_tasks``) that takes long."""
        slow_tasks = [task for task in running_tasks if task.seconds > LONG_CELL]
        cells = [task.task.arguments[0] for task in slow_tasks]
        display.keep_only([suite_name, *(cell.key for cell in cells)])
        for cell, task in zip(cells, slow_tasks):
            grid_point = (
                f"alpha {cell.alpha:g}, D {cell.dimension}, seed {cell.replicate}"
            )
            name = f"{cell.algorithm_label}, {cell.problem_label}, {grid_point}"
            count_text = (
                f"{task.iterations} iterations" if task.iterations else "starting"
            )
            display.show(cell.key, name, count_text, task.seconds)

    if display.bars is None and cell_count and not silent:
        local_workers_text = f"{campaign.workers} at a time"
        workers_text = f"on {campaign.dask}" if campaign.dask else local_workers_text
        cells_text = counted(cell_count, "cell")
        click.echo(f"{suite_name}: running {cells_text}, {workers_text}", err=True)
    display.show(suite_name, suite_name, f"0 / {cell_count}", total=cell_count)
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
        """Prepare to solve the theory of a suite, stored in ``folder``, at its sample ratios or at ``alphas``, with
        ``predictions`` for algorithms if asked, until the moment ``deadline``.
        """
        from smimbench.run.theory_solver import TheorySolver

        self.solver = TheorySolver(
            folder,
            in_subprocess=True,
            deadline=deadline,
            prediction_errors=predictions or suite.needs_prediction_errors,
            on_progress=self.on_progress,
            on_remark=request.remark,
        )
        self._suite = suite
        self._folder = folder
        self._alphas = alphas
        self._patience = None if request.silent else PATIENCE
        self._plans = [
            plan for plan in suite.chosen_plans if plan.problem.no_theory is None
        ]
        self._display = _Display(None)
        self._begin_time = self._solved_curves = 0.0

    def __enter__(self) -> TheorySolver:
        """Start to show progress, and return this solver."""
        self._display = _Display(self._patience)
        self._begin_time = time.monotonic()
        self._solved_curves = 0.0
        if self._plans:
            self._show(0, "theory")
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
        self._display = _Display(None)
        if isinstance(error, KeyboardInterrupt):
            point_count, threshold_count, node_count = stored_counts(
                self._suite, self._alphas, Answers(self._folder)
            )
            raise Interrupted(
                f"interrupted; kept so far: {counted(node_count, 'node')} of curves, "
                f"{counted(point_count, 'sample ratio')} and the "
                f"thresholds of {counted(threshold_count, 'problem')}; rerun the same command to continue"
            ) from None

    def on_progress(self, problem: Problem, progress: Progress) -> None:
        """Show the progress of the theory of a problem."""
        for index, plan in enumerate(self._plans):
            if plan.problem is problem and progress.solved < progress.total:
                # A curve that has all of its sample ratios may still lack thresholds: the bar is full at the very end.
                solved_fraction = 0.9 * progress.solved / progress.total
                self._solved_curves = max(self._solved_curves, index + solved_fraction)
                count_text = (
                    f"{progress.solved} / {progress.total}{_position_text(progress)}"
                )
                self._show(index, count_text)

    def _show(self, index: int, count_text: str) -> None:
        """Update the display: the curve of which index is being solved, and how far it is (``count_text``)."""
        curve_count = len(self._plans)
        title = f"curve {index + 1} of {curve_count}: {self._plans[index].label}"
        seconds = time.monotonic() - self._begin_time
        self._display.show(
            "theory",
            title,
            count_text,
            seconds,
            completed=self._solved_curves,
            total=curve_count,
        )


def _position_text(progress: Progress) -> str:
    """Format the progress of a curve: the sample ratio reached, the number of nodes, or a note."""
    if progress.alpha is not None:
        return f", alpha {progress.alpha:.3g}"
    if progress.nodes:
        return f", {counted(progress.nodes, 'node')}"
    return f", {progress.note}" if progress.note else ""


def figures_progress(charts: Sequence[Chart], *, silent: bool) -> Iterator[Chart]:
    """Yield the charts, showing how many have been drawn; nothing if ``silent``."""
    begin_time = time.monotonic()
    chart_count = len(charts)
    with _Display(None if silent else LONG_WAIT) as display:
        for index, chart in enumerate(charts):
            name = f"figure {chart.name}"
            count_text = f"{index + 1} of {chart_count}"
            seconds = time.monotonic() - begin_time
            display.show(
                "figures", name, count_text, seconds, completed=index, total=chart_count
            )
            yield chart


def _duration_text(seconds: float) -> str:
    """Format a duration in seconds as ``0:05``, ``12:34`` or ``1:02:03``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"
