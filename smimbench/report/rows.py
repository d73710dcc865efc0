"""From records to rows with their theory: one row per problem, algorithm, backend, sample ratio, dimension,
metric and component; in them an algorithm's own theory, when each component was learned, and in which order.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import canonical_json, error_line
from smimbench.interfaces import Conditions, Overlaps, ParameterError
from smimbench.problem.problem import ProblemError
from smimbench.registry.adapters import sizes
from smimbench.registry.metrics import find_metric, theory_of, trajectory_metrics
from smimbench.registry.registry import RegistryError, get_registry
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
from smimbench.run.theory_cache import THEORY_ERRORS
from smimbench.suite.cells import Cell, build_algorithm
from smimbench.theory.own import BRINGS_NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.problem.problem import Problem
    from smimbench.run.external import Point
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Suite

__all__ = [
    "Rows",
    "draws_fresh",
    "error_rows",
    "own_point",
    "paired",
    "planned_ratio",
    "rows_of_points",
    "scored_rows",
    "suite_records",
]


class Rows(list[dict[str, Any]]):
    """A list of rows that a notebook shows as a verdict and a table."""

    def _repr_html_(self) -> str:
        from smimbench.report.notebook import rows_html

        return rows_html(self)


@dataclass(frozen=True)
class _RunsOfRow:
    """All runs of one ``place``: problem, algorithm (both by label), backend, sample ratio really used and dimension.

    ``algorithm`` is its table (empty for an estimate from elsewhere), ``bayes`` the Bayes-optimal point of theory there and
    ``own`` that of the algorithm, or in words why it has none. ``nominal`` is the sample ratio that the suite asks for, ``near``
    the threshold that runs which did not converge stand near, in words.
    """

    place: dict[str, Any]
    problem: Problem
    algorithm: dict[str, Any]
    records: Sequence[dict[str, Any]]
    bayes: dict[str, Any]
    own: dict[str, Any] | str = BRINGS_NONE
    nominal: float = 0.0
    near: str | None = None

    def rows(self, metrics: Sequence[str], target: float, store: Store) -> list[dict[str, Any]]:
        """A row for each metric and component."""
        records, components = self.records, len(self.bayes["overlap"])
        usable = [r for r in records if r["metrics"] and r["status"] != Status.DIVERGED.value]
        trajectories = [
            None if r["status"] in (Status.DIVERGED.value, Status.FAILED.value) else store.trajectory(r)
            for r in records
        ]
        unsolved = self.bayes.get("unsolved")
        layers, order = ([], None) if unsolved else _learning_order_of_row(self, trajectories)
        own, reason = ({}, self.own) if isinstance(self.own, str) else (self.own, None)
        shared = {
            "branch": None,
            "theory_method": None,
            **runtime(records, [None for _ in records] if unsolved else trajectories, self.bayes, target),
            "half_overlap": None,
            "still_moving": None if draws_fresh(self.algorithm) else still_moving(records, trajectories, target),
            "learning_order": order,
            "findings": mean_diagnostics(records, own),
            "nominal_alpha": self.nominal,
            "restarts": sum(r.get("restarts", 0) for r in records),
            "status_counts": dict(Counter(r["status"] for r in records)),
            "reasons": sorted({reason_of(r, self.near) for r in records if r["status"] != Status.OK.value}),
            "warnings": sorted(
                {w for r in records for w in r.get("warnings", [])} | ({unsolved} if unsolved else set())
            ),
            "identity": {
                "problem": without_versions(self.problem.spec),
                "algorithm": without_versions(self.algorithm) or {"name": self.place["algorithm"]},
            },
            "component_word": component_word(self.problem),
            "dimension_letter": letter(self.problem.model),
        }
        rows = []
        for name in metrics:
            metric = find_metric(name, self.problem.model.name)
            several = metric.per_component and components > 1
            blank = ([None] * (components if metric.per_component else 1),) * 2
            bayes, bayes_errors = blank if unsolved else theory_of(metric, self.problem, self.bayes, components)
            expected, errors = theory_of(metric, self.problem, own, components) if own else ([None] * len(bayes),) * 2
            for component in range(components if metric.per_component else 1):
                by_instance = values_of(usable, name, component)
                values = np.array(list(by_instance.values()))
                ratio = ratio_to_bayes(values, bayes[component], target)
                verdict = against_theory(values, expected[component], errors[component])
                known = expected[component] is not None
                point = own if known else self.bayes
                rows.append(
                    {
                        **self.place,
                        "n": len(values),
                        "values": by_instance,
                        "target": target,
                        "metric": name,
                        "component": component + 1 if several else None,
                        **(verdict if known else against_theory(values, bayes[component], bayes_errors[component])),
                        "own_theory": expected[component],
                        "own_theory_error": errors[component],
                        "own_z": verdict["z"],
                        "own_coefficient": ((own.get("finite_size") or {}).get(name) or [None] * components)[component],
                        "no_theory": None if known else reason or "its theory says nothing of this metric",
                        "bayes": bayes[component],
                        "bayes_error": bayes_errors[component],
                        "ratio_to_bayes": ratio if metric.direction == "lower" else None,
                        "blank": sorted({r["blank"][name] for r in records if name in r.get("blank", {})}),
                        **shared,
                        "branch": point.get("branch"),
                        "theory_method": point.get("method"),
                        "half_overlap": layers[component] if layers and metric.per_component else None,
                    }
                )
        return rows


def suite_records(suite: Suite, store: Store, backends: Sequence[str]) -> list[tuple[Cell, dict[str, Any]]]:
    """Pairs of a cell of the suite and its record, read from the store."""
    return paired([cell for backend in backends for cell in suite.cells(backend)], store.load(compact=True))


def paired(cells: Sequence[Cell], records: Mapping[str, dict[str, Any]]) -> list[tuple[Cell, dict[str, Any]]]:
    """Pairs of a cell and its record, by file stem; errors from any machine, trusted times preferred."""
    by_key: dict[str, dict[str, Any]] = {}
    for stem, record in records.items():
        key = stem.partition(".")[0]
        if key not in by_key or (record.get("timing") or {}).get("trusted"):
            by_key[key] = record
    found = {}
    for cell in cells:
        if cell.key in by_key:
            found[cell.key, cell.problem_label, cell.algorithm_label] = (cell, by_key[cell.key])
    return list(found.values())


def error_rows(
    pairs: Sequence[tuple[Cell, dict[str, Any]]], suite: Suite, store: Store, cache: TheoryCache
) -> list[dict[str, Any]]:
    """Rows of the error table, in the order of the suite.

    A row stands for one problem, algorithm, backend, sample ratio, dimension, metric and component. ``mean`` and ``sem``
    (standard error of the mean) are over all cells that ended with a finite estimate, whatever their status;
    ``status_counts`` counts all. Two verdicts: ``own_theory`` is the prediction for the algorithm, with ``own_z``
    (None, with the reason in ``no_theory``, where it says nothing), ``bayes`` the Bayes-optimal value at the sample ratio
    really used, with ``ratio_to_bayes``. ``theory``, ``difference`` and ``z`` go by the first where there is one, else by the
    second. Runs are pooled by what was run, never by its label: ``identity`` has problem and algorithm without versions.
    """

    def what(pair: tuple[Cell, dict[str, Any]]) -> tuple[Any, ...]:
        c = pair[0]
        labels = (c.problem_label, c.algorithm_label)
        return (canonical_json(c.problem), canonical_json(c.algorithm), *labels, c.backend, c.alpha, c.dimension)

    groups = grouped(pairs, what)
    problems = {canonical_json(plan.problem.spec): plan.problem for plan in suite.plans}
    ratios = {key: _ratio_of_runs(problems[key[0]], members, store) for key, members in groups.items()}
    unsolved: dict[str, Exception] = {}
    for identity, problem in problems.items():
        wanted = {ratio for key, ratio in ratios.items() if key[0] == identity}
        if wanted:
            unsolved |= _solve(cache, problem, sorted(wanted))
    if (
        len(unsolved) == len(problems)
        and (complaint := next(iter(unsolved.values())))
        and isinstance(complaint, ProblemError)
        and complaint.key != "theory"  # its process ended, or had to: rows say so, the runs may be good
    ):
        raise complaint  # nothing else is hidden by it
    rows: list[dict[str, Any]] = []
    for key, members in groups.items():
        problem, cell, ratio = problems[key[0]], members[0][0], ratios[key]
        place = _place_of_row(cell.problem_label, cell.algorithm_label, cell.backend, ratio, cell.dimension)
        records = [record for _, record in members]
        if key[0] in unsolved:
            bayes: dict[str, Any] = {"alpha": ratio, "overlap": [[math.nan] * problem.components] * problem.components}
            bayes |= {
                "mse": [math.nan] * problem.components,
                "unsolved": f"theory raised {error_line(unsolved[key[0]])}",
            }
            own: dict[str, Any] | str = str(bayes["unsolved"])
        else:
            bayes = cache.points(problem, [ratio])[0][0]
            own = own_point(cache, problem, cell, ratio, records)
        near = _near(cache, problem, records, ratio, cell.dimension) if key[0] not in unsolved else None
        group = _RunsOfRow(place, problem, cell.algorithm, records, bayes, own, cell.alpha, near)
        rows += group.rows(suite.run.metrics, suite.run.target, store)
    return distinguish(rows)


def _solve(cache: TheoryCache, problem: Problem, ratios: Sequence[float]) -> dict[str, Exception]:
    """Solve the theory of a problem; what a plugin of it raises hides that theory, and no row."""
    try:
        cache.points(problem, ratios)
    except THEORY_ERRORS as error:  # its rows say so, the others stay
        return {canonical_json(problem.spec): error}
    return {}


def _near(
    cache: TheoryCache, problem: Problem, records: Sequence[dict[str, Any]], ratio: float, dimension: int
) -> str | None:
    """The threshold near which runs did not converge, in words; asked for only where one did not."""
    stuck = any(record["status"] == Status.NOT_CONVERGED.value for record in records)
    if not stuck:
        return None
    try:
        found = cache.thresholds(problem)
    except THEORY_ERRORS:  # the reason of the run stands without
        return None
    low = problem.model.rank == "low"
    count = dimension if low else problem.model.sample_count(ratio, dimension)
    return near_threshold(found, ratio, count, component_word(problem))


def rows_of_points(
    suite: Suite,
    points: Sequence[Point],
    records: Sequence[dict[str, Any]],
    cache: TheoryCache,
    *,
    of_suite: bool = False,
) -> list[dict[str, Any]]:
    """Rows for estimates from elsewhere (see ``smimbench.run.external``); replicates of one point share a row.

    Parameters
    ----------
    of_suite : bool
        Only the metrics that the suite lists; else all that can be measured of an estimate alone.
    """
    groups: dict[tuple[str, str, float, int], list[tuple[Point, dict[str, Any]]]] = {}
    for point, record in zip(points, records, strict=True):
        key = (point.plan.label, record["algorithm"], point.alpha, point.dimension)
        groups.setdefault(key, []).append((point, record))
    rows = []
    for (label, algorithm, alpha, dimension), members in groups.items():
        problem, found = members[0][0].plan.problem, [record for _, record in members]
        ratio = problem.model.sample_ratio(problem.model.sample_count(alpha, dimension), dimension)
        place = _place_of_row(label, algorithm, ELSEWHERE, ratio, dimension)
        bayes = cache.points(problem, [ratio])[0][0]
        group = _RunsOfRow(place, problem, {}, found, bayes, nominal=alpha)
        measured = trajectory_metrics(problem.model.name)
        metrics = [name for name in suite.run.metrics if name in measured] if of_suite else list(measured)
        rows += group.rows(metrics, suite.run.target, Store(""))
    return rows


def scored_rows(suite: Suite, store: Store, cache: TheoryCache) -> list[dict[str, Any]]:
    """Rows of estimates from elsewhere that ``smimbench score`` has kept, of the metrics of the suite."""
    points, records = kept_scores(suite, store)
    return rows_of_points(suite, points, records, cache, of_suite=True)


def _place_of_row(problem: str, algorithm: str, backend: str, alpha: float, dimension: int) -> dict[str, Any]:
    return {"problem": problem, "algorithm": algorithm, "backend": backend, "alpha": alpha, "dimension": dimension}


def draws_fresh(algorithm: Mapping[str, Any]) -> bool:
    """Whether an algorithm learns from samples of its own, not from the cell's; False for one that is not installed here."""
    if not algorithm:
        return False
    try:
        item = build_algorithm(algorithm, None, get_registry())
    except (RegistryError, ParameterError):
        return False
    return bool(item.plan(sizes(1, 1, 1)).draws_fresh)


