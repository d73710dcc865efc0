"""From records to rows with their theory: one row per problem, algorithm, backend, sample ratio, dimension,
metric and component; theory of problems and algorithms is read, or solved where the cache solves.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import JsonObject, canonical_json, error_line
from smimbench.interfaces import Conditions, Overlaps, ParameterError
from smimbench.problem.problem import ProblemError
from smimbench.registry.adapters import sizes
from smimbench.registry.metrics import find_metric, theory_of, trajectory_metrics
from smimbench.registry.registry import RegistryError
from smimbench.report.labels import component_word, distinguish, grouped, letter, reason_of, without_versions
from smimbench.report.statistics import (
    against_theory,
    learning_order,
    mean_diagnostics,
    near_threshold,
    ratio_to_bayes,
    runtime,
    still_moving,
    values_of,
)
from smimbench.run.external import ELSEWHERE, kept_scores
from smimbench.run.loop import Status
from smimbench.run.store import Store
from smimbench.run.theory_cache import THEORY_ERRORS, NotStored
from smimbench.suite.cells import Cell, build_algorithm
from smimbench.theory.limit import BRINGS_NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.problem.problem import Problem
    from smimbench.run.external import Point
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Suite

Pair = tuple[Cell, JsonObject]
"""A cell of a suite and its record."""

LOST = (Status.DIVERGED.value, Status.FAILED.value)


class Rows(list[JsonObject]):
    """A list of rows that a notebook shows as a verdict and a table."""

    def _repr_html_(self) -> str:
        from smimbench.report.notebook import rows_html

        return rows_html(self)


# -- records --------------------------------------------------------------------------------------------------------------


def suite_records(suite: Suite, store: Store, backends: Sequence[str]) -> list[Pair]:
    """Pairs of a cell of the suite and its record, read from the store."""
    return paired([cell for backend in backends for cell in suite.cells(backend)], store.load(compact=True))


def paired(cells: Sequence[Cell], records: Mapping[str, JsonObject]) -> list[Pair]:
    """Pairs of a cell and its record, by file stem; errors from any machine, trusted times preferred."""
    by_key: dict[str, JsonObject] = {}
    for stem, record in records.items():
        key = stem.partition(".")[0]
        if key not in by_key or (record.get("timing") or {}).get("trusted"):
            by_key[key] = record
    known = (cell for cell in cells if cell.key in by_key)
    found = {(cell.key, cell.problem_label, cell.algorithm_label): (cell, by_key[cell.key]) for cell in known}
    return list(found.values())


def draws_fresh(algorithm: Mapping[str, Any]) -> bool:
    """Whether an algorithm learns from samples of its own, not from the cell's; False for one that is not installed here."""
    if not algorithm:
        return False
    try:
        return bool(build_algorithm(algorithm, None).plan(sizes(1, 1, 1)).draws_fresh)
    except (RegistryError, ParameterError):
        return False


def planned_ratio(problem: Problem, cell: Cell) -> float:
    """Sample ratio that the algorithm of a cell will see: of the data set, or of all fresh samples of its steps."""
    model = problem.model
    n = model.sample_count(cell.alpha, cell.dimension)
    if draws_fresh(cell.algorithm):
        algorithm = build_algorithm(cell.algorithm, problem)
        plan = algorithm.plan(sizes(n, model.tokens, cell.dimension))
        n = int(plan.steps or 0) * int(plan.batch or n) or n
    return float(model.sample_ratio(n, cell.dimension))


def _ratio_of_runs(problem: Problem, members: Sequence[Pair], store: Store) -> float:
    """Sample ratio that was really used: of the data set, or of all fresh samples of an online run."""
    cell = members[0][0]
    n = problem.model.sample_count(cell.alpha, cell.dimension)
    if draws_fresh(cell.algorithm):
        trajectories = [store.trajectory(record) or {} for _, record in members]
        seen = [t["samples"][-1] for t in trajectories if len(t.get("samples", ()))]
        n = int(max([n, *(count for count in seen if count > n)]))
    return problem.model.sample_ratio(n, cell.dimension)


# -- theory ---------------------------------------------------------------------------------------------------------------


def bayes_point(cache: TheoryCache, problem: Problem, ratio: float) -> JsonObject | None:
    """The Bayes-optimal point at a sample ratio; None where it is not stored."""
    found = cache.points_at_hand(problem, [ratio])
    return found[0][0] if found else None


def own_point(
    cache: TheoryCache,
    problem: Problem,
    cell: Cell,
    ratio: float,
    records: Sequence[JsonObject] = (),
    *,
    trajectory: bool = False,
) -> JsonObject | str:
    """Prediction for the algorithm of a cell under the conditions of its runs, or the reason why there is none."""
    starts = (record.get("start") or {} for record in records)
    known = [Overlaps(*(start[name] for name in Overlaps._fields)) for start in starts if start]
    whole = tuple(start for start in known if _are_matrices(start, problem.components))
    how = cell.run.start, whole, cell.run.max_iterations
    conditions = Conditions(cell.dimension, *how, trajectory=trajectory)
    try:
        build_algorithm(cell.algorithm, problem)
        return cache.own(problem, cell.algorithm, ratio, conditions)
    except (RegistryError, ParameterError) as error:
        return f"it is not installed here: {error}"
    except NotStored:
        return "not stored"
    except THEORY_ERRORS as error:  # the rows of others stay
        return f"its theory raised {error_line(error)}"


