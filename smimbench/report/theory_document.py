"""The JSON of ``smimbench theory``: predictions and thresholds of every problem of a suite, and published values beside them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from smimbench.files import error_line
from smimbench.problem.problem import ProblemError
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.run.theory_cache import Kept, Progress, TheoryCache
from smimbench.run.theory_guard import is_third_party, solve_in_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.suite.cells import ProblemPlan, Suite

__all__ = ["Stage", "kept_of", "theory_document"]


class Stage(NamedTuple):
    """What of a suite's theory is being solved, and how far it is.

    Attributes
    ----------
    problem : str
        Its label.
    what : str
        ``"sample ratios"`` or ``"thresholds"``; ``"sample ratios and thresholds"`` in another process; ``"the algorithms
        themselves"``, noted by name.
    progress : Progress
    note : str
        More, in words.
    """

    problem: str
    what: str
    progress: Progress = Progress(0, 1)
    note: str = ""


def theory_document(
    suite: Suite,
    alphas: Sequence[float] | None = None,
    cache: TheoryCache | None = None,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    *,
    thresholds: bool = True,
    workers: int = 1,
) -> list[dict[str, Any]]:
    """One object per problem; one of several that cannot be solved says why under ``unsolved``.

    Parameters
    ----------
    alphas : sequence of float or None
        Sample ratios; default: those of the suite.
    cache : TheoryCache or None
        Where answers are looked up and kept; default: nowhere but in memory.
    on_stage : callable
        Called with what is being solved and how far it is, at least once for every problem.
    thresholds : bool
        Whether to look for thresholds; without, they are None.
    workers : int
        Spawned processes; the numbers do not depend on it.
    """
    cache = cache or TheoryCache()
    wanted = [(plan, _ratios(plan, alphas)) for plan in suite.chosen_plans]
    ours = [(plan, ratios) for plan, ratios in wanted if not is_third_party(*plan.problem.spec.values())]
    if workers > 1 and ours:

        def heard(number: int, progress: Progress) -> None:
            what = "sample ratios and thresholds" if thresholds else "sample ratios"
            on_stage(Stage(ours[number][0].label, what, progress))

        with contextlib.suppress(ProblemError):  # reported below, with the problem that it belongs to
            solve_in_processes(
                [(p.problem, ratios) for p, ratios in ours], cache, workers, heard, thresholds=thresholds
            )
    documents = []
    for plan, ratios in wanted:
        problem = {"label": plan.label, **plan.problem.spec}
        document: dict[str, Any] = {"problem": problem, "points": [], "thresholds": None}
        documents.append(document)
        try:
            branches = _watched(cache, plan, "sample ratios", on_stage).points(plan.problem, ratios)
            document["points"] = [point for points in branches for point in points]
            if thresholds:
                found = _watched(cache, plan, "thresholds", on_stage).thresholds(plan.problem)
                document["thresholds"] = {k: v for k, v in found.items() if k != "hard_phase"}
                if found.get("hard_phase"):
                    document["hard_phase"] = found["hard_phase"]
            if published := _published_values(plan, cache):
                document["published"] = published
        except (ProblemError, RuntimeError) as error:  # the second: of a plugin, in a process of its own
            if len(wanted) == 1:
                raise
            document["unsolved"] = str(error) if isinstance(error, ProblemError) else error_line(error)
    return documents


def _published_values(plan: ProblemPlan, cache: TheoryCache) -> list[dict[str, Any]]:
    """Values of others that state how accurate they are, each beside its theory."""
    rows = []
    for reference in plan.references:
        if reference.tolerance is None:
            continue
        metric = find_metric(reference.metric, plan.problem.model.name)
        for alpha, value, branches in zip(
            reference.alpha, reference.value, cache.points(plan.problem, reference.alpha)
        ):
            point = next((p for p in branches if p["branch"] == reference.branch), branches[0])
            values, errors = theory_of(metric, plan.problem, point, len(point["overlap"]))
            k = (reference.component or 1) - 1
            found, error = values[k], errors[k]
            if reference.entry:
                a, b = (i - 1 for i in reference.entry)
                found, error = point["overlap"][a][b], max(e or 0.0 for e in errors)
            if found is None:
                continue
            rows.append(
                {
                    **reference.model_dump(include={"label", "source", "metric", "component", "tolerance", "remark"}),
                    "entry": list(reference.entry) or None,
                    "branch": point["branch"],
                    "alpha": alpha,
                    "value": value,
                    "theory": found,
                    "theory_error": error or 0.0,
                    "within": abs(found - value) <= reference.tolerance + (error or 0.0),
                }
            )
    return rows


def kept_of(suite: Suite, alphas: Sequence[float] | None, cache: TheoryCache) -> Kept:
    """How much of a suite's theory is kept."""
    return cache.kept((plan.problem, _ratios(plan, alphas)) for plan in suite.chosen_plans)


def _ratios(plan: ProblemPlan, alphas: Sequence[float] | None) -> Sequence[float]:
    return alphas if alphas is not None else plan.alphas


def _watched(cache: TheoryCache, plan: ProblemPlan, what: str, on_stage: Callable[[Stage], None]) -> TheoryCache:
    """The cache, telling ``on_stage`` of what it solves next."""
    cache.watch = lambda progress: on_stage(Stage(plan.label, what, progress))
    return cache
