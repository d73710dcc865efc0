"""Comparison of two results tables: changes of errors and times, worst first, and whether a change exceeds a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from smimbench.files import JsonObject, canonical_json
from smimbench.problem.problem import Specification, without
from smimbench.registry.registry import find_metric, is_worse
from smimbench.report.row import Row, RowEntry, distinguish, grouped
from smimbench.report.statistics import (
    Change,
    change_between,
    count_runs,
    failed_runs,
    mean_change,
    shared_instances,
)
from smimbench.suite.cells import is_same_setup
from smimbench.suite.schema import ORACLE

LEVEL = 0.997
"""Confidence level at which a change counts as clear. At 0.9985 there are half as many false alarms, with 10% wider intervals."""

ROUNDING = 1e-12
"""Relative change of a mean that counts as rounding: another order of sums changes the last bits of all runs alike."""

LOST_ESTIMATE = "no estimate any more"
FAILS_MORE = "more runs fail"
ONE_SIDED = ONLY_BEFORE, ONLY_AFTER = "only before", "only after"

ORDER = (LOST_ESTIMATE, FAILS_MORE, "worse", *ONE_SIDED, "differs", "within noise")
"""Verdicts on a change in the order in which they are listed, worst first; all others follow."""


SHARED_KEYS = (
    "problem", "algorithm", "backend", "alpha", "dimension", "metric", "component", "component_word",
    "dimension_letter", "theory", "own_theory", "own_theory_error", "no_theory", "bayes", "identity",
)  # fmt: skip
"""Keys of a row that a change holds once; they come from the candidate where it has the row."""

COMPARED_KEYS = {
    "": "mean",
    "_sem": "sem",
    "_seconds": "per_iteration",
    "_own_z": "own_z",
    "_ratio_to_bayes": "ratio_to_bayes",
    "_n": "n",
}
"""Keys of a row that a change holds for both tables, by the suffix that follows ``before`` or ``after``."""


@dataclass(frozen=True, slots=True)
class Judgment:
    """Change of a mean over runs between two tables, with its verdict.

    Attributes
    ----------
    percent, error_percent : float or None
        The change relative to the mean of the baseline, and its standard error, with ``dof`` degrees of freedom.
    interval : list of float or None
        Confidence interval of the absolute change.
    z : float or None
        The change in standard errors.
    """

    verdict: str
    percent: float | None = None
    error_percent: float | None = None
    dof: float | None = None
    interval: list[float] | None = None
    z: float | None = None

    @property
    def relative(self) -> Change | None:
        """The relative change with its standard error, both in percent; None if one of them is unknown."""
        if self.percent is None or self.error_percent is None or self.dof is None:
            return None
        return Change(self.percent, self.error_percent, self.dof)


@dataclass(frozen=True, slots=True)
class RowChange(RowEntry):
    """Change between a row of the baseline and the row of the candidate for the same runs.

    Attributes
    ----------
    row : Row
        The candidate's row, or else the baseline's, without hashes of code.
    baseline, candidate : Row or None
    judgment : Judgment
        Change of the mean.
    time_percent : float or None
        Change of the time per iteration, where the times are comparable.
    changed_code : list of str
        Items whose code differs, such as ``algorithm sgd``.
    """

    baseline: Row | None
    candidate: Row | None
    judgment: Judgment
    time_percent: float | None
    changed_code: list[str]

    def document(self) -> JsonObject:
        """Return the JSON document of the change."""
        row, judgment = self.row.document(), asdict(self.judgment)
        document = {key: row[key] for key in SHARED_KEYS}
        baseline = self.baseline.document() if self.baseline else {}
        candidate = self.candidate.document() if self.candidate else {}
        for ending, key in COMPARED_KEYS.items():
            document[f"before{ending}"] = baseline.get(key)
            document[f"after{ending}"] = candidate.get(key)
        verdict = judgment.pop("verdict")
        return {
            **document,
            "change_percent": judgment.pop("percent"),
            **judgment,
            "verdict": verdict,
            "time_percent": self.time_percent,
            "changed_code": self.changed_code,
        }


Pair = tuple[Row | None, Row | None]
"""Row of the baseline and row of the candidate; None in the table that lacks the row."""


def compare_rows(baseline: Sequence[Row], candidate: Sequence[Row]) -> list[RowChange]:
    """Match rows of two tables by problem, algorithm and grid point, and judge the changes of errors and times.

    Rows match if problem, algorithm, parameters and grid point are equal; versions and code of items may differ
    (``changed_code`` names the items whose code does). Labels play no role.

    A change is clear if its confidence interval excludes 0; differences are paired where both ran the same instances,
    otherwise (other root seed) the two means are independent. A clear change is ``better`` or ``worse``. An unclear one
    ``differs`` if it is for the worse on every shared instance, or if there is a single run. A larger share of runs without
    an estimate is ``more runs fail``. Where theory is 0, errors that both reached the suite's target are ``both at 0``. Times
    are compared only when both are trusted and of one machine.
    """
    pairs = _counterparts(baseline, candidate)
    rows = distinguish(
        replace(row, identity=row.identity.without("source"))
        for a, b in pairs
        if (row := b or a)
    )
    changes = []
    for row, (old_row, new_row) in zip(rows, pairs):
        time, code = None, []
        if new_row is None:
            judgment = Judgment(ONLY_BEFORE)
        elif old_row is None:
            judgment = Judgment(ONLY_AFTER)
        else:
            judgment = _judge_change(old_row, new_row)
            time = _time_change(old_row, new_row)
            code = _changed_code(old_row, new_row)
        changes.append(RowChange(row, old_row, new_row, judgment, time, code))
    return sorted(changes, key=_sort_key)


def _counterparts(baseline: Sequence[Row], candidate: Sequence[Row]) -> list[Pair]:
    """Pair the rows of two tables; a row without a counterpart is paired with None.

    A row without a counterpart of the same parameters is paired with the only row of the other table that agrees in all
    parameters that both have: another version of an item may have more parameters or use more samples.
    """
    unmatched = {_match_key(row): row for row in baseline}
    pairs: dict[tuple[object, ...], Pair] = {
        key: (unmatched.pop(key, None), row)
        for key, row in {_match_key(row): row for row in candidate}.items()
    }
    for key, (old_row, row) in pairs.items():
        if old_row is not None or row is None:
            continue
        similar = [
            other_key
            for other_key, similar_row in unmatched.items()
            if other_key[2:] == key[2:]
            and is_same_setup(_items(similar_row), _items(row))
        ]
        if len(similar) == 1:
            pairs[key] = unmatched.pop(similar[0]), row
    return [*pairs.values(), *((row, None) for row in unmatched.values())]


def _items(row: Row) -> dict[str, Specification]:
    """Return the items of a row (model, inputs, ..., algorithm) by their kind."""
    return {**row.identity.problem, "algorithm": row.identity.algorithm}


def _match_key(row: Row) -> tuple[object, ...]:
    """Return the key by which rows match: problem and algorithm without labels, versions and code, and grid point."""
    row_place, oracle = row.place, row.place.settings == ORACLE
    items = canonical_json(without("source", _items(row)))
    return (
        items,
        row_place.alpha,
        oracle,
        row_place.backend,
        row_place.nominal_alpha,
        row_place.dimension,
        row.metric,
        row.component,
    )


def _changed_code(baseline: Row, candidate: Row) -> list[str]:
    """List the items, such as ``algorithm sgd``, whose code differs from the baseline's."""
    old_items = _items(baseline)
    return [
        f"{kind} {item['name']}"
        for kind, item in _items(candidate).items()
        if isinstance(item, dict) and _sources(item) != _sources(old_items.get(kind))
    ]


