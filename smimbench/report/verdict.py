"""Verdict per problem: which algorithm is closest to the Bayes-optimal error, by what ratio, and at what cost; and a summary."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from smimbench.files import JsonObject
from smimbench.registry.metrics import find_metric, metric_label
from smimbench.report.columns import measured, number, ratio_words, seconds
from smimbench.report.labels import (
    grouped,
    letter_of,
    names_with_backend,
    place,
    summed_statuses,
)
from smimbench.report.prediction import Agreement, agreement, is_below_optimum
from smimbench.report.row import Estimate, OptimalValue, Row
from smimbench.report.statistics import (
    ZERO,
    MeanAndError,
    change_between,
    count_runs,
    failed_runs,
    mean_and_error,
    mean_of,
)
from smimbench.suite.schema import ORACLE

PREDICTED = {
    "yes": "matches its prediction",
    "no": "does not match its prediction",
    "finite size": "finite size may hide how far it is from its prediction",
    "too few runs": "too few runs to compare with its prediction",
    None: "no prediction",
}
"""Whether an algorithm matches its prediction, in words."""

REFUSED = ("no", "far off")
"""Answers that say that something is wrong."""

BELOW = "below the optimum: samples, teacher or code?"
"""What is said of an algorithm that is better than possible."""

TIE = 0.95
"""Level of the intervals of paired differences: within it two algorithms are not told apart. Nearer to 1, more are tied."""

Rows = list[Row]


@dataclass(frozen=True, slots=True)
class Compared:
    """Geometric mean ``ratio`` of an error to that of ``other``, with its interval by Student's t on the logarithms."""

    other: str
    ratio: float
    interval: list[float]


@dataclass(frozen=True, slots=True)
class Contender:
    """An algorithm among those that were run on a problem.

    Attributes
    ----------
    settings : str
        Where its parameters are from.
    ratio_to_bayes, ratio_error : float or None
        Geometric mean over the sample ratios whose Bayes-optimal error is not 0 of the error (summed over components) over the
        Bayes-optimal one, at this size where that is known, with its standard error.
    where_zero, zero_reached : float or None, bool or None
        The largest error where theory says 0, and whether it is below the target.
    points, missing, unsolved : int
        Sample ratios with and without an estimate, and with one where the Bayes-optimal error is not known.
    near_seconds, near_fraction : float or None
        Median time to within 5% of the optimum (None: never at one of them), and the share of runs that get there.
    seconds, iterations : float or None
        Of a run.
    failed : int
        Runs without an estimate, which ratios and ties count as ``with_failures`` does.
    moving : int
        Runs whose error still moved at their last step.
    below_optimum : bool
        Whether its error is smaller than possible.
    compared : Compared or None
        With the algorithm that was asked for, or the best; None: no two runs on the same instances.
    mean_error : MeanAndError or None
        Only where the optimal error is known nowhere: the geometric mean of the errors, by which algorithms are ranked then.
    """

    algorithm: str
    settings: str
    ratio_to_bayes: float | None
    ratio_error: float | None
    where_zero: float | None
    zero_reached: bool | None
    points: int
    missing: int
    near_seconds: float | None
    near_fraction: float | None
    seconds: float | None
    iterations: float | None
    status_counts: dict[str, int]
    moving: int
    unsolved: int
    failed: int
    agreement: Agreement
    below_optimum: bool
    compared: Compared | None = None
    mean_error: MeanAndError | None = None

    def document(self) -> JsonObject:
        """As JSON has it."""
        flat = asdict(self)
        compared, mean_error, unsolved = (
            self.compared,
            self.mean_error,
            flat.pop("unsolved"),
        )
        del flat["agreement"], flat["mean_error"], flat["below_optimum"]
        failed = flat.pop("failed")
        if unsolved and mean_error is None:
            flat["unsolved"] = unsolved
        if failed:
            flat["failed"] = failed
        flat |= {**self.agreement.document(), "below_optimum": self.below_optimum}
        del flat["compared"]
        flat["compared"] = compared and {
            "with": compared.other,
            "ratio": compared.ratio,
            "interval": compared.interval,
        }
        if mean_error is not None:
            flat |= {
                "mean_error": mean_error.mean,
                "mean_error_sem": mean_error.sem,
                "unsolved": unsolved,
            }
        return flat