def planned_ratio(problem: Problem, cell: Cell) -> float:
    """Sample ratio that the algorithm of a cell will see: of the data set, or of all fresh samples of its steps."""
    model = problem.model
    n = model.sample_count(cell.alpha, cell.dimension)
    if draws_fresh(cell.algorithm):
        algorithm = build_algorithm(cell.algorithm, problem, get_registry())
        plan = algorithm.plan(sizes(n, model.tokens, cell.dimension))
        n = int(plan.steps or 0) * int(plan.batch or n) or n
    return float(model.sample_ratio(n, cell.dimension))


def _ratio_of_runs(problem: Problem, members: Sequence[tuple[Cell, dict[str, Any]]], store: Store) -> float:
    """Sample ratio that was really used: of the data set, or of all fresh samples of an online run."""
    cell = members[0][0]
    n = problem.model.sample_count(cell.alpha, cell.dimension)
    if draws_fresh(cell.algorithm):
        trajectories = [store.trajectory(record) for _, record in members]
        seen = [t["samples"][-1] for t in trajectories if t is not None and len(t.get("samples", ()))]
        n = int(max([n, *(count for count in seen if count > n)]))
    return problem.model.sample_ratio(n, cell.dimension)


def _are_matrices(start: Overlaps, components: int) -> bool:
    """Whether these are finite overlap matrices of so many components: a record holds what was written into it."""
    shape = (components, components)
    parts = [[row for row in matrix if len(row) == components] for matrix in start]
    return all(np.shape(part) == shape and np.isfinite(np.array(part, dtype=float)).all() for part in parts)