def _sources(item: object) -> list[object]:
    """Return the hashes of the code of an item and of the items nested in it."""
    if not isinstance(item, dict):
        return []
    return [
        item.get("source"),
        *(_sources(inner) for inner in item.values() if isinstance(inner, dict)),
    ]


# -- verdicts -------------------------------------------------------------------------------------------------------------


def _judge_change(baseline: Row, candidate: Row) -> Judgment:
    """Judge the change of a mean; a larger share of failed runs takes precedence."""
    judgment = _judge_means(baseline, candidate)
    fails_more = _failed_share(candidate) > _failed_share(baseline)
    has_means = None not in (baseline.estimate.mean, candidate.estimate.mean)
    return (
        replace(judgment, verdict=FAILS_MORE) if fails_more and has_means else judgment
    )


def _judge_means(baseline: Row, candidate: Row) -> Judgment:
    """Judge the change of a mean without regard to failed runs."""
    if baseline.estimate.mean is None:
        is_none = candidate.estimate.mean is None
        return Judgment("unchanged" if is_none else "estimates now")
    if candidate.estimate.mean is None:
        return Judgment(LOST_ESTIMATE)
    values, new_values = baseline.estimate.values, candidate.estimate.values
    shared = shared_instances(values, new_values)
    mean, new_mean = _mean_on(shared, baseline), _mean_on(shared, candidate)
    if math.isclose(mean, new_mean, rel_tol=ROUNDING, abs_tol=0.0):
        return Judgment("unchanged", percent=0.0, z=0.0)
    metric = find_metric(candidate.metric)
    percent = 100 / abs(mean) if mean else None
    relative = percent and percent * (new_mean - mean)
    is_zero = metric.direction == "lower" and candidate.theory.value == 0
    if is_zero and max(mean, new_mean) <= candidate.target:
        return Judgment("both at 0", relative)
    worse = is_worse(metric, mean, new_mean)
    unclear = "differs" if worse else "no worse"
    change = change_between(values, new_values)
    if change is None:
        return Judgment(unclear, relative)
    half = change.half_width(LEVEL)
    verdict = "worse" if worse else "better"
    if abs(change.value) <= half:
        worse_on = [is_worse(metric, values[k], new_values[k]) for k in shared]
        is_everywhere = bool(shared) and set(worse_on) == {worse}
        verdict = unclear if is_everywhere else "within noise"
    return Judgment(
        verdict,
        relative,
        percent and percent * change.error,
        change.dof,
        [change.value - half, change.value + half],
        change.z,
    )


