"""The main commands as Python functions: ``run``, ``show``, ``theory``, ``load``, ``plot``, ``extrapolate``."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from smimbench.files import JsonObject
    from smimbench.problem.problem import Problem
    from smimbench.report.notebook import Loaded, Rows, Theory
    from smimbench.report.results import Results
    from smimbench.report.row_document import RowDocument
    from smimbench.run.answers import Memory
    from smimbench.run.record import Record
    from smimbench.run.store import Store
    from smimbench.run.theory_solver import Progress, TheorySolver
    from smimbench.suite.cells import Cell, Suite

__all__ = ["extrapolate", "load", "plot", "run", "show", "theory", "tune"]


def run(
    suite: Suite | str | Path,
    *,
    results: str | Path = "results",
    backend: str = "numpy",
    workers: int | None = 1,
    timing: bool = False,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    progress: bool = True,
    on_record: Callable[[JsonObject], None] | None = None,
) -> Rows:
    """Run the missing cells of a suite and return the rows of its table.

    Parameters
    ----------
    suite : Suite, str or Path
        A loaded suite, a path or the name of a shipped one.
    results : path
        Folder under which ``<suite>/<cell key>.json`` is kept.
    backend : str
        ``"numpy"``, ``"cupy"`` or another of ``smimbench.backend.backend_names()``.
    workers : int or None
        Processes; None: one per core, fewer where the memory would not hold so many. 1 runs in this process, which a plugin
        that crashes takes with it.
    timing : bool
        Times that can be trusted: serial and warmed up.
    overrides : iterable of str
        ``"problem.prior.rho=0.2"``; only for a suite given by name or path.
    only : iterable of str
        ``"algorithm=gamp"``; only for a suite given by name or path.
    progress : bool
        Whether a terminal or a notebook shows a bar.
    on_record : callable
        Called with the record of every cell as it ends, to show progress.

    Returns
    -------
    Rows
        A list with one dict per problem, algorithm, sample ratio, dimension, metric and component. Its ``table`` is a flat
        frame of them, its ``remarks`` are what the command line says of the run: files and settings that are not used,
        algorithms that are not tuned, scarce memory.

    Raises
    ------
    SuiteError, BackendError, StoreError
    ValueError
        If overrides or conditions are given with a loaded suite.
    """
    from smimbench.run.campaign import plan_campaign

    suite, store = _open_suite(suite, results, overrides, only)
    campaign = plan_campaign(suite, store, (backend,), workers=workers, timing=timing)
    remarks = [*suite.remarks, *campaign.remarks]
    total = len(campaign.cells_to_run)
    with _progress_bar(progress) as show_progress:
        record_numbers = itertools.count(1)

        def on_campaign_record(record: Record) -> None:
            """Advance the progress bar by one record, and pass the record to the caller's function."""
            show_progress(suite.name, next(record_numbers), total)
            if on_record is not None:
                on_record(record.document)

        show_progress(suite.name, 0, total)
        campaign.run(on_campaign_record, on_wait=remarks.append)
        show_progress(f"theory of {suite.name}", 0, None)
        return _json_rows(_load_and_solve(suite, store, (backend,))[0], remarks)


def tune(
    suite: Suite | str | Path,
    *,
    results: str | Path = "results",
    backend: str = "numpy",
    workers: int | None = 1,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    progress: bool = True,
) -> list[JsonObject]:
    """Tune the parameters that ``[algorithms.tune]`` names, on seeds that no score uses; ``run`` then uses the best setting.

    The arguments are those of ``run``; see ``smimbench.run.tuning.search_all`` for what is returned.
    """
    from smimbench.run.campaign import plan_campaign
    from smimbench.run.tuning import search_all

    suite, store = _open_suite(suite, results, overrides, only)

    with _progress_bar(progress) as show_progress:

        def run_trials(cells: list[Cell], trials: Store) -> bool:
            """Run the trials of a search, and return whether all of them have a record."""
            campaign = plan_campaign(
                suite, trials, (backend,), cells=cells, workers=workers
            )
            total = len(campaign.cells_to_run)
            record_numbers = itertools.count(1)
            campaign.run(
                lambda record: show_progress(
                    f"tuning {suite.name}", next(record_numbers), total
                )
            )
            return not campaign.count_missing()

        return search_all(suite, store, backend, run_trials)


