"""From records to rows: means with standard errors, beside theory with its own error."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.roofline import fraction
from smimbench.interfaces import STORED_NAMES, ParameterError, member, offers
from smimbench.registry.adapters import plan_of, sizes
from smimbench.registry.metrics import find_metric, theory_of, trajectory_metrics
from smimbench.registry.parameters import build
from smimbench.registry.registry import RegistryError, get_registry
from smimbench.report.learning_order import learning_order
from smimbench.run.loop import Status
from smimbench.run.readings import READINGS
from smimbench.run.store import Store
from smimbench.suite.cells import Cell, build_algorithm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.problem.problem import Problem
    from smimbench.run.external import Point
    from smimbench.suite.cells import Suite
    from smimbench.theory.cache import TheoryCache

__all__ = ["EPSILONS", "draws_fresh", "error_rows", "rows_of_point", "suite_records"]

EPSILONS = (0.05, 0.2, 0.5)
PLACE = ("problem", "algorithm", "backend", "alpha", "dimension")
LOST = (Status.DIVERGED.value, Status.FAILED.value)


def suite_records(suite: Suite, store: Store, backends: Sequence[str]) -> list[tuple[Cell, dict[str, Any]]]:
    """Pairs of a cell of the suite and its record; errors from any machine, trusted times preferred."""
    records = store.load()
    by_key: dict[str, dict[str, Any]] = {}
    for stem, record in records.items():
        key = stem.partition(".")[0]
        if key not in by_key or (record.get("timing") or {}).get("trusted"):
            by_key[key] = record
    found = []
    for backend in backends:
        found += [(cell, by_key[cell.key]) for cell in suite.cells(backend) if cell.key in by_key]
    return found


def error_rows(
    pairs: Sequence[tuple[Cell, dict[str, Any]]], suite: Suite, store: Store, theorist: TheoryCache
) -> list[dict[str, Any]]:
    """Rows of the error table, in the order of the suite.

    A row stands for one problem, algorithm, backend, sample ratio, dimension, metric and component. ``mean`` and ``sem``
    (standard error of the mean) are over all cells that ended with a finite estimate, whatever their status;
    ``status_counts`` counts all. ``theory`` is the Bayes-optimal value at the sample ratio really used.
    """
    groups: dict[tuple[Any, ...], list[tuple[Cell, dict[str, Any]]]] = {}
    for cell, record in pairs:
        groups.setdefault(
            (cell.problem_label, cell.algorithm_label, cell.backend, cell.alpha, cell.dimension), []
        ).append((cell, record))
    problems = {plan.label: plan.problem for plan in suite.plans}
    wanted: dict[str, set[float]] = {}
    for (label, *_), members in groups.items():
        wanted.setdefault(label, set()).add(_ratio(problems[label], members, store))
    for label, alphas in wanted.items():
        theorist.points(problems[label], sorted(alphas))
    rows: list[dict[str, Any]] = []
    for (label, algorithm, backend, _, dimension), members in groups.items():
        problem = problems[label]
        ratio = _ratio(problem, members, store)
        theory = _theory_of(problem, members[0][0], ratio, theorist, suite)
        place = (label, algorithm, backend, ratio, dimension)
        records = [record for _, record in members]
        rows += _group_rows(problem, place, members[0][0].algorithm, records, theory, suite, store)
    return rows


def rows_of_point(
    suite: Suite, point: Point, record: dict[str, Any], theorist: TheoryCache
) -> list[dict[str, Any]]:
    """Rows for one estimate from elsewhere (see ``smimbench.run.external``)."""
    problem = point.plan.problem
    ratio = problem.model.sample_ratio(
        problem.model.sample_count(point.alpha, point.dimension), point.dimension
    )
    theory = {"bayes": theorist.points(problem, [ratio])[0][0], "own": None}
    plain = replace(
        suite, run=suite.run.model_copy(update={"metrics": tuple(trajectory_metrics(problem.model.name))})
    )
    place = (point.plan.label, record["algorithm"], "elsewhere", ratio, point.dimension)
    return _group_rows(problem, place, {}, [record], theory, plain, Store(""))


def draws_fresh(algorithm: Mapping[str, Any]) -> bool:
    """Whether an algorithm learns from samples of its own, not from the cell's; False for one that is not installed here."""
    table = {key: value for key, value in algorithm.items() if key not in ("name", "version", "distribution")}
    name = algorithm["name"]
    try:
        where = f"{algorithm['distribution']}:{name}" if "distribution" in algorithm else name
        item = build(get_registry().get("algorithm", where).item, "algorithm", table)
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