@dataclass(frozen=True, slots=True)
class Verdict:
    """All algorithms that were run on a problem, best first.

    Attributes
    ----------
    metric : str or None
        The first of the rows of which less is better; None: there is none.
    dimension : int
        The largest.
    tied : list of str
        Those that the runs do not tell apart from the first: 0 is within the interval of the difference of logarithms, paired
        by instance.
    """

    problem: str
    metric: str | None
    dimension: int
    contenders: list[Contender]
    dimension_letter: str
    tied: list[str]

    def document(self) -> JsonObject:
        """As JSON has it."""
        return {
            "problem": self.problem,
            "metric": self.metric,
            "dimension": self.dimension,
            "contenders": [contender.document() for contender in self.contenders],
            "dimension_letter": self.dimension_letter,
            "tied": self.tied,
        }


def verdicts(rows: Sequence[Row], against: str | None = None) -> list[Verdict]:
    """One verdict per problem; ``against``: the algorithm with which others are compared, by default the best."""
    groups = grouped(contenders(rows), lambda row: row.place.problem)
    return [_verdict(problem, members, against) for problem, members in groups.items()]


def contenders(rows: Sequence[Row]) -> list[Row]:
    """Rows of algorithms that did not start near the teacher."""
    return [row for row in rows if row.place.settings != ORACLE]


def _verdict(problem: str, rows: Rows, against: str | None) -> Verdict:
    names = sorted(
        dict.fromkeys(row.metric for row in rows), key=lambda name: name != "mse"
    )
    metric = next(
        (name for name in names if find_metric(name).direction == "lower"), None
    )
    largest = max(row.place.dimension for row in rows)
    own = [
        row for row in rows if row.metric == metric and row.place.dimension == largest
    ]
    solved = any(map(_is_solved, grouped(own, place).values()))
    ranked = with_failures(
        own if solved else [replace(row, optimum=UNIT) for row in own]
    )
    name, ratios, logs = (
        names_with_backend(own),
        {row.place.nominal_alpha for row in own},
        _log_ratios(ranked),
    )
    rows_of, ranking = grouped(rows, name), []
    for label, members in grouped(ranked, name).items():
        # A sample ratio that others were run at and this one was not is no estimate, either.
        missed = len(ratios - {row.place.nominal_alpha for row in members})
        ranking.append(_contender(label, members, missed, rows_of[label], metric))
    ranking.sort(key=_rank)
    tied = [one.algorithm for one in ranking[1:] if _is_tied(logs, ranking[0], one)]
    # What drew samples of its own saw other data, and more of it, than the others.
    alone = {name(row) for row in own if not _is_on_its_data(row)}
    for i, one in enumerate(ranking):
        other = (
            against if against is not None and against in logs else ranking[0].algorithm
        )
        compared = (
            None
            if alone & {other, one.algorithm}
            else _compared(logs, other, one.algorithm)
        )
        ranking[i] = replace(one, compared=compared)
    if not solved:
        ranking = [
            replace(
                one,
                mean_error=MeanAndError(one.ratio_to_bayes, one.ratio_error),
                unsolved=one.points,
                ratio_to_bayes=None,
                ratio_error=None,
                near_fraction=None,
            )
            for one in ranking
        ]
    return Verdict(problem, metric, largest, ranking, letter_of(rows), tied)


UNIT = OptimalValue(1.0, None, 1.0, None, "")
"""What stands for the optimum where none is known: ratios to it are the errors themselves."""


def with_failures(rows: Rows) -> Rows:
    """Rows in which failed runs, counted as ``failed``, have a value: the largest of all algorithms at that point.

    A squared error is then at least 1, that of the prior mean. Of an algorithm without any estimate there is nothing to rank.
    """
    points, counted = grouped(rows, _point), []
    estimated = {
        (row.place.problem, row.place.algorithm, row.place.backend)
        for row in rows
        if row.estimate.values
    }
    for row in rows:
        failed = failed_runs(row)
        if (
            not failed
            or (row.place.problem, row.place.algorithm, row.place.backend)
            not in estimated
        ):
            counted.append(row)
            continue
        instances = [
            instance
            for other in points[_point(row)]
            for instance in other.estimate.values.items()
        ]
        worst = max((value for _, value in instances), default=0.0)
        worst = max(worst, 1.0) if row.metric == "mse" else worst
        names = [
            name for name in dict(instances) if name not in row.estimate.values
        ] + [f"failed/{k}" for k in range(failed)]
        values = row.estimate.values | dict.fromkeys(names[:failed], worst)
        estimate = Estimate(
            values,
            row.estimate.n,
            *mean_and_error(np.array([*values.values()])),
            failed,
        )
        counted.append(replace(row, estimate=estimate))
    return counted


