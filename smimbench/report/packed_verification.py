"""Whether packed results are what they say: statistics from the values, theory solved again, and a sample of cells run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import machine
from smimbench.files import JsonObject, error_line
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.labels import grouped
from smimbench.report.statistics import against_theory, ratio_to_bayes
from smimbench.run.theory_cache import THEORY_ERRORS
from smimbench.run.theory_guard import GuardedTheory
from smimbench.run.verification import ELSEWHERE, ROUNDED, Verification, differences, untimed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from smimbench.suite.cells import Suite

Row = JsonObject


def verify_packed(
    path: Path, rows: Sequence[Row], shared: Mapping[str, Any], suite: Suite, *, cells: int, seed: int, theory: bool
) -> dict[str, Verification]:
    """Check rows of a file whose digest is sound, against the suite that its ``run.json`` describes."""
    here = shared["fingerprint"] == machine.fingerprint() and shared["versions"] == machine.versions()
    tolerance = 0.0 if here else ELSEWHERE
    found = {"rows": _statistics(path, rows)}
    if theory:
        found["rows of theory solved again"] = _theory(path, rows, suite, here=here)
    found["cells run again"] = _rerun(path, rows, suite, tolerance, cells, seed)
    return found


def _statistics(path: Path, rows: Sequence[Row]) -> Verification:
    """What follows from the values of the runs and from theory, for every row."""
    found = Verification()
    for row in rows:
        values = np.array(list(row["values"].values()))
        own = row["own_theory"] is not None
        expected = (row["own_theory"], row["own_theory_error"]) if own else (row["bayes"], row["bayes_error"])
        new = {"n": len(values), **against_theory(values, *expected)}
        new["own_z"] = new["z"] if own else None
        if row["ratio_to_bayes"] is not None:
            new["ratio_to_bayes"] = ratio_to_bayes(values, row["bayes"], row["target"], row.get("optimum"))
        # Sums of another machine may round in another way.
        found.add(_lines(path, row, differences({key: row[key] for key in new}, new, 1e-12)))
    return found


def _theory(path: Path, rows: Sequence[Row], suite: Suite, *, here: bool) -> Verification:
    """Bayes-optimal values of every row."""
    found, fresh = Verification(), GuardedTheory()
    problems = {plan.label: plan.problem for plan in suite.plans}
    groups = grouped(rows, lambda row: row["problem"])
    for label, members in groups.items():
        if (problem := problems.get(label)) is None:
            continue
        alphas = sorted({row["alpha"] for row in members})
        try:
            points = {alpha: branches[0] for alpha, branches in zip(alphas, fresh.points(problem, alphas))}
        except THEORY_ERRORS as error:
            found.remarks.append(f"{label}: theory raised {error_line(error)}")
            continue
        for row in members:
            metric = find_metric(row["metric"], problem.model.name)
            values, errors = theory_of(metric, problem, points[row["alpha"]], problem.components)
            k = (row["component"] or 1) - 1
            new = {"bayes": values[k], "bayes_error": errors[k]} if here else {"bayes": values[k]}
            relative, absolute = (
                (ROUNDED, ROUNDED / 100) if here else (ELSEWHERE, 4 * (row["bayes_error"] or 0.0) + 1e-9)
            )
            found.add(_lines(path, row, differences({n: row[n] for n in new}, new, relative, absolute=absolute)))
    if unknown := sum(row["problem"] not in problems for row in rows):
        found.remarks.append(f"{unknown} rows of problems that the suite does not have")
    if own := sum(row["own_theory"] is not None and row["own_theory"] != row["bayes"] for row in rows):
        found.remarks.append(
            f"{own} predictions of algorithms not solved again: a pack does not hold the starts of the runs"
        )
    return found


def _rerun(path: Path, rows: Sequence[Row], suite: Suite, tolerance: float, count: int, seed: int) -> Verification:
    """So many of the packed cells, drawn at random, run again."""
    found = Verification()
    untroubled = (row for row in rows if row["backend"] == "numpy" and "timeout" not in row["status_counts"])
    places = grouped(untroubled, lambda r: (r["problem"], r["algorithm"], r["nominal_alpha"], r["dimension"]))
    known = []
    for cell in suite.cells("numpy") if places else ():
        members = places.get((cell.problem_label, cell.algorithm_label, cell.alpha, cell.dimension))
        if members and f"{cell.seed}/{cell.replicate}" in members[0]["values"]:
            known.append((cell, members))
    chosen = [known[i] for i in np.random.default_rng(seed).permutation(len(known))[:count]]
    packed = {cell.key: members for cell, members in chosen}
    for cell, record in untimed([cell for cell, _ in chosen], 1):
        name, lines = f"{cell.seed}/{cell.replicate}", []
        for row in packed[cell.key]:
            new = dict(enumerate(record["metrics"].get(row["metric"], []), 1)).get(row["component"] or 1)
            lines += _lines(path, row, differences({name: row["values"].get(name)}, {name: new}, tolerance))
        found.add(lines)
    return found


def _lines(path: Path, row: Row, differing: Any) -> list[str]:
    where = f"{row['problem']} {row['algorithm']} at alpha {row['alpha']:.5g}, D = {row['dimension']}, {row['metric']}"
    return [f"{path}: {where}: {line}" for line in list(differing)[:3]]
