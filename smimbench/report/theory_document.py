"""The JSON of ``smimbench theory``: predictions, thresholds, published values, algorithms' own theory, Monte Carlo checks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from smimbench.files import JsonObject, error_line
from smimbench.interfaces import Conditions
from smimbench.problem.assumed import Assuming
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.labels import component_word, grouped, letter
from smimbench.report.rows import draws_fresh, own_point, planned_ratio
from smimbench.run.theory_cache import Kept, TheoryCache, solve_in_processes
from smimbench.run.theory_guard import Progress, is_third_party
from smimbench.suite.cells import Cell, ProblemPlan, Suite, build_algorithm
from smimbench.theory.limit import own_theory
from smimbench.theory.verification import RESOLVE, verify_point


class Stage(NamedTuple):
    """Which theory of a suite is being solved, and how far it is.

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


OnStage = Callable[[Stage], None]
"""Told which theory is being solved."""


def asks_predictions(suite: Suite) -> bool:
    """Whether a metric or a published value of a suite needs errors of prediction."""
    published = {reference.metric for reference in suite.run.reference} - {"mse", "overlap"}
    return bool(published) or any("generalization" in name for name in suite.run.metrics)


def theory_document(
    suite: Suite,
    alphas: Sequence[float] | None = None,
    cache: TheoryCache | None = None,
    on_stage: OnStage = lambda stage: None,
    *,
    thresholds: bool = True,
    workers: int = 1,
) -> list[JsonObject]:
    """Theory of a suite: one object per problem, with the reason under ``unsolved`` if it cannot be solved, under
    ``no_theory`` if none is known.

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
    ours = [
        (plan, ratios)
        for plan, ratios in wanted
        if plan.problem.no_theory is None and not is_third_party(*plan.problem.spec.values())
    ]
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
        document: JsonObject = {"problem": problem, "points": [], "thresholds": None}
        documents.append(document)
        if plan.problem.no_theory is not None:
            document["no_theory"] = plan.problem.no_theory
            continue
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
    for one in suite.unmade:
        problem = {"label": one.label, **one.tables}
        documents.append({"problem": problem, "points": [], "thresholds": None, "unsolved": one.reason})
    return documents


def _published_values(plan: ProblemPlan, cache: TheoryCache) -> list[JsonObject]:
    """Published values with a stated accuracy, each with its theoretical value."""
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
    """How much of a suite's theory is stored."""
    return cache.kept((plan.problem, _ratios(plan, alphas)) for plan in suite.chosen_plans)


def _ratios(plan: ProblemPlan, alphas: Sequence[float] | None) -> Sequence[float]:
    return alphas if alphas is not None else plan.alphas


def _watched(cache: TheoryCache, plan: ProblemPlan, what: str, on_stage: OnStage) -> TheoryCache:
    """The theory cache, which reports to ``on_stage`` what it solves next."""
    cache.watch = lambda _, progress: on_stage(Stage(plan.label, what, progress))
    return cache


def add_own_theory(
    suite: Suite,
    documents: Sequence[JsonObject],
    cache: TheoryCache,
    alphas: Sequence[float] | None = None,
    on_stage: OnStage = lambda stage: None,
) -> None:
    """Add ``algorithms`` to every problem's document: ``algorithm``, ``dimension`` and ``point``, or ``no_theory`` in words.

    Next to a point, ``overlap`` is the metric of that name as in the tables of runs; the point's own entry is
    the matrix of products of the estimate with the signal.

    Sample ratios are those of the suite, or ``alphas`` in their place, not the nearest ones of whole samples. What depends on
    sizes is given for every dimension of the suite; algorithms that draw fresh samples stand at the sample ratio of all of them.
    """
    problems = suite.problems
    by_problem = grouped(_cells_asked_for(suite, alphas), lambda cell: cell.problem_label)
    cache.watch = lambda problem, progress: None  # its own stages are over
    for document in documents:
        label = document["problem"]["label"]
        found: dict[str, JsonObject] = {}
        cells = [] if {"unsolved", "no_theory"} & document.keys() else by_problem.get(label, [])
        for k, cell in enumerate(cells):
            stage = Stage(label, "the algorithms themselves", Progress(k, len(cells)), cell.algorithm_label)
            on_stage(stage)
            entry = _own_entry(problems[label], cell, cache)
            found.setdefault(repr({**entry, "dimension": None}), entry)
            on_stage(stage._replace(progress=Progress(k + 1, len(cells))))
        document["algorithms"] = list(found.values())