def show(
    suite: Suite | str | Path,
    *,
    results: str | Path = "results",
    backends: Sequence[str] = ("numpy",),
) -> Rows:
    """Return the table of all stored runs of a suite, with stored theory; see ``run`` for its rows."""
    from smimbench.report.results import Results

    suite, store = _open_suite(suite, results)
    stored_results = Results(suite, store, backends)
    remarks = [*suite.remarks]
    if stored_results.rows and stored_results.answers.has_missing_answers:
        remarks.append(
            f"some theory of {suite.name} is not stored; smimbench.run solves it"
        )
    return _json_rows(stored_results, remarks)


def _json_rows(results: Results, remarks: Sequence[str]) -> Rows:
    """Return the rows of a results table as ``show --json`` prints them, with remarks on the table."""
    from smimbench.report.notebook import Rows

    return Rows((row.document() for row in results.rows), remarks)


def _load_and_solve(
    suite: Suite, store: Store, backends: Sequence[str]
) -> tuple[Results, TheorySolver]:
    """Load the stored results of a suite and solve the theory that their rows need; return both results and solver."""
    from smimbench.report.results import Results
    from smimbench.report.theory_document import table_questions
    from smimbench.run.store import theory_folder
    from smimbench.run.theory_solver import TheorySolver

    solver = TheorySolver(
        theory_folder(store),
        in_subprocess=True,
        prediction_errors=suite.needs_prediction_errors,
    )
    results = Results(suite, store, backends, solver.answers)
    solver.answer(table_questions(results))
    return results, solver


def extrapolate(
    rows: Sequence[RowDocument], *, target: float = 1e-3
) -> list[JsonObject]:
    """Extrapolate errors measured at three or more dimensions to infinite dimension, the limit that theory describes.

    Parameters
    ----------
    rows : sequence of dict
        As from ``run`` or ``show``.
    target : float
        Absolute error that counts as reached where theory says 0.

    Returns
    -------
    list of dict
        One for every problem, algorithm, backend, sample ratio, metric and component: ``value`` with its ``error``, ``theory``,
        ``z``, and how well corrections of order 1/D fit; see ``smimbench.report.extrapolation``.
    """
    from smimbench.report.extrapolation import extrapolated_rows
    from smimbench.report.row import row_of

    return [
        extrapolated_row.document()
        for extrapolated_row in extrapolated_rows([row_of(row) for row in rows], target)
    ]