def _theory_of(
    problem: Problem, cell: Cell, ratio: float, theorist: TheoryCache, suite: Suite
) -> dict[str, Any]:
    """Theory for a row: the algorithm's own if it has one, besides the Bayes-optimal error."""
    bayes = theorist.points(problem, [ratio])[0][0]
    own = None
    algorithm = build_algorithm(cell.algorithm, problem, get_registry())
    refuses = member(algorithm, "refuses")
    if offers(algorithm, "theory") and not (refuses and refuses(problem)):
        own = algorithm.theory(problem, ratio)
    return {"bayes": bayes, "own": own}


def _group_rows(
    problem: Problem,
    place: tuple[str, str, str, float, int],
    algorithm: dict[str, Any],
    records: Sequence[dict[str, Any]],
    theory: dict[str, Any],
    suite: Suite,
    store: Store,
) -> list[dict[str, Any]]:
    usable = [r for r in records if r["metrics"] and r["status"] != Status.DIVERGED.value]
    counts = dict(Counter(r["status"] for r in records))
    components = len(theory["bayes"]["overlap"])
    # What has left for infinity in the end has reached nothing on its way.
    trajectories = [None if r["status"] in LOST else store.trajectory(r) for r in records]
    runtime = _runtime(records, trajectories, theory["bayes"], suite.run.target)
    layers: list[dict[str, Any]] = []
    order: dict[str, Any] | None = None
    if components > 1:
        held, _ = theory_of(find_metric("overlap"), problem, theory["bayes"], components)
        fresh = bool(algorithm) and draws_fresh(algorithm)  # what draws its own has no epochs
        samples = (
            math.nan if fresh else next((float(r["samples"]) for r in records if "samples" in r), math.nan)
        )
        layers, order = learning_order(trajectories, [float(value or 0.0) for value in held], samples)
    findings = _findings(records, theory["own"] or {})
    warnings = sorted({w for r in records for w in r.get("warnings", [])})
    reasons = sorted({f"{r['status']}: {r['reason']}" for r in records if r["status"] != Status.OK.value})
    rows = []
    for name in suite.run.metrics:
        metric = find_metric(name, problem.model.name)
        per_component = metric.per_component
        point = theory["own"] if theory["own"] is not None and per_component else theory["bayes"]
        expected, errors = theory_of(metric, problem, point, components)
        bayes, _ = theory_of(metric, problem, theory["bayes"], components)
        blank = sorted({r["blank"][name] for r in records if name in r.get("blank", {})})
        for component in range(components if per_component else 1):
            found = [r["metrics"][name][component] for r in usable if name in r["metrics"]]
            values = np.array([v for v in found if v is not None], dtype=float)
            values = values[np.isfinite(values)]
            rows.append(
                {
                    **dict(zip(PLACE, place)),
                    "n": len(values),
                    "metric": name,
                    "component": component + 1 if per_component and components > 1 else None,
                    **_compare(values, expected[component], errors[component]),
                    "bayes": bayes[component],
                    "ratio_to_bayes": _ratio_to(values, bayes[component], suite.run.target)
                    if metric.direction == "lower"
                    else None,
                    "blank": blank,
                    "branch": point.get("branch"),
                    "theory_method": point.get("method"),
                    **runtime,
                    "half_overlap": layers[component] if layers and per_component else None,
                    "learning_order": order,
                    "findings": findings,
                    "restarts": sum(r.get("restarts", 0) for r in records),
                    "status_counts": counts,
                    "reasons": reasons,
                    "warnings": warnings,
                }
            )
    return rows


