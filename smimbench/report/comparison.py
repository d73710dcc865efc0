"""Comparison of two results tables: changes of errors and times, worst first, and whether a change exceeds a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from smimbench.files import JsonObject, canonical_json, pick
from smimbench.problem.problem import Specification, without
from smimbench.registry.registry import find_metric, is_worse
from smimbench.report.results import with_unique_labels
from smimbench.report.row import Number, Row, RowEntry, grouped, place
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
    "_ratio_to_limit": "ratio_to_limit",
    "_z_at_size": "z_at_size",
    "_n": "n",
}
"""Keys of a row that a change holds for both tables, by the suffix that follows ``before`` or ``after``."""


@dataclass(frozen=True, slots=True)
class Judgment:
    """Change of a mean over runs between two results tables (baseline and candidate), in percent with its standard error, the
    error's degrees of freedom ``dof``, confidence ``interval`` and z-score ``z``, and the ``verdict`` on it, in words
    (``better``, ``worse``, ``within noise``, ...).

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
    percent: Number = None
    error_percent: Number = None
    dof: Number = None
    interval: list[float] | None = None
    z: Number = None

    @property
    def relative(self) -> Change | None:
        """The relative change of the mean with its standard error, both in percent; None if one of them is unknown."""
        if self.percent is None or self.error_percent is None or self.dof is None:
            return None
        return Change(self.percent, self.error_percent, self.dof)


