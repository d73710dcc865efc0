"""From records to rows: one row per problem, algorithm, backend, sample ratio, dimension, metric and component."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smimbench.files import canonical_json
from smimbench.interfaces import ParameterError, member, offers
from smimbench.registry.adapters import plan_of, sizes
from smimbench.registry.metrics import find_metric, theory_of, trajectory_metrics
from smimbench.registry.registry import RegistryError, get_registry
from smimbench.report.aggregate import against_theory, diagnostics, ratio_to_bayes, values_of
from smimbench.report.labels import component_word, distinguish, grouped, without_versions
from smimbench.report.learning_order import learning_order
from smimbench.report.runtime import runtime
from smimbench.run.loop import Status
from smimbench.run.store import Store
from smimbench.suite.cells import Cell, build_algorithm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.problem.problem import Problem
    from smimbench.run.external import Point
    from smimbench.suite.cells import Suite
    from smimbench.theory.cache import TheoryCache

__all__ = ["draws_fresh", "error_rows", "rows_of_point", "suite_records"]

LOST = (Status.DIVERGED.value, Status.FAILED.value)
"""Runs that ended so have reached nothing on their way, whatever their trajectory says."""


@dataclass(frozen=True)
class _Group:
    """All runs of one ``place``: problem, algorithm (both by label), backend, sample ratio really used and dimension.

    ``algorithm`` is its table (empty for an estimate from elsewhere), ``bayes`` the Bayes-optimal point of theory there and
    ``own`` that of the algorithm, if it has one.
    """

    place: dict[str, Any]
    problem: Problem
    algorithm: dict[str, Any]
    records: Sequence[dict[str, Any]]
    bayes: dict[str, Any]
    own: dict[str, Any] | None = None

    def rows(self, metrics: Sequence[str], target: float, store: Store) -> list[dict[str, Any]]:
        """A row for each metric and component."""
        records, components = self.records, len(self.bayes["overlap"])
        usable = [r for r in records if r["metrics"] and r["status"] != Status.DIVERGED.value]
        trajectories = [None if r["status"] in LOST else store.trajectory(r) for r in records]
        layers, order = _order(self, trajectories)
        shared = {
            "branch": None,
            "theory_method": None,
            **runtime(records, trajectories, self.bayes, target),
            "half_overlap": None,
            "learning_order": order,
            "findings": diagnostics(records, self.own or {}),
            "restarts": sum(r.get("restarts", 0) for r in records),
            "status_counts": dict(Counter(r["status"] for r in records)),
            "reasons": sorted({f"{r['status']}: {r['reason']}" for r in records if r["status"] != Status.OK.value}),
            "warnings": sorted({w for r in records for w in r.get("warnings", [])}),
            "identity": {
                "problem": without_versions(self.problem.spec),
                "algorithm": without_versions(self.algorithm) or {"name": self.place["algorithm"]},
            },
            "component_word": component_word(self.problem),
        }
        rows = []
        for name in metrics:
            metric = find_metric(name, self.problem.model.name)
            several = metric.per_component and components > 1
            point = self.own if self.own is not None and metric.per_component else self.bayes
            expected, errors = theory_of(metric, self.problem, point, components)
            bayes, _ = theory_of(metric, self.problem, self.bayes, components)
            for component in range(components if metric.per_component else 1):
                values = values_of(usable, name, component)
                ratio = ratio_to_bayes(values, bayes[component], target)
                rows.append(
                    {
                        **self.place,
                        "n": len(values),
                        "metric": name,
                        "component": component + 1 if several else None,
                        **against_theory(values, expected[component], errors[component]),
                        "bayes": bayes[component],
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
    """Pairs of a cell of the suite and its record; errors from any machine, trusted times preferred."""
    records = store.load()
    by_key: dict[str, dict[str, Any]] = {}
    for stem, record in records.items():
        key = stem.partition(".")[0]
        if key not in by_key or (record.get("timing") or {}).get("trusted"):
            by_key[key] = record
    found = {}
    for backend in backends:
        for cell in suite.cells(backend):
            if cell.key in by_key:
                found[cell.key, cell.problem_label, cell.algorithm_label] = (cell, by_key[cell.key])
    return list(found.values())


def error_rows(
    pairs: Sequence[tuple[Cell, dict[str, Any]]], suite: Suite, store: Store, theorist: TheoryCache
) -> list[dict[str, Any]]:
    """Rows of the error table, in the order of the suite.

    A row stands for one problem, algorithm, backend, sample ratio, dimension, metric and component. ``mean`` and ``sem``
    (standard error of the mean) are over all cells that ended with a finite estimate, whatever their status;
    ``status_counts`` counts all. ``theory`` is the Bayes-optimal value at the sample ratio really used. Runs are pooled by
    what was run, never by its label: ``identity`` has problem and algorithm without versions.
    """

    def what(pair: tuple[Cell, dict[str, Any]]) -> tuple[Any, ...]:
        c = pair[0]
        labels = (c.problem_label, c.algorithm_label)
        return (canonical_json(c.problem), canonical_json(c.algorithm), *labels, c.backend, c.alpha, c.dimension)

    groups = grouped(pairs, what)
    problems = {canonical_json(plan.problem.spec): plan.problem for plan in suite.plans}
    ratios = {key: _ratio(problems[key[0]], members, store) for key, members in groups.items()}
    for identity, problem in problems.items():
        wanted = {ratio for key, ratio in ratios.items() if key[0] == identity}
        if wanted:
            theorist.points(problem, sorted(wanted))
    rows: list[dict[str, Any]] = []
    for key, members in groups.items():
        problem, cell, ratio = problems[key[0]], members[0][0], ratios[key]
        place = _place(cell.problem_label, cell.algorithm_label, cell.backend, ratio, cell.dimension)
        records = [record for _, record in members]
        bayes = theorist.points(problem, [ratio])[0][0]
        group = _Group(place, problem, cell.algorithm, records, bayes, _own_theory(problem, cell, ratio))
        rows += group.rows(suite.run.metrics, suite.run.target, store)
    return distinguish(rows)


def rows_of_point(suite: Suite, point: Point, record: dict[str, Any], theorist: TheoryCache) -> list[dict[str, Any]]:
    """Rows for one estimate from elsewhere (see ``smimbench.run.external``)."""
    problem = point.plan.problem
    model = problem.model
    ratio = model.sample_ratio(model.sample_count(point.alpha, point.dimension), point.dimension)
    place = _place(point.plan.label, record["algorithm"], "elsewhere", ratio, point.dimension)
    group = _Group(place, problem, {}, [record], theorist.points(problem, [ratio])[0][0])
    return group.rows(tuple(trajectory_metrics(model.name)), suite.run.target, Store(""))


def _place(problem: str, algorithm: str, backend: str, alpha: float, dimension: int) -> dict[str, Any]:
    return {"problem": problem, "algorithm": algorithm, "backend": backend, "alpha": alpha, "dimension": dimension}


def draws_fresh(algorithm: Mapping[str, Any]) -> bool:
    """Whether an algorithm learns from samples of its own, not from the cell's; False for one that is not installed here."""
    if not algorithm:
        return False
    try:
        item = build_algorithm(algorithm, None, get_registry())
    except (RegistryError, ParameterError):
        return False
    return plan_of(item, sizes(1, 1, 1)).draws_fresh


def _ratio(problem: Problem, members: Sequence[tuple[Cell, dict[str, Any]]], store: Store) -> float:
    """Sample ratio that was really used: of the data set, or of all fresh samples of an online run."""
    cell = members[0][0]
    n = problem.model.sample_count(cell.alpha, cell.dimension)
    if draws_fresh(cell.algorithm):
        trajectories = [store.trajectory(record) for _, record in members]
        seen = [t["samples"][-1] for t in trajectories if t is not None and len(t.get("samples", ()))]
        n = int(max([n, *(count for count in seen if count > n)]))
    return problem.model.sample_ratio(n, cell.dimension)


def _own_theory(problem: Problem, cell: Cell, ratio: float) -> dict[str, Any] | None:
    """The algorithm's own point of theory, if it has one for this problem."""
    algorithm = build_algorithm(cell.algorithm, problem, get_registry())
    refuses = member(algorithm, "refuses")
    if not offers(algorithm, "theory") or (refuses and refuses(problem)):
        return None
    found: dict[str, Any] | None = algorithm.theory(problem, ratio)
    return found


def _order(
    group: _Group, trajectories: Sequence[dict[str, Any] | None]
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