def _mean_on(instances: Sequence[str], row: Row) -> float:
    """Mean of a row over the given instances; over all instances of the row if none are given."""
    values, mean = row.estimate.values, row.estimate.mean
    if len(instances) in (0, len(values)) and mean is not None:
        return mean
    return float(np.mean([values[name] for name in instances]))


def _failed_share(row: Row) -> float:
    return failed_runs(row) / max(1, count_runs(row.runs.status_counts))


def _time_change(baseline: Row, candidate: Row) -> float | None:
    old_cost, new_cost = baseline.cost, candidate.cost
    if not (old_cost.trusted and new_cost.trusted):
        return None
    if old_cost.machines != new_cost.machines:
        return None
    if not old_cost.per_iteration or not new_cost.per_iteration:
        return None
    return 100 * (new_cost.per_iteration / old_cost.per_iteration - 1)


def _sort_key(change: RowChange) -> tuple[float, float]:
    verdict = change.judgment.verdict
    rank = ORDER.index(verdict) if verdict in ORDER else len(ORDER)
    return rank, -abs(change.judgment.percent or 0.0)


@dataclass(frozen=True, slots=True)
class OverallChange(RowEntry):
    """Mean change of one metric of an algorithm over ``rows`` rows, with the half-width of its confidence interval."""

    rows: int
    judgment: Judgment
    half_width: float

    def document(self) -> JsonObject:
        """Return the JSON document of the change."""
        row, judgment = self.row.document(), self.judgment
        return {
            **{key: row[key] for key in OVERALL_KEYS},
            "rows": self.rows,
            "change_percent": judgment.percent,
            "half_width": self.half_width,
            "verdict": judgment.verdict,
        }


OVERALL_KEYS = ("problem", "algorithm", "backend", "metric", "component")
"""Keys of a row that the JSON document of an overall change holds."""


def overall_changes(changes: Sequence[RowChange]) -> list[OverallChange]:
    """Average the changes of each metric of an algorithm over the sample ratios and dimensions of a problem.

    A change that is unclear in every single row may be clear in their mean. Metrics with a single row are omitted.
    """

    def line(change: RowChange) -> tuple[object, ...]:
        row_place = change.place
        return (
            row_place.problem,
            row_place.algorithm,
            row_place.backend,
            change.metric,
            change.component,
        )

    overall = []
    known_changes = [change for change in changes if change.judgment.relative]
    for line_changes in grouped(known_changes, line).values():
        direction = find_metric(line_changes[0].metric).direction
        # A change of the mean is no distance from 1.
        if len(line_changes) < 2 or direction == "one":
            continue
        relative = (change.judgment.relative for change in line_changes)
        mean = mean_change([change for change in relative if change])
        half = mean.half_width(LEVEL)
        verdict = "worse" if (mean.value > 0) == (direction == "lower") else "better"
        if abs(mean.value) <= half:
            verdict = "within noise"
        judgment = Judgment(verdict, mean.value)
        overall.append(
            OverallChange(line_changes[0].row, len(line_changes), judgment, half)
        )
    return overall


def exceeds(
    judgment: Judgment, percent: float, time_percent: float | None = None
) -> bool:
    """Return whether an error is worse, or a time slower, by more than ``percent``, or the row exists in one table only."""
    if judgment.verdict in (LOST_ESTIMATE, FAILS_MORE, *ONE_SIDED):
        return True
    if (time_percent or 0.0) > percent:
        return True
    size = math.inf if judgment.percent is None else abs(judgment.percent)
    return judgment.verdict in ("worse", "differs") and size > percent