@dataclass(frozen=True, slots=True)
class RowChange(RowEntry):
    """Change between a row of the baseline and the row of the candidate for the same runs: the judged change of the mean, the
    change of the time per iteration in percent, and the items whose code differs.

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
    time_percent: Number
    changed_code: list[str]

    def document(self) -> JsonObject:
        """Return the change as a JSON object."""
        row = self.row.document()
        judgment = asdict(self.judgment)
        document = pick(row, SHARED_KEYS)
        baseline = self.baseline.document() if self.baseline else {}
        candidate = self.candidate.document() if self.candidate else {}
        for suffix, key in COMPARED_KEYS.items():
            document[f"before{suffix}"] = baseline.get(key)
            document[f"after{suffix}"] = candidate.get(key)
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
    """Match the rows of two results tables (``baseline`` and ``candidate``) by problem, algorithm and grid point, and judge the
    changes of errors and times; worst changes first.

    Rows match if problem, algorithm, parameters and grid point are equal; versions and code of items may differ
    (``changed_code`` names the items whose code does). Labels play no role.

    A change is clear if its confidence interval excludes 0; differences are paired where both ran the same instances,
    otherwise (other root seed) the two means are independent. A clear change is ``better`` or ``worse``. An unclear one
    ``differs`` if it is for the worse on every shared instance, or if there is a single run. A larger share of runs without
    an estimate is ``more runs fail``. Where theory is 0, errors that both reached the suite's target are ``both at 0``. Times
    are compared only when both are trusted and of one machine.
    """
    pairs = _row_pairs(baseline, candidate)
    rows = with_unique_labels(
        replace(row, identity=row.identity.without("source"))
        for baseline_row, candidate_row in pairs
        if (row := candidate_row or baseline_row)
    )
    changes = []
    for row, (old_row, new_row) in zip(rows, pairs):
        time_change, changed_code = None, []
        if new_row is None:
            judgment = Judgment(ONLY_BEFORE)
        elif old_row is None:
            judgment = Judgment(ONLY_AFTER)
        else:
            judgment = _judge_change(old_row, new_row)
            time_change = _time_change(old_row, new_row)
            changed_code = _changed_code(old_row, new_row)
        changes.append(
            RowChange(row, old_row, new_row, judgment, time_change, changed_code)
        )
    return sorted(changes, key=_sort_key)


def _row_pairs(baseline: Sequence[Row], candidate: Sequence[Row]) -> list[Pair]:
    """Pair the rows of two tables of results that stand for the same runs (baseline row, candidate row); a row without a
    counterpart is paired with None.

    A row without a counterpart of the same parameters is paired with the only row of the other table that agrees in all
    parameters that both have: another version of an item may have more parameters or use more samples.
    """
    unmatched_rows = {_match_key(old_row): old_row for old_row in baseline}
    pairs: dict[tuple[object, ...], Pair] = {
        key: (unmatched_rows.pop(key, None), new_row)
        for key, new_row in {
            _match_key(new_row): new_row for new_row in candidate
        }.items()
    }
    for key, (old_row, new_row) in pairs.items():
        if old_row is not None or new_row is None:
            continue
        similar_keys = [
            other_key
            for other_key, similar_row in unmatched_rows.items()
            if other_key[2:] == key[2:]
            and is_same_setup(_items_by_kind(similar_row), _items_by_kind(new_row))
        ]
        if len(similar_keys) == 1:
            pairs[key] = unmatched_rows.pop(similar_keys[0]), new_row
    return [*pairs.values(), *((old_row, None) for old_row in unmatched_rows.values())]


def _items_by_kind(row: Row) -> dict[str, Specification]:
    """Return the items of a row (model, inputs, ..., algorithm) by their kind."""
    return {**row.identity.problem, "algorithm": row.identity.algorithm}


def _match_key(row: Row) -> tuple[object, ...]:
    """Return the key by which rows match: problem and algorithm without labels, versions and code, and grid point."""
    row_place = row.place
    starts_at_teacher = row.place.settings == ORACLE
    specification = canonical_json(without("source", _items_by_kind(row)))
    return (
        specification,
        row_place.alpha,
        starts_at_teacher,
        row_place.backend,
        row_place.nominal_alpha,
        row_place.dimension,
        row.metric,
        row.component,
    )


def _changed_code(baseline: Row, candidate: Row) -> list[str]:
    """List the items, such as ``algorithm sgd``, whose code differs between a row of the baseline and one of the candidate."""
    old_items = _items_by_kind(baseline)
    return [
        f"{kind} {item['name']}"
        for kind, item in _items_by_kind(candidate).items()
        if isinstance(item, dict)
        and _code_hashes(item) != _code_hashes(old_items.get(kind))
    ]


def _code_hashes(item: object) -> list[object]:
    """Return the hashes of the code of an item and of the items nested in it."""
    if not isinstance(item, dict):
        return []
    return [
        item.get("source"),
        *(
            _code_hashes(nested_item)
            for nested_item in item.values()
            if isinstance(nested_item, dict)
        ),
    ]


# -- verdicts -------------------------------------------------------------------------------------------------------------


def _judge_change(baseline: Row, candidate: Row) -> Judgment:
    """Judge the change of a mean over runs from the row of the baseline to that of the candidate; a larger share of failed
    runs takes precedence over the mean.
    """
    judgment = _judge_means(baseline, candidate)
    fails_more = _failed_fraction(candidate) > _failed_fraction(baseline)
    has_means = None not in (baseline.estimate.mean, candidate.estimate.mean)
    return (
        replace(judgment, verdict=FAILS_MORE) if fails_more and has_means else judgment
    )


def _judge_means(baseline: Row, candidate: Row) -> Judgment:
    """Judge the change of a mean over runs, from the row of the baseline to that of the candidate, without regard to failed
    runs. ``worse_by_instance`` says for each shared instance whether its value is worse.
    """
    if baseline.estimate.mean is None:
        still_has_none = candidate.estimate.mean is None
        return Judgment("unchanged" if still_has_none else "estimates now")
    if candidate.estimate.mean is None:
        return Judgment(LOST_ESTIMATE)
    old_values = baseline.estimate.values
    new_values = candidate.estimate.values
    shared_names = shared_instances(old_values, new_values)
    old_mean = _mean_on(shared_names, baseline)
    new_mean = _mean_on(shared_names, candidate)
    if math.isclose(old_mean, new_mean, rel_tol=ROUNDING, abs_tol=0.0):
        return Judgment("unchanged", percent=0.0, z=0.0)
    metric = find_metric(candidate.metric)
    percent_per_unit = 100 / abs(old_mean) if old_mean else None
    relative_change = percent_per_unit and percent_per_unit * (new_mean - old_mean)
    theory_is_zero = metric.direction == "lower" and candidate.theory.value == 0
    if theory_is_zero and max(old_mean, new_mean) <= candidate.target:
        return Judgment("both at 0", relative_change)
    has_worsened = is_worse(metric, old_mean, new_mean)
    unclear_verdict = "differs" if has_worsened else "no worse"
    change = change_between(old_values, new_values)
    if change is None:
        return Judgment(unclear_verdict, relative_change)
    half_width = change.half_width(LEVEL)
    verdict = "worse" if has_worsened else "better"
    if abs(change.value) <= half_width:
        worse_by_instance = [
            is_worse(metric, old_values[instance], new_values[instance])
            for instance in shared_names
        ]
        is_same_on_every_instance = bool(shared_names) and set(worse_by_instance) == {
            has_worsened
        }
        verdict = unclear_verdict if is_same_on_every_instance else "within noise"
    return Judgment(
        verdict,
        relative_change,
        percent_per_unit and percent_per_unit * change.error,
        change.dof,
        [change.value - half_width, change.value + half_width],
        change.z,
    )


def _mean_on(instances: Sequence[str], row: Row) -> float:
    """Return the mean of a row's metric over the runs on these ``instances``; over all runs of the row if none are given."""
    values, mean = row.estimate.values, row.estimate.mean
    if len(instances) in (0, len(values)) and mean is not None:
        return mean
    return float(np.mean([values[instance] for instance in instances]))