def _own_entry(problem: Problem, cell: Cell, cache: TheoryCache) -> JsonObject:
    fresh = draws_fresh(cell.algorithm)
    ratio = planned_ratio(problem, cell) if fresh else cell.alpha
    found = own_point(cache, problem, cell, ratio)
    entry: JsonObject = {
        "algorithm": cell.algorithm_label, "alpha": ratio, "dimension": cell.dimension,
        "dimension_letter": letter(problem.model), "component_word": component_word(problem), "fresh": fresh,
    }  # fmt: skip
    if isinstance(found, str):
        return entry | {"no_theory": found}
    return entry | {"point": found, "overlap": theory_of(find_metric("overlap"), problem, found, problem.components)[0]}


def _cells_asked_for(suite: Suite, alphas: Sequence[float] | None) -> list[Cell]:
    """One cell for every algorithm, dimension and sample ratio."""
    cells = [] if suite.theory_only else [cell for cell in suite.cells() if not cell.replicate]
    if alphas is None:
        return cells
    moved = [replace(cell, alpha=alpha) for cell in cells for alpha in alphas]
    return list({cell.key: cell for cell in moved}.values())


LARGEST_Z = 4.0
"""Distance in standard errors that chance is allowed; doubled, errors twice as large pass."""


def add_verification(
    suite: Suite, documents: Sequence[JsonObject], resolve: float = RESOLVE, on_stage: OnStage = lambda stage: None
) -> None:
    """Draw at every point of the documents of ``theory_document``; each gets a list ``verification``.

    Its entries name ``alpha``, ``branch``, ``quantity``, ``component`` (from 1, or None), ``printed`` with its ``error``,
    ``drawn`` with its ``standard_error``, ``z`` and ``excludes``, the relative deviation that would have been seen (None where
    too few draws carry the mean), and ``draws``, as many as show an error that is off by ``resolve``, unless ``stopped``.
    ``on_stage`` is called with how far it is.
    """
    for plan, document in zip(suite.chosen_plans, documents):
        points = document["points"]
        document["verification"] = []
        for k, point in enumerate(points):
            stage, drawn = Stage(plan.label, "plain draws", Progress(k, len(points))), [0]
            on_stage(stage)

            def count(more: int, stage: Stage = stage, drawn: list[int] = drawn) -> None:
                drawn[0] += more
                on_stage(stage._replace(note=f"{drawn[0]} at this point"))

            place = {"alpha": point["alpha"], "branch": point["branch"]}
            checks = verify_point(plan.problem, point, resolve, clock=time.perf_counter, on_draws=count)
            document["verification"] += [{**place, **check.document()} for check in checks]
            on_stage(stage._replace(progress=Progress(k + 1, len(points))))
        document["verification"] += _assumptions_by_draws(suite, plan, document)


def _assumptions_by_draws(suite: Suite, plan: ProblemPlan, document: JsonObject) -> list[JsonObject]:
    """Checks of algorithms with wrong assumptions; ``branch`` is the label of the algorithm."""
    specs, rows = {table["label"]: table["spec"] for table in suite.algorithms}, []
    for entry in document.get("algorithms", ()):
        algorithm = build_algorithm(specs[entry["algorithm"]], plan.problem)
        if "point" not in entry or not (isinstance(algorithm, Assuming) and algorithm.assumed(plan.problem).is_assumed):
            continue
        found = own_theory(algorithm, plan.problem, entry["alpha"], Conditions(start=suite.run.start))
        if not isinstance(found, str) and found.draws is not None:
            place = {"alpha": entry["alpha"], "branch": entry["algorithm"]}
            rows += [{**place, **check.document()} for check in found.draws()]
    return rows


def holds(documents: Sequence[JsonObject]) -> bool:
    """Whether every printed number is within ``LARGEST_Z`` standard errors of its Monte Carlo value."""
    return all(abs(row["z"] or 0.0) <= LARGEST_Z for document in documents for row in document["verification"])