def _point(row: Row) -> tuple[Any, ...]:
    return (
        row.place.problem,
        row.place.nominal_alpha,
        row.place.dimension,
        row.metric,
        row.component,
    )


def _is_tied(
    logs: Mapping[str, Mapping[Any, float]], best: Contender, one: Contender
) -> bool:
    """Whether runs do not tell an algorithm from the best; one that fails more often is none."""
    if None in (one.ratio_to_bayes, best.ratio_to_bayes) or one.missing != best.missing:
        return False
    change = _compared(logs, best.algorithm, one.algorithm)
    fails_more = one.failed > best.failed
    return not fails_more and (
        change is None or change.interval[0] <= 1 <= change.interval[1]
    )


def _compared(
    logs: Mapping[str, Mapping[Any, float]], other: str, name: str
) -> Compared | None:
    """Ratio of the errors of two algorithms, with its interval."""
    change = (
        change_between(logs[other], logs[name])
        if other != name and logs[other] and logs[name]
        else None
    )
    if change is None:
        return None
    half = change.half_width(TIE)
    interval = [math.exp(change.value + side * half) for side in (-1, 1)]
    return Compared(other, math.exp(change.value), interval)


def _contender(
    label: str, rows: Rows, missed: int, all_rows: Rows, metric: str | None
) -> Contender:
    points = list(grouped(rows, place).values())
    firsts, solved = (
        [layers[0] for layers in points],
        [layers for layers in points if _is_solved(layers)],
    )
    known = [
        layers
        for layers in solved
        if all(row.estimate.mean is not None for row in layers)
    ]
    without = sum(
        0 < layers[0].estimate.failed == len(layers[0].estimate.values)
        for layers in known
    )
    target = rows[0].target  # one for the suite
    logs, errors, zeros = [], [], []
    for layers in known:
        mean = math.fsum(row.estimate.mean or 0.0 for row in layers)
        optimum = math.fsum(row.optimum.value or 0.0 for row in layers)
        if optimum <= ZERO * target:
            zeros.append(mean)
        elif mean > 0:
            logs.append(math.log(mean / optimum))
            sems = (
                math.inf if row.estimate.sem is None else row.estimate.sem / mean
                for row in layers
            )
            errors.append(
                math.hypot(
                    *sems, *((row.optimum.error or 0.0) / optimum for row in layers)
                )
            )
    ratio = math.exp(math.fsum(logs) / len(logs)) if logs else None
    error = ratio * math.hypot(*errors) / len(logs) if ratio else math.inf
    near = [layers[0].cost.near["0.05"] for layers in solved]
    unsolved = sum(
        layers[0].estimate.mean is not None
        for layers in points
        if not _is_solved(layers)
    )
    times, failed = (
        [one.seconds for one in near],
        sum(row.estimate.failed or failed_runs(row) for row in firsts),
    )
    return Contender(
        algorithm=label,
        settings=rows[0].place.settings,
        ratio_to_bayes=ratio,
        ratio_error=error if math.isfinite(error) else None,
        where_zero=max(zeros, default=None),
        zero_reached=max(zeros) <= target if zeros else None,
        points=len(known) - without,
        missing=len(points) - len(known) + without + missed,
        near_seconds=None if None in times or not times else float(np.median(times)),
        near_fraction=mean_of([one.fraction or 0.0 for one in near]) if known else None,
        seconds=mean_of(
            [row.cost.seconds for row in firsts if row.cost.seconds is not None]
        ),
        iterations=mean_of(
            [row.cost.iterations for row in firsts if row.cost.iterations is not None]
        ),
        status_counts=summed_statuses(firsts),
        moving=sum(row.runs.moving for row in firsts),
        unsolved=unsolved,
        failed=failed,
        agreement=agreement(all_rows, metric),
        below_optimum=is_below_optimum(all_rows, metric),
    )


def _is_solved(layers: Rows) -> bool:
    return all(row.optimum.limit is not None for row in layers)


def _rank(one: Contender) -> tuple[float, ...]:
    """Sort key: algorithms with valid estimates everywhere first, then by error / optimal, then by error where theory is 0.

    What was seen only where theory is 0 has no ratio: it comes after those that have one. An online run is there often, at
    the sample ratio of all its fresh samples, which the others never had.
    """
    ratio, zero = one.ratio_to_bayes, one.where_zero
    first = (one.below_optimum, one.missing)
    if ratio is None:
        return *first, math.inf, math.inf if zero is None else zero
    return *first, ratio, zero or 0.0