def own_point(
    cache: TheoryCache,
    problem: Problem,
    cell: Cell,
    ratio: float,
    records: Sequence[dict[str, Any]] = (),
    *,
    trajectory: bool = False,
) -> dict[str, Any] | str:
    """Prediction for the algorithm of a cell under the conditions of its runs, or the reason why there is none."""
    try:
        build_algorithm(cell.algorithm, problem, get_registry())
    except (RegistryError, ParameterError) as error:
        return f"it is not installed here: {error}"
    starts = (record.get("start") or {} for record in records)
    known = [Overlaps(*(start[name] for name in Overlaps._fields)) for start in starts if start]
    conditions = Conditions(
        dimension=cell.dimension,
        start=cell.run.start,
        starts=tuple(start for start in known if _are_matrices(start, problem.components)),
        iterations=cell.run.max_iterations,
        trajectory=trajectory,
    )
    try:
        return cache.own(problem, cell.algorithm, ratio, conditions)
    except THEORY_ERRORS as error:  # the rows of all others are none of its business
        return f"its theory raised {error_line(error)}"


def _learning_order_of_row(
    group: _RunsOfRow, trajectories: Sequence[dict[str, Any] | None]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """When each component was learned, and in what order; nothing for a single one."""
    components = len(group.bayes["overlap"])
    if components == 1:
        return [], None
    held, _ = theory_of(find_metric("overlap"), group.problem, group.bayes, components)
    samples = next((float(r["samples"]) for r in group.records if "samples" in r), math.nan)
    if draws_fresh(group.algorithm):  # what draws its own has no epochs
        samples = math.nan
    return learning_order(trajectories, [float(value or 0.0) for value in held], samples)