def _failed_fraction(row: Row) -> float:
    """Return the fraction of a row's runs that gave no estimate."""
    return failed_runs(row) / max(1, count_runs(row.runs.status_counts))


def _time_change(baseline: Row, candidate: Row) -> Number:
    """Return the change of the time per iteration from the row of the baseline to that of the candidate, in percent; None if the
    times are not comparable, as from two machines.
    """
    old_cost = baseline.cost
    new_cost = candidate.cost
    if not (old_cost.trusted and new_cost.trusted):
        return None
    if old_cost.machines != new_cost.machines:
        return None
    if not old_cost.per_iteration or not new_cost.per_iteration:
        return None
    return 100 * (new_cost.per_iteration / old_cost.per_iteration - 1)


def _sort_key(change: RowChange) -> tuple[float, float]:
    """Key that sorts changes by verdict, worst first, then by the size of the change."""
    verdict = change.judgment.verdict
    rank = ORDER.index(verdict) if verdict in ORDER else len(ORDER)
    return rank, -abs(change.judgment.percent or 0.0)


@dataclass(frozen=True, slots=True)
class OverallChange(RowEntry):
    """Relative change of the mean of one metric of an algorithm between two tables, averaged over ``rows`` rows, with the
    half-width of its confidence interval in percent.
    """

    rows: int
    judgment: Judgment
    half_width: float

    def document(self) -> JsonObject:
        """Return the mean change as a JSON object."""
        row, judgment = self.row.document(), self.judgment
        return {
            **pick(row, OVERALL_KEYS),
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
    overall = []
    measured_changes = [change for change in changes if change.judgment.relative]
    for series_changes in grouped(
        measured_changes,
        lambda change: (*place(change)[:3], change.metric, change.component),
    ).values():
        direction = find_metric(series_changes[0].metric).direction
        # A change of the mean is no distance from 1.
        if len(series_changes) < 2 or direction == "one":
            continue
        relative_changes = (change.judgment.relative for change in series_changes)
        mean = mean_change([change for change in relative_changes if change])
        half_width = mean.half_width(LEVEL)
        has_worsened = (mean.value > 0) == (direction == "lower")
        verdict = "worse" if has_worsened else "better"
        if abs(mean.value) <= half_width:
            verdict = "within noise"
        judgment = Judgment(verdict, mean.value)
        overall.append(
            OverallChange(
                series_changes[0].row, len(series_changes), judgment, half_width
            )
        )
    return overall


def exceeds_limit(
    judgment: Judgment, limit_percent: float, time_percent: Number = None
) -> bool:
    """Return whether, by the ``judgment`` on its change, the error of a row is worse, or its time (``time_percent``) slower, by
    more than ``limit_percent``, or the row exists in one table only.
    """
    if judgment.verdict in (LOST_ESTIMATE, FAILS_MORE, *ONE_SIDED):
        return True
    if (time_percent or 0.0) > limit_percent:
        return True
    change_size = math.inf if judgment.percent is None else abs(judgment.percent)
    return judgment.verdict in ("worse", "differs") and change_size > limit_percent