# -- in words -------------------------------------------------------------------------------------------------------------


def verdict_line(verdict: Verdict) -> str:
    """One line: the best algorithm, its error over the optimal one, whether it matches its prediction, seconds."""
    if verdict.metric is None:
        return f"{verdict.problem}: no verdict, because no metric of this suite is an error"
    best = verdict.contenders[0]
    unsolved = max(one.unsolved for one in verdict.contenders)
    if not best.points:
        return f"{verdict.problem}: no algorithm has made an estimate"
    parts = [
        f"{verdict.problem}: {best.algorithm}{' is best' if len(verdict.contenders) > 1 else ''}"
    ]
    if best.ratio_to_bayes is not None:
        parts.append(
            f"{ratio_words(best.ratio_to_bayes, best.ratio_error)} times the optimal error"
        )
    parts += _error_words(best) + _failure_words(best)
    if best.compared:
        parts.append(compared_words(best.compared))
    if best.where_zero is not None and (
        best.ratio_to_bayes is None or not best.zero_reached
    ):
        parts.append(
            f"{'0' if best.zero_reached else number(best.where_zero)} where the optimal error is 0"
        )
    if best.mean_error is None:
        parts.append(prediction_words(best))
    if best.seconds is not None:
        parts.append(f"{seconds(best.seconds)} per run")
    if verdict.tied:
        parts.append(f"tied with {tied_words(verdict)}")
    if cheats := [
        one.algorithm
        for one in verdict.contenders
        if one.below_optimum and one is not best
    ]:
        parts.append(f"{', '.join(cheats)}: {BELOW}")
    if best.mean_error is not None:
        parts.append("the optimal error is not known")
    elif unsolved:
        parts.append(
            f"without {unsolved} of {best.points + unsolved} sample ratios, whose optimal error is not known"
        )
    return ", ".join(parts)


def contender_line(one: Contender) -> str:
    """One line of another algorithm: its error over that of the one it is compared with, and over the optimal one."""
    parts = []
    if one.compared:
        parts.append(compared_words(one.compared))
    if one.ratio_to_bayes is not None:
        parts.append(f"{one.ratio_to_bayes:.3g} x optimal")
    parts += _error_words(one) + _failure_words(one)
    if one.where_zero is not None and (
        one.ratio_to_bayes is None or not one.zero_reached
    ):
        parts.append(
            f"{'0' if one.zero_reached else number(one.where_zero, 2)} where the optimal error is 0"
        )
    if one.below_optimum or one.agreement.prediction in REFUSED:
        parts.append(prediction_words(one))
    return f"{one.algorithm}: {', '.join(parts) or 'no estimate'}"


def _error_words(one: Contender) -> list[str]:
    """The error where no optimal error is known."""
    if one.mean_error is None or one.mean_error.mean is None:
        return []
    several = (
        f" (geometric mean of {one.points} sample ratios)" if one.points > 1 else ""
    )
    return [f"error {measured(*one.mean_error)}{several}"]


def _failure_words(one: Contender) -> list[str]:
    """How many runs have no estimate."""
    return (
        [f"{one.failed} of {count_runs(one.status_counts)} runs failed"]
        if one.failed
        else []
    )


def compared_words(compared: Compared) -> str:
    """The ratio of two errors with its interval."""
    low, high = compared.interval
    return f"{compared.ratio:.3g} x {compared.other} ({low:.3g} to {high:.3g})"


def prediction_words(one: Contender) -> str:
    """Whether an algorithm matches its prediction, with the deviation that runs show, or would have shown."""
    if one.below_optimum:
        return BELOW
    return _far_off_words(one) or PREDICTED[one.agreement.prediction] + _how_far(one)


def prediction_cell(one: Contender) -> str:
    """Whether an algorithm matches its prediction, as a table entry."""
    if one.below_optimum:
        return BELOW
    said = {None: "none", "finite size": "finite size?"}.get(
        one.agreement.prediction, one.agreement.prediction
    )
    return _far_off_words(one) or f"{said}{_how_far(one)}"


def _far_off_words(one: Contender) -> str:
    """How many runs are far off, if these are what does not match the prediction."""
    if one.agreement.far_off is None:
        return ""
    count, runs = one.agreement.far_off
    return f"{count} of {runs} runs {'is' if count == 1 else 'are'} far off"


def _share(value: float) -> str:
    """A relative deviation to two digits."""
    return f"{value:+z.0%}" if abs(value) >= 0.095 else f"{value:+z.1%}"