def theory(
    suite: Suite | str | Path | None = None,
    alpha: float | str | Sequence[float] | None = None,
    *,
    model: str | None = None,
    channel: str | None = None,
    prior: str | None = None,
    inputs: str | None = None,
    results: str | Path | None = None,
    overrides: Iterable[str] = (),
    thresholds: bool = True,
    predictions: bool = False,
    workers: int = 1,
    progress: bool = True,
    verify: float = 0.0,
    **item_parameters: object,
) -> Theory:
    """Solve the Bayes-optimal error curve and the thresholds of a suite, or of one problem given by its items.

    Parameters
    ----------
    suite : Suite, str or Path
        As for ``run``; in its place ``model``, ``channel``, ``prior`` and ``inputs`` name a problem.
    alpha : float, sequence of float or str
        Sample ratios, or ``"0.1:0.3:20"``, twenty from 0.1 to 0.3; default: those of the suite.
    model, channel, prior, inputs : str
        Names of items.
    results : path or None
        Folder of results under which answers are looked up and kept; default: nowhere.
    overrides : iterable of str
        As for ``run``.
    thresholds : bool
        Whether to look for thresholds; without, there are none.
    predictions : bool
        Whether to compute errors of prediction on fresh samples, too; always where the suite has a metric of them.
    workers : int
        Spawned processes, as for ``run``; the numbers do not depend on it.
    progress : bool
        Whether a terminal or a notebook shows a bar.
    **item_parameters : object
        Parameters of these items by name, as ``rho=0.3`` of a prior; a list of values makes several problems.
    verify : float
        Relative deviation of the error, as 0.02, that plain draws of teacher and posterior should exclude at every point; they
        give each document a list ``verification``. 0 draws nothing.

    Returns
    -------
    Theory
        With ``table``, ``thresholds``, ``plot()``, and ``documents`` as from ``smimbench theory --json``.

    Raises
    ------
    SuiteError, ProblemError, RegistryError
    ValueError
        If neither or both of a suite and a problem are given, or a parameter or a sample ratio is wrong.
    """
    import tempfile
    from inspect import signature

    from smimbench.files import suggestion
    from smimbench.report.notebook import Theory
    from smimbench.report.theory_document import (
        theory_of_suite,
        theory_questions,
        with_checks,
    )
    from smimbench.run.theory_processes import solve_in_parallel
    from smimbench.run.theory_solver import TheorySolver
    from smimbench.suite.document import parse_sample_ratios, suite_of_items
    from smimbench.suite.reader import parse_suite

    alphas = None if alpha is None else parse_sample_ratios(alpha)
    items = {"model": model, "channel": channel, "prior": prior, "inputs": inputs}
    if suite is None:
        if not any(items.values()):
            raise ValueError(
                "theory needs a suite, or the names of model, channel and prior"
            )
        suite_name, suite_text, settings = suite_of_items(
            items, item_parameters, alphas or ()
        )
        suite = parse_suite(
            Path(f"{suite_name}.toml"), suite_text, [*settings, *overrides]
        )
    elif item_parameters:
        parameter_name = next(iter(item_parameters))
        arguments = list(signature(theory).parameters)
        raise ValueError(
            f"theory of a suite takes no argument {parameter_name!r}; {suggestion(parameter_name, arguments)}"
        )
    elif given_items := [key for key, value in items.items() if value is not None]:
        raise ValueError(
            f"{', '.join(given_items)}: give either a suite or the items of a problem, not both"
        )
    else:
        suite = _as_suite(suite, overrides)
    labels = {plan.problem: plan.label for plan in suite.plans}
    remarks = [*suite.remarks]
    with (
        tempfile.TemporaryDirectory() as temporary,
        _progress_bar(progress) as show_progress,
    ):

        def on_progress(problem: Problem, curve_progress: Progress) -> None:
            """Show how many sample ratios of a problem's curve are solved."""
            show_progress(
                f"theory of {labels[problem]}",
                curve_progress.solved,
                curve_progress.total,
            )

        def make_solver(
            folder: Path | None, memory: Memory | None = None
        ) -> TheorySolver:
            """Make a solver that keeps its answers in a folder (None: in memory)."""
            return TheorySolver(
                folder,
                prediction_errors=predictions
                or bool(verify)
                or suite.needs_prediction_errors,
                on_progress=on_progress,
                on_remark=remarks.append,
                memory=memory,
            )

        answer_folder = (
            Path(temporary) if workers > 1 else None
        )  # where processes leave their answers
        solver = make_solver(
            answer_folder if results is None else Path(results) / "theory"
        )
        questions = list(theory_questions(suite, alphas, thresholds=thresholds))
        if workers > 1:
            solve_in_parallel(questions, solver, workers)
        answers = solver.answer(questions)
        theories = theory_of_suite(suite, answers, alphas, thresholds=thresholds)
        if verify:
            from smimbench.run.theory_draws import draw_checks

            checks = draw_checks(suite, theories, verify, on_progress)
            theories = with_checks(theories, checks)
    remarks += [
        f"the theory of {problem.label} was not solved: {problem.unsolved}"
        for problem in theories
        if problem.unsolved
    ]
    if results is None:
        solver = make_solver(None, solver.memory)
    return Theory(suite, theories, solver.answer, alphas, remarks)