def _findings(records: Sequence[dict[str, Any]], theory: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What runs report beside their estimate (see ``Algorithm.findings``), one entry for each number, with its theory."""
    found: dict[str, list[dict[str, Any]]] = {}
    reported = [r.get("final") or {} for r in records]
    names = {
        name
        for final in reported
        for name, values in final.items()
        if isinstance(values, list) and name not in {*READINGS, *STORED_NAMES.values()}
    }
    for name in sorted(names):
        lists = [final[name] for final in reported if name in final]
        expected = theory.get(name) or []
        found[name] = []
        for i in range(max(map(len, lists))):
            values = np.array([own[i] for own in lists if i < len(own) and own[i] is not None], dtype=float)
            sem = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
            found[name].append(
                {
                    "mean": float(values.mean()) if len(values) else None,
                    "sem": sem,
                    "found": len(values),
                    "runs": len(lists),
                    "theory": expected[i] if i < len(expected) else None,
                }
            )
    return found


def _compare(values: np.ndarray[Any, Any], expected: float | None, error: float | None) -> dict[str, Any]:
    mean = float(values.mean()) if len(values) else None
    sem = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    difference = mean - expected if mean is not None and expected is not None else None
    z = None
    if difference is not None and sem is not None:
        scale = math.hypot(sem, error or 0.0)
        z = difference / scale if scale > 0 and expected != 0 else None
    return {
        "mean": mean,
        "sem": sem,
        "theory": expected,
        "theory_error": error,
        "difference": difference,
        "z": z,
    }


def _ratio_to(values: np.ndarray[Any, Any], bayes: float | None, target: float) -> float | None:
    """Ratio of the mean to the Bayes-optimal error; blank where theory says 0."""
    if not len(values) or bayes is None or bayes <= target * 1e-3:
        return None
    return float(values.mean() / bayes)


def _runtime(
    records: Sequence[dict[str, Any]],
    trajectories: Sequence[dict[str, Any] | None],
    bayes: dict[str, Any],
    target: float,
) -> dict[str, Any]:
    timings = [r["timing"] for r in records if "seconds" in r.get("timing", {})]
    iterations = [r["iterations"] for r in records if "iterations" in r]
    machines = sorted({t["machine"] for t in timings})
    expected = np.atleast_1d(np.asarray(bayes["mse"], dtype=float))
    reached: dict[str, Any] = {}
    for epsilon in EPSILONS:
        goal = np.where(expected > target, (1 + epsilon) * expected, target)
        hits = [_first_hit(t, goal) for t in trajectories]
        # An attempt that was given up counts in the time to get there.
        times = [h[0] + (r.get("timing") or {}).get("lost_seconds", 0.0) for h, r in zip(hits, records)]
        steps = [h[1] for h in hits]
        # Runs that never get there count as infinity, so the median is the honest average.
        reached[f"{epsilon:g}"] = {
            "seconds": _finite(float(np.median(times))) if times else None,
            "iterations": _finite(float(np.median(steps))) if steps else None,
            "fraction": float(np.mean(np.isfinite(times))) if times else None,
        }
    return {
        "seconds": _mean([t["seconds"] + t.get("lost_seconds", 0.0) for t in timings]),
        "cpu_seconds": _mean([t["cpu_seconds"] for t in timings]),
        "iterations": _mean(iterations),
        "first_iteration": _mean([t["first_iteration"] for t in timings if t.get("first_iteration")]),
        "per_iteration": _mean([t["per_iteration"] for t in timings if t.get("per_iteration")]),
        "peak_memory": max((t["peak_memory"] for t in timings if t.get("peak_memory")), default=None),
        **_efficiency(records),
        "trusted": bool(timings) and all(t.get("trusted") for t in timings),
        "machines": machines,
        "time_to_theory": reached,
    }


def _efficiency(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean fraction of the ceiling that bounds an iteration, and which ceiling that is; None where it is not known."""
    found = []
    for record in records:
        timing, cell = record.get("timing") or {}, record.get("cell") or {}
        if timing.get("per_iteration") and timing.get("cost") and timing.get("ceilings"):
            one = fraction(
                timing["per_iteration"],
                timing["cost"],
                timing["ceilings"],
                cell.get("dtype", "float64"),
                tf32=cell.get("tf32", False),
            )
            found += [one] if one else []
    return {
        "ceiling_fraction": _mean([one.value for one in found]),
        "ceiling": found[0].bound if found else None,
        "device_seconds": _mean(
            [r["timing"]["device_seconds"] for r in records if (r.get("timing") or {}).get("device_seconds")]
        ),
    }


def _first_hit(trajectory: dict[str, Any] | None, goal: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Seconds and iterations until every component is within its goal."""
    if trajectory is None:
        return math.inf, math.inf
    within = (trajectory["mse"] <= goal).all(axis=1)
    if not within.any():
        return math.inf, math.inf
    first = int(np.argmax(within))
    return float(trajectory["seconds"][first]), float(trajectory["iteration"][first])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
