"""The command line's main verbs as functions; what they need is imported when they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from smimbench.suite.cells import Suite

__all__ = ["run", "show", "theory"]


def run(
    suite: Suite | str | Path,
    *,
    results: str | Path = "results",
    backend: str = "numpy",
    workers: int | None = 1,
    timing: bool = False,
    overrides: Iterable[str] = (),
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run what is missing of a suite and return the rows of its table.

    Parameters
    ----------
    suite : Suite, str or Path
        A loaded suite, a path or the name of a shipped one.
    results : path
        Folder under which ``<suite>/<cell key>.json`` is kept.
    backend : str
        ``"numpy"``, ``"cupy"`` or another of ``smimbench.backend.backend_names()``.
    workers : int or None
        Spawned processes; None: one per core, fewer where the memory would not hold so many. A script that uses more than
        one must guard its main part with ``if __name__ == "__main__"``.
    timing : bool
        Times that can be trusted: serial and warmed up.
    overrides : iterable of str
        ``"problem.prior.rho=0.2"``; only for a suite given by name or path.
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
        If overrides are given with a loaded suite.

    Warns
    -----
    UserWarning
        What the command line says on standard error: files that are not used, settings that are not, scarce memory.
    """
    import warnings
    from pathlib import Path

    from smimbench.run.campaign import plan_campaign
    from smimbench.run.store import Store

    suite = _suite(suite, overrides)
    store = Store(Path(results) / suite.name)
    campaign = plan_campaign(suite, store, (backend,), workers=workers, timing=timing)
    for remark in campaign.remarks:
        warnings.warn(remark, stacklevel=2)
    campaign.run(on_record)
    return show(suite, results=results, backends=(backend,))


def show(
    suite: Suite | str | Path, *, results: str | Path = "results", backends: Sequence[str] = ("numpy",)
) -> list[dict[str, Any]]:
    """Rows of what has been run; see ``run``."""
    from pathlib import Path

    from smimbench.report.rows import error_rows, suite_records
    from smimbench.run.store import Store, theory_folder
    from smimbench.theory.cache import TheoryCache

    suite = _suite(suite)
    store = Store(Path(results) / suite.name)
    return error_rows(suite_records(suite, store, backends), suite, store, TheoryCache(theory_folder(store)))


def theory(
    suite: Suite | str | Path,
    alphas: Sequence[float] | None = None,
    *,
    results: str | Path | None = None,
    overrides: Iterable[str] = (),
) -> list[dict[str, Any]]:
    """The Bayes-optimal curve and the thresholds of a suite, one dict per problem.

    Parameters
    ----------
    alphas : sequence of float or None
        Sample ratios; default: those of the suite.
    results : path or None
        Folder of results under which answers are looked up and kept; default: nowhere.
    """
    from pathlib import Path

    from smimbench.report.theory_document import theory_document
    from smimbench.theory.cache import TheoryCache

    cache = TheoryCache(None if results is None else Path(results) / "theory")
    return theory_document(_suite(suite, overrides), alphas, cache)


def _suite(suite: Suite | str | Path, overrides: Iterable[str] = ()) -> Suite:
    from smimbench.suite.cells import Suite
    from smimbench.suite.reader import load_suite

    if not isinstance(suite, Suite):
        return load_suite(suite, overrides)
    if tuple(overrides):
        raise ValueError("overrides go with a suite given by name or path; hand those of a loaded one to load_suite")
    return suite