@contextlib.contextmanager
def _progress_bar(is_wanted: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """Return a function ``(description, finished, total)`` that shows a progress bar in a terminal or a notebook."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not is_wanted or not (console.is_jupyter or console.is_terminal):
        yield lambda task, finished, total: None
    elif console.is_jupyter:  # where Rich needs a package that not everybody has
        from IPython.display import DisplayHandle

        notebook_line: Any = DisplayHandle()  # type: ignore[no-untyped-call, unused-ignore]
        notebook_line.display({"text/plain": ""}, raw=True)

        def update_line(task: str, finished: int, total: int | None) -> None:
            """Show the progress as one line of a notebook."""
            if total:
                hashes = "#" * (30 * finished // total)
                task = f"[{hashes:30}] {finished} / {total} {task}"
            notebook_line.update({"text/plain": task}, raw=True)

        try:
            yield update_line
        finally:
            notebook_line.update({"text/plain": ""}, raw=True)
    else:
        with Progress(console=console, transient=True) as progress_bar:
            task_id = progress_bar.add_task("")
            yield lambda task, finished, total: progress_bar.update(
                task_id, description=task, completed=finished, total=total
            )


def load(results: str | Path) -> Loaded:
    """Load everything that was run under a folder, as one tidy table of values and one of trajectories.

    Parameters
    ----------
    results : path
        Folder of one suite, of one of its settings, or of all suites of one ``--results``.

    Returns
    -------
    Loaded
        ``values``: one row per run, metric and component (``suite``, ``problem``, ``algorithm``, ``backend``, ``alpha``,
        ``dimension``, ``seed``, ``replicate``, ``status``, ``reason``, ``versions`` of its items, ``metric``, ``component``,
        ``value``, ``seconds``, ``iterations``, ``key``), of any version of its items; a run without an estimate has one row
        without a metric. ``trajectories``: one row per run,
        step, metric and component (``key``, ``iteration``, ``seconds``, ``samples``, ``metric``, ``component``, ``value``).
        Both are frames of pandas, of polars where there is no pandas, or lists of dicts where there is neither.

    Raises
    ------
    SuiteError
        If the folder holds no results.
    """
    from smimbench.report.notebook import load_folder

    return load_folder(Path(results))


def plot(
    suite: Suite | str | Path,
    metric: str = "mse",
    *,
    against: str = "alpha",
    results: str | Path = "results",
    backends: Sequence[str] = ("numpy",),
    width: str | None = None,
    title: bool = True,
    output: str | Path | None = None,
) -> object:
    """Draw a metric of all stored runs with its theory, which is solved if it is not stored.

    Parameters
    ----------
    against : str
        ``"alpha"``, the sample ratio; ``"samples"`` or ``"seconds"``: learning curves against samples processed or time.
    width : str or None
        A length such as ``"3.3in"`` or ``"84mm"``, or ``"column"`` (3.4 inches) or ``"page"`` (7 inches); default: a column
        for one panel, a page for several.
    title : bool
        False leaves out the title and the note, which a caption replaces; several panels keep their titles.
    output : path or None
        File to write as well, ``.png``, ``.svg`` or ``.pdf``, with its data as ``.csv`` next to it.

    Returns
    -------
    matplotlib.axes.Axes
        Of the only panel, or an array of several. ``axes.figure`` is the figure.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    ValueError
        If the suite does not report the metric, or there is nothing to draw.
    """
    from smimbench.report import charts
    from smimbench.report.figures import metric_chart
    from smimbench.report.run_figures import clock_chart, learning_curve_questions
    from smimbench.report.theory_lines import chart_questions

    suite, store = _open_suite(suite, results)
    if metric not in suite.run.metrics:
        raise ValueError(
            f"suite {suite.name} does not report the metric {metric!r}; choose from {', '.join(suite.run.metrics)}"
        )
    if against not in AXES:
        raise ValueError(f"against must be one of {', '.join(AXES)}, got {against!r}")
    stored_results, solver = _load_and_solve(suite, store, backends)
    rows, answers = stored_results.rows, stored_results.answers
    if against == "alpha":
        solver.answer(chart_questions(suite, answers, (metric,), rows))
        chart = metric_chart(suite, rows, answers, metric)
    else:
        solver.answer(learning_curve_questions(stored_results))
        chart = clock_chart(stored_results, f"{against}-{metric}", metric, against)
    if chart is None:
        drawn = "problem" if against == "alpha" else f"learning curve of {metric}"
        raise ValueError(f"suite {suite.name} has no {drawn} to draw")
    return charts.show(chart, width, title, output)


AXES = ("alpha", "samples", "seconds")
"""Quantities that ``plot`` draws a metric against."""


def _open_suite(
    suite: Suite | str | Path,
    results: str | Path,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
) -> tuple[Suite, Store]:
    """Load a suite with the settings that were tuned under ``results``, and open its store of records there."""
    from smimbench.run.store import Store
    from smimbench.run.tuning import with_tuned_settings

    suite = _as_suite(suite, overrides, only)
    store = Store(Path(results) / suite.name)
    return with_tuned_settings(suite, store), store


def _as_suite(
    suite: Suite | str | Path, overrides: Iterable[str] = (), only: Iterable[str] = ()
) -> Suite:
    """Return the suite, loaded first if it is given by name or path."""
    from smimbench.suite.cells import Suite
    from smimbench.suite.reader import load_suite

    if not isinstance(suite, Suite):
        return load_suite(suite, overrides, only)
    if tuple(overrides) or tuple(only):
        raise ValueError(
            "overrides need a suite given by name or path; for a suite that is already loaded, pass them to load_suite"
        )
    return suite
