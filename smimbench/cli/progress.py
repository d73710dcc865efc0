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

    from smimbench.cli.options import Request
    from smimbench.files import JsonObject
    from smimbench.report.theory_document import OnStage, Stage
    from smimbench.run.campaign import Campaign
    from smimbench.run.executor import Underway
    from smimbench.run.theory_cache import Kept

LONG_CELL = 5.0
"""Seconds after which a cell has a bar of its own on a terminal."""
LONG_WAIT = 60.0
"""Seconds after which a line in a file or pipe says how many cells are done, or names one that is still running; repeated
whenever its time has doubled."""
PATIENCE = 2.0
"""Seconds after which a line in a file or pipe names the theory being solved; repeated whenever the time has doubled."""


class Interrupted(click.Abort):
    """Raised at Ctrl-C; the message says what has been stored."""


class RunProgress(NamedTuple):
    """Interface for reporting progress of a campaign, called with every record and several times a second."""

    on_record: Callable[[JsonObject], None]
    on_look: Callable[[list[Underway]], None]


class _Lines(contextlib.nullcontext[None]):
    """A line about what takes ``first`` seconds, and again whenever its time has doubled; nothing if None."""

    def __init__(self, first: float | None) -> None:
        super().__init__()
        self._first, self._due = first, {"": 0.0}

    def show(self, key: str, name: str, count: str, seconds: float = 0.0, **numbers: Any) -> None:
        """Tell of a task that has taken so many seconds, and what was counted."""
        if self._first is not None and seconds >= self._due.setdefault(key, self._first):
            self._due[key] = 2 * seconds
            complain(f"running for {_clock(seconds)}: {name}: {count}")

    def keep_only(self, keys: Iterable[str]) -> None:
        """Forget nothing: a task that goes on is not new."""


class _Bars:
    """Progress bars by name; on a narrow terminal, names are shortened to make room for numbers."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        def text(field: str, ratio: int | None = None) -> TextColumn:
            column = Column(no_wrap=True, overflow="ellipsis", ratio=ratio)
            return TextColumn(f"{{task.{field}}}", markup=False, table_column=column)

        whole = Column(no_wrap=True)
        times = (TimeElapsedColumn(table_column=whole), TimeRemainingColumn(table_column=whole))
        columns = (SpinnerColumn(), text("description", 3), BarColumn(16), text("fields[count]"), *times)
        self._display = Progress(*columns, console=console, transient=True, expand=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> None:
        self._display.start()

    def __exit__(self, *error: object) -> None:
        self._display.stop()

    def show(
        self, key: str, name: str, count: str, seconds: float = 0.0, *, done: int = 0, total: int | None = None
    ) -> None:
        """Add or update a progress bar, which moves to and fro if the total is unknown."""
        if key not in self._tasks:
            self._tasks[key] = self._display.add_task(name, count=count)
        if total is None:
            count = f"{count}, {_clock(seconds)}"
        self._display.update(self._tasks[key], completed=done, total=total, count=count)

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove all other bars."""
        for key in self._tasks.keys() - set(keys):
            self._display.remove_task(self._tasks.pop(key))
            self._display.refresh()


def run_watched(campaign: Campaign, request: Request) -> None:
    """Run a campaign with its remarks and its progress."""
    request.remark(campaign.remarks)
    with run_progress(campaign, silent=request.silent) as (on_record, on_look):
        campaign.run(on_record, on_look)


@contextlib.contextmanager
def run_progress(campaign: Campaign, *, silent: bool) -> Iterator[RunProgress]:
    """Report how far a campaign is, which cells take long, and why cells do not end well."""
    console, name, total = make_console(error=True), campaign.suite.name, len(campaign.missing)
    display = _Lines(None if silent else LONG_WAIT) if silent or not console.is_terminal else _Bars(console)
    said: set[tuple[str, str]] = set()
    begin, done = time.monotonic(), 0

    def on_record(record: JsonObject) -> None:
        """A repeated reason is printed for its first cell only."""
        nonlocal done
        done += 1
        display.show(name, name, f"{done} / {total}", time.monotonic() - begin, done=done, total=total)
        reason = "ok" if silent or record["status"] == "ok" else reason_of(record)
        if reason != "ok" and (kind := (record["algorithm"], kind_of(reason))) not in said:
            said.add(kind)
            line = f"{record['algorithm']} at alpha {record['cell']['alpha']:g}: {reason}"
            console.print(line, style="yellow", soft_wrap=True, markup=False)

    def on_look(underway: list[Underway]) -> None:
        slow = {one.task.arguments[0].key: one for one in underway if one.seconds > LONG_CELL}
        display.keep_only({name, *slow})
        for key, one in slow.items():
            display.show(key, _cell_name(one), _iterations(one), one.seconds)

    if isinstance(display, _Lines) and total and not silent:
        where = f"on {campaign.dask}" if campaign.dask else f"{campaign.workers} at a time"
        click.echo(f"{name}: running {total} cells, {where}", err=True)
    display.show(name, name, f"0 / {total}", total=total)
    with display:
        yield RunProgress(on_record, on_look)


@contextlib.contextmanager
def theory_progress(*, silent: bool, kept: Callable[[], Kept]) -> Iterator[OnStage]:
    """Report which theory is being solved; ``kept`` is called at Ctrl-C to say what has been stored.

    Raises
    ------
    Interrupted
        After Ctrl-C.
    """
    console = make_console(error=True)
    display = _Lines(None if silent else PATIENCE) if silent or not console.is_terminal else _Bars(console)
    begin = time.monotonic()

    def on_stage(stage: Stage) -> None:
        name, done, total = f"{stage.problem}: {stage.what}", stage.progress.done, stage.progress.total
        display.keep_only({name} if done < total else ())
        if done < total:
            count = ", ".join(filter(None, (f"{done} / {total}", _where(stage))))
            display.show(name, f"theory of {name}", count, time.monotonic() - begin, done=done, total=total)

    try:
        with display:
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
