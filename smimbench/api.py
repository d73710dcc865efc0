"""The main commands as Python functions: ``run``, ``show``, ``theory``, ``load``, ``plot``, ``extrapolate``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from smimbench.files import JsonObject
    from smimbench.report.notebook import Loaded
    from smimbench.report.theory_document import Stage
    from smimbench.run.store import Store
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
    progress: bool = False,
    on_record: Callable[[JsonObject], None] | None = None,
) -> list[JsonObject]:
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
        Show a bar, in a terminal or a notebook.
    on_record : callable
        Called with the record of every cell as it ends, to show progress.

    Returns
    -------
    list of dict
        One dict per problem, algorithm, sample ratio, dimension, metric and component: a tidy table, ready for
        ``pandas.DataFrame``.

    Raises
    ------
    SuiteError, BackendError, StoreError
    ValueError
        If overrides or conditions are given with a loaded suite.

    Warns
    -----
    UserWarning
        What the command line says on standard error: files that are not used, settings that are not, scarce memory.
    """
    import warnings
    from pathlib import Path

    from smimbench.run.campaign import plan_campaign
    from smimbench.run.store import Store

    suite = _suite(suite, overrides, only, results)
    store = Store(Path(results) / suite.name)
    campaign = plan_campaign(suite, store, (backend,), workers=workers, timing=timing)
    for remark in (*suite.remarks, *campaign.remarks):
        warnings.warn(remark, stacklevel=2)
    with _bar(suite.name, len(campaign.missing), shown=progress) as advance:

        def report(record: JsonObject) -> None:
            advance()
            if on_record is not None:
                on_record(record)

        campaign.run(report)
    return _rows(suite, store, (backend,), solve=True)


def tune(
    suite: Suite | str | Path,
    *,
    results: str | Path = "results",
    backend: str = "numpy",
    workers: int | None = 1,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
) -> list[JsonObject]:
    """Search the parameters that ``[algorithms.tune]`` names, on seeds that no score uses; ``run`` then uses the choice.

    The arguments are those of ``run``; see ``smimbench.run.tuning.search_all`` for what is returned.
    """
    from pathlib import Path

    from smimbench.run.campaign import plan_campaign
    from smimbench.run.store import Store
    from smimbench.run.tuning import search_all

    suite = _suite(suite, overrides, only)

    def work(cells: list[Cell], store: Store) -> bool:
        campaign = plan_campaign(suite, store, (backend,), cells=cells, workers=workers)
        campaign.run()
        return not campaign.left()

    return search_all(suite, Store(Path(results) / suite.name), backend, work)


def show(
    suite: Suite | str | Path, *, results: str | Path = "results", backends: Sequence[str] = ("numpy",)
) -> list[JsonObject]:
    """Rows of what has been run, with the theory that is stored; see ``run``."""
    from pathlib import Path

    from smimbench.run.store import Store

    suite = _suite(suite, results=results)
    return _rows(suite, Store(Path(results) / suite.name), backends, solve=False)


def _rows(suite: Suite, store: Store, backends: Sequence[str], *, solve: bool) -> list[JsonObject]:
    """Rows of stored results, with theory read or solved."""
    import warnings

    from smimbench.report.results import Results

    results = Results(suite, store, backends)
    results.cache.solves = solve
    rows = results.rows
    if results.cache.is_missing:
        warnings.warn(f"not all theory of {suite.name} is stored; smimbench.run solves it", stacklevel=3)
    return rows


def extrapolate(rows: Sequence[JsonObject], *, target: float = 1e-3) -> list[JsonObject]:
    """Rows of three or more dimensions extrapolated to infinite dimension, where theory holds.

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

    return extrapolated_rows(rows, target)


def theory(
    suite: Suite | str | Path,
    alphas: Sequence[float] | None = None,
    *,
    results: str | Path | None = None,
    overrides: Iterable[str] = (),
    thresholds: bool = True,
    workers: int = 1,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    verify: float = 0.0,
) -> list[JsonObject]:
    """The Bayes-optimal curve and the thresholds of a suite, one dict per problem.

    Parameters
    ----------
    alphas : sequence of float or None
        Sample ratios; default: those of the suite.
    results : path or None
        Folder of results under which answers are looked up and kept; default: nowhere.
    overrides : iterable of str
        As for ``run``.
    thresholds : bool
        Whether to look for thresholds; without, they are None.
    workers : int
        Spawned processes, as for ``run``; the numbers do not depend on it.
    on_stage : callable
        Called with what is being solved and how far it is, to show progress.
    verify : float
        Relative deviation of the error, as 0.02, that plain draws of teacher and posterior should exclude at every point; they
        give each dict a list ``verification``. 0 draws nothing.
    """
    import tempfile
    import warnings
    from pathlib import Path

    from smimbench.report.theory_document import theory_document
    from smimbench.run.theory_cache import TheoryCache

    cache = TheoryCache(None if results is None else Path(results) / "theory")
    cache.remark = warnings.warn
    suite = _suite(suite, overrides, results=results)
    with tempfile.TemporaryDirectory() as shared:
        if workers > 1 and results is None:
            cache.folder = Path(shared)
        documents = theory_document(suite, alphas, cache, on_stage, thresholds=thresholds, workers=workers)
    for document in documents:
        if "unsolved" in document:
            warnings.warn(f"{document['problem']['label']}: not solved: {document['unsolved']}", stacklevel=2)
    if verify:
        from smimbench.report.theory_document import add_verification

        add_verification(suite, documents, verify, on_stage)
    return documents


@contextlib.contextmanager
def _bar(name: str, total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    """Function that advances a progress bar by one, if a bar is wanted."""
    if not shown:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress() as progress:
        task = progress.add_task(name, total=total)
        yield lambda: progress.advance(task)


def load(results: str | Path) -> Loaded:
    """Everything that was run under a folder: one tidy table of values and one of trajectories.

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
    from pathlib import Path

    from smimbench.report.notebook import load_folder

    return load_folder(Path(results))


def plot(
    suite: Suite | str | Path,
    metric: str = "mse",
    *,
    results: str | Path = "results",
    backends: Sequence[str] = ("numpy",),
) -> Figure:
    """The figure of a metric of what has been run, as the command line draws it; its curve is solved where it is not stored.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    ValueError
        If the suite does not report the metric.
    """
    from pathlib import Path

    from smimbench.report.charts import draw
    from smimbench.report.figures import metric_chart
    from smimbench.run.store import Store, theory_folder
    from smimbench.run.theory_cache import TheoryCache

    suite = _suite(suite, results=results)
    if metric not in suite.run.metrics:
        raise ValueError(f"{suite.name} does not report {metric!r}; choose from {', '.join(suite.run.metrics)}")
    cache = TheoryCache(theory_folder(Store(Path(results) / suite.name)))
    found = metric_chart(suite, show(suite, results=results, backends=backends), cache, metric)
    if found is None:
        raise ValueError(f"{suite.name} has no problem to draw")
    figure: Figure = draw(found)
    return figure


def _suite(
    suite: Suite | str | Path,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    results: str | Path | None = None,
) -> Suite:
    """The suite, with the settings that were tuned under ``results``."""
    from pathlib import Path

    from smimbench.run.store import Store
    from smimbench.run.tuning import tuned
    from smimbench.suite.cells import Suite
    from smimbench.suite.reader import load_suite

    if not isinstance(suite, Suite):
        suite = load_suite(suite, overrides, only)
    elif tuple(overrides) or tuple(only):
        raise ValueError("overrides need a suite given by name or path; for a loaded suite pass them to load_suite")
    return suite if results is None else tuned(suite, Store(Path(results) / suite.name))