def _how_far(one: Contender) -> str:
    agreement = one.agreement
    if agreement.prediction == "yes" and agreement.would_have_seen is not None:
        return f" (would have seen {_share(agreement.would_have_seen)[1:]})"
    if (
        agreement.prediction != "no"
        or agreement.deviation is None
        or agreement.deviation_of is None
    ):
        return ""
    what = (
        ""
        if agreement.deviation_of == "mse"
        else f"{metric_label(agreement.deviation_of)} "
    )
    return f" ({what}{_share(agreement.deviation)}, z {agreement.deviation_z:.3g})"


def tied_words(verdict: Verdict) -> str:
    """Names of the algorithms that are tied with the best, or the first of them and how many more there are."""
    names = verdict.tied
    return (
        " and ".join(names)
        if len(names) <= 2
        else f"{names[0]} and {len(names) - 1} more"
    )


def near_words(one: Contender) -> str:
    """Text in place of a time to within 5% of the optimum (never or partly); blank if nothing was run."""
    return (
        "" if one.near_fraction is None else "partly" if one.near_fraction else "never"
    )


# -- all problems together ------------------------------------------------------------------------------------------------


Errors = dict[str, dict[tuple[Any, ...], tuple[float, float]]]
"""Errors with the Bayes-optimal ones, by algorithm and instance."""


def errors(rows: Sequence[Row]) -> Errors:
    """Error and Bayes-optimal error, both summed over components, of each algorithm (on each backend) on each instance."""
    found: Errors = {}
    name = names_with_backend(rows)
    for layers in filter(_is_solved, grouped(rows, place).values()):
        first, optimum = (
            layers[0],
            math.fsum(row.optimum.value or 0.0 for row in layers),
        )
        for instance in sorted(
            set.intersection(*(set(row.estimate.values) for row in layers))
        ):
            where = (
                first.place.problem,
                first.place.nominal_alpha,
                first.place.dimension,
                instance,
            )
            found.setdefault(name(first), {})[where] = (
                math.fsum(row.estimate.values[instance] for row in layers),
                optimum,
            )
    return found


def on_their_data(rows: Sequence[Row]) -> list[Row]:
    """Rows of the error without algorithms that draw samples of their own, and stand at a sample ratio well above the one that
    was asked for: they saw other data, and more of it, than the instance has.
    """
    return [
        row for row in contenders(rows) if row.metric == "mse" and _is_on_its_data(row)
    ]


def _is_on_its_data(row: Row) -> bool:
    return row.place.alpha <= 1.5 * row.place.nominal_alpha


def _log_ratios(rows: Sequence[Row]) -> defaultdict[str, dict[Any, float]]:
    """Logarithm of the ratio to the Bayes-optimal error where that error is not 0, by algorithm and instance."""
    zero, found = (
        ZERO * max((row.target for row in rows), default=0.0),
        defaultdict[str, dict[Any, float]](dict),
    )
    for name, known in errors(rows).items():
        found[name] = {
            key: math.log(e / optimum)
            for key, (e, optimum) in known.items()
            if optimum > zero and e > 0
        }
    return found


def summary(rows: Sequence[Row]) -> list[JsonObject]:
    """One entry for each algorithm (on each backend) over all problems of a suite, best first; empty for a single one.

    Returns
    -------
    list of dict
        ``algorithm``; ``instances`` that it has an estimate on, ``all`` that anyone has; ``ratio_to_bayes``, geometric mean
        over those whose Bayes-optimal error is not 0; ``to_best``, the geometric mean of its error over that of the
        first algorithm on the same instances, with ``interval`` by Student's t on the paired logarithms (None for the first).
    """
    own = on_their_data(rows)
    known, logs = errors(own), _log_ratios(with_failures(own))
    if len(known) < 2:
        return []
    everything = len({where for one in known.values() for where in one})
    ratios = {
        name: math.exp(math.fsum(one.values()) / len(one)) if one else None
        for name, one in logs.items()
    }
    names = sorted(
        logs,
        key=lambda name: (
            -len(known[name]),
            math.inf if ratios[name] is None else ratios[name],
        ),
    )
    first, found = logs[names[0]], []
    for name in names:
        paired = (
            _compared(logs, names[0], name)
            if len(first.keys() & logs[name].keys()) > 1
            else None
        )
        found.append({
            "algorithm": name, "instances": len(known[name]), "all": everything, "ratio_to_bayes": ratios[name],
            "to_best": paired and paired.ratio, "interval": paired and paired.interval,
        })  # fmt: skip
    return found