def _are_matrices(start: Overlaps, components: int) -> bool:
    """Whether these are finite overlap matrices of so many components: a record holds what was written into it."""
    shape = (components, components)
    parts = [[row for row in matrix if len(row) == components] for matrix in start]
    return all(np.shape(part) == shape and np.isfinite(np.array(part, dtype=float)).all() for part in parts)


def _near(cache: TheoryCache, problem: Problem, records: Sequence[Any], ratio: float, dimension: int) -> str | None:
    """The threshold near which runs did not converge, in words; asked for only where one did not."""
    if all(record["status"] != Status.NOT_CONVERGED.value for record in records):
        return None
    try:
        found = cache.thresholds(problem)
    except THEORY_ERRORS:  # the reason of the run is shown without
        return None
    count = dimension if problem.model.rank == "low" else problem.model.sample_count(ratio, dimension)
    return near_threshold(found, ratio, count, component_word(problem))


# -- rows -----------------------------------------------------------------------------------------------------------------


def error_rows(pairs: Sequence[Pair], suite: Suite, store: Store, cache: TheoryCache) -> list[JsonObject]:
    """Rows of the error table, in the order of the suite.

    A row stands for one problem, algorithm, backend, sample ratio, dimension, metric and component. ``mean`` and ``sem``
    (standard error of the mean) are over all cells that ended with a finite estimate, whatever their status;
    ``status_counts`` counts all. Two verdicts: ``own_theory`` is the prediction for the algorithm, with ``own_z``
    (None, with the reason in ``no_theory``, where it says nothing), ``bayes`` the Bayes-optimal value at the sample ratio
    really used, with ``ratio_to_bayes``. ``theory``, ``difference`` and ``z`` go by the first where there is one, else by the
    second. Runs are pooled by what was run, never by its label: ``identity`` has problem and algorithm without versions.
    Theory that is not stored is None.
    """

    def what(pair: Pair) -> tuple[Any, ...]:
        c = pair[0]
        labels = (c.problem_label, c.algorithm_label)
        return (canonical_json(c.problem), canonical_json(c.algorithm), *labels, c.backend, c.alpha, c.dimension)

    groups = grouped(pairs, what)
    problems = {canonical_json(plan.problem.spec): plan.problem for plan in suite.plans}
    ratios = {key: _ratio_of_runs(problems[key[0]], members, store) for key, members in groups.items()}
    unsolved: dict[str, Exception] = {}
    for identity, problem in problems.items():
        try:
            cache.points_at_hand(problem, sorted({ratio for key, ratio in ratios.items() if key[0] == identity}))
        except THEORY_ERRORS as error:  # its rows say so, the others stay
            unsolved[identity] = error
    first = next(iter(unsolved.values()), None)
    if len(unsolved) == len(problems) and isinstance(first, ProblemError) and first.key != "theory":
        # With that key its process ended, or had to: rows say so, the runs may be good. Otherwise nothing else is hidden.
        raise first
    rows: list[JsonObject] = []
    for key, members in groups.items():
        problem, cell, ratio = problems[key[0]], members[0][0], ratios[key]
        records = [record for _, record in members]
        place = _place_of_row(cell.problem_label, cell.algorithm_label, cell.backend, ratio, cell.dimension)
        point, near = None, None
        own: JsonObject | str = ""
        if key[0] in unsolved:
            own = f"theory raised {error_line(unsolved[key[0]])}"
        elif point := bayes_point(cache, problem, ratio):
            own = own_point(cache, problem, cell, ratio, records)
            near = _near(cache, problem, records, ratio, cell.dimension)
        metrics, target = suite.run.metrics, suite.run.target
        rows += _rows_of_place(
            place, problem, cell.algorithm, records, point, own, cell.alpha, near, metrics, target, store
        )
    return distinguish(rows)


def rows_of_points(
    suite: Suite, points: Sequence[Point], records: Sequence[JsonObject], cache: TheoryCache, *, of_suite: bool = False
) -> list[JsonObject]:
    """Rows for estimates from elsewhere (see ``smimbench.run.external``); replicates of one point share a row.

    Parameters
    ----------
    of_suite : bool
        Only the metrics that the suite lists; else all that can be measured of an estimate alone.
    """
    groups = grouped(
        zip(points, records, strict=True),
        lambda one: (one[0].plan.label, one[1]["algorithm"], one[0].alpha, one[0].dimension),
    )
    rows = []
    for (label, algorithm, alpha, dimension), members in groups.items():
        problem = members[0][0].plan.problem
        ratio = problem.model.sample_ratio(problem.model.sample_count(alpha, dimension), dimension)
        measured = trajectory_metrics(problem.model.name)
        metrics = [name for name in suite.run.metrics if name in measured] if of_suite else list(measured)
        place, found = _place_of_row(label, algorithm, ELSEWHERE, ratio, dimension), [record for _, record in members]
        point, target = bayes_point(cache, problem, ratio), suite.run.target
        own = BRINGS_NONE if point else ""
        rows += _rows_of_place(place, problem, {}, found, point, own, alpha, None, metrics, target, Store(""))
    return rows


def scored_rows(suite: Suite, store: Store, cache: TheoryCache) -> list[JsonObject]:
    """Rows of estimates from elsewhere that ``smimbench score`` has kept, of the metrics of the suite."""
    points, records = kept_scores(suite, store)
    return rows_of_points(suite, points, records, cache, of_suite=True)


def _place_of_row(problem: str, algorithm: str, backend: str, alpha: float, dimension: int) -> JsonObject:
    return {"problem": problem, "algorithm": algorithm, "backend": backend, "alpha": alpha, "dimension": dimension}


def _rows_of_place(
    place: JsonObject,
    problem: Problem,
    algorithm: JsonObject,
    records: Sequence[JsonObject],
    bayes: JsonObject | None,
    own: JsonObject | str,
    nominal: float,
    near: str | None,
    metrics: Sequence[str],
    target: float,
    store: Store,
) -> list[JsonObject]:
    """A row for each metric and component of the runs of one place.

    Parameters
    ----------
    algorithm : dict
        Its table; empty for an estimate from elsewhere.
    bayes, own : dict
        Points of theory at the sample ratio really used; None, or a reason in words, where there is none.
    nominal : float
        The sample ratio that the suite asks for.
    near : str or None
        The threshold that runs which did not converge are near, in words.
    """
    fresh = draws_fresh(algorithm)
    usable = [r for r in records if r["metrics"] and r["status"] != Status.DIVERGED.value]
    courses = [None if r["status"] in LOST else store.trajectory(r) for r in records]
    components = problem.components
    layers: list[JsonObject] = []
    order: JsonObject | None = None
    if bayes is not None and components > 1:
        held, _ = theory_of(find_metric("overlap"), problem, bayes, components)
        # What draws its own samples has no epochs.
        samples = math.nan if fresh else next((float(r["samples"]) for r in records if "samples" in r), math.nan)
        layers, order = learning_order(courses, [float(value or 0.0) for value in held], samples)
    reason, own = (own, {}) if isinstance(own, str) else ("its theory says nothing of this metric", own)
    unsolved = {reason} if bayes is None and reason else set()
    shared = {
        **runtime(records, courses, bayes, target),
        "still_moving": None if fresh else still_moving(records, courses, target),
        "learning_order": order,
        "findings": mean_diagnostics(records, own),
        "nominal_alpha": nominal,
        "restarts": sum(r.get("restarts", 0) for r in records),
        "status_counts": dict(Counter(r["status"] for r in records)),
        "reasons": sorted({reason_of(r, near) for r in records if r["status"] != Status.OK.value}),
        "warnings": sorted({w for r in records for w in r.get("warnings", [])} | unsolved),
        "identity": {
            "problem": without_versions(problem.spec),
            "algorithm": without_versions(algorithm) or {"name": place["algorithm"]},
        },
        "component_word": component_word(problem),
        "dimension_letter": letter(problem.model),
    }
    rows = []
    for name in metrics:
        metric = find_metric(name, problem.model.name)
        count = components if metric.per_component else 1
        blank = ([None] * count,) * 2
        optimal, optimal_errors = theory_of(metric, problem, bayes, components) if bayes else blank
        expected, errors = theory_of(metric, problem, own, components) if own else blank
        coefficients = (own.get("finite_size") or {}).get(name) or [None] * count
        for k in range(count):
            by_instance = values_of(usable, name, k)
            values = np.array(list(by_instance.values()))
            known = expected[k] is not None
            verdict = against_theory(values, expected[k], errors[k])
            point = own if known else bayes or {}
            rows.append(
                {
                    **place,
                    "n": len(values),
                    "values": by_instance,
                    "target": target,
                    "metric": name,
                    "component": k + 1 if count > 1 else None,
                    **(verdict if known else against_theory(values, optimal[k], optimal_errors[k])),
                    "own_theory": expected[k],
                    "own_theory_error": errors[k],
                    "own_z": verdict["z"],
                    "own_coefficient": coefficients[k],
                    "no_theory": None if known else reason or None,
                    "bayes": optimal[k],
                    "bayes_error": optimal_errors[k],
                    "ratio_to_bayes": ratio_to_bayes(values, optimal[k], target)
                    if metric.direction == "lower"
                    else None,
                    "blank": sorted({r["blank"][name] for r in records if name in r.get("blank", {})}),
                    "branch": point.get("branch"),
                    "theory_method": point.get("method"),
                    **shared,
                    "half_overlap": layers[k] if layers and metric.per_component else None,
                }
            )
    return rows
