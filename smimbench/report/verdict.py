"""The verdict of each problem: which algorithm is nearest to the Bayes-optimal error, by what ratio, whether that may be
chance, and at what cost; the same over all problems together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import JsonObject
from smimbench.registry.metrics import find_metric
from smimbench.report.columns import FEW, number, ratio_words, seconds
from smimbench.report.labels import grouped, letter_of, names_with_backend, place, summed_statuses
from smimbench.report.statistics import ZERO, change_between, half_interval, mean_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


OWN = {
    "yes": "matches its prediction",
    "no": "does not match its prediction",
    "unclear": "too few runs to compare with its prediction",
    None: "no prediction",
}
"""Whether an algorithm matches its prediction, in words."""

NEAR = 0.05
"""Relative difference from a prediction that finite size may explain. Doubled, more runs agree."""

VAGUE = 0.2
"""Relative width of the interval of runs to a side above which they cannot say yes. Doubled, more runs say yes."""

TIE = 0.95
"""Level of the intervals of paired differences: within it two algorithms are not told apart. Nearer to 1, more are tied."""

Rows = list[JsonObject]


def verdicts(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """One entry per problem, with all algorithms that were run on it, best first.

    Returns
    -------
    list of dict
        ``problem``, ``metric`` (the first of the rows of which less is better; None: there is none), ``dimension`` (the
        largest), its ``dimension_letter``, ``contenders``, and ``tied``, the names of those that the runs do not tell apart
        from the first one: 0 is within the interval of the difference of logarithms, paired by instance.

        Each of the contenders has ``algorithm``; ``ratio_to_bayes``, the geometric mean over the sample ratios whose
        Bayes-optimal error is not 0 of the error (summed over components) over the Bayes-optimal one, with its standard error
        ``ratio_error``; ``where_zero``, the largest error where theory says 0; ``own_theory``, ``"yes"``, ``"no"``,
        ``"unclear"`` (too few runs, or too far apart, at some sample ratio) or None (it has none), with ``own_difference``, the
        relative distance that is largest; ``points`` and ``missing``, sample ratios with and without an estimate;
        ``near_seconds``, the median time to within 5% of Bayes (None: never at one of them); ``seconds`` and ``iterations``
        per run; ``status_counts``; ``moving``, runs whose error still moved at their last step; ``unsolved``, sample ratios
        with an estimate whose Bayes-optimal error is not known, only if there are any.
    """
    return [_verdict(problem, members) for problem, members in grouped(rows, lambda r: r["problem"]).items()]


def _verdict(problem: str, rows: Rows) -> JsonObject:
    names = sorted(dict.fromkeys(row["metric"] for row in rows), key=lambda name: name != "mse")
    metric = next((name for name in names if find_metric(name).direction == "lower"), None)
    largest = max(row["dimension"] for row in rows)
    own = [row for row in rows if row["metric"] == metric and row["dimension"] == largest]
    asked = {_asked(row) for row in own}
    groups = grouped(own, names_with_backend(own))
    logs = {
        label: _log_ratios({(_asked(row), key[-1]): pair for row, key, pair in _by_instance(members)}, own)
        for label, members in groups.items()
    }
    contenders = [{"algorithm": label, **_contender(members)} for label, members in groups.items()]
    for one in contenders:  # a sample ratio that others were run at and this one was not is no estimate, either
        one["missing"] += len(asked - {_asked(row) for row in groups[one["algorithm"]]})
    contenders.sort(key=_rank)
    best = contenders[0] if contenders else {}
    tied = [
        one["algorithm"]
        for one in contenders[1:]
        if None not in (one["ratio_to_bayes"], best["ratio_to_bayes"])
        and one["missing"] == best["missing"]
        and not _is_told_apart(best, one, logs)
    ]
    return {"problem": problem, "metric": metric, "dimension": largest, "contenders": contenders,
            "dimension_letter": letter_of(rows), "tied": tied}  # fmt: skip


def _asked(row: Mapping[str, Any]) -> float:
    """The sample ratio that the suite asked for."""
    found: float = row.get("nominal_alpha", row["alpha"])
    return found


def _by_instance(rows: Rows) -> list[tuple[JsonObject, tuple[Any, ...], tuple[float, float]]]:
    """A row, place and instance, and error with the Bayes-optimal one, both summed over components."""
    found = []
    for layers in grouped(rows, place).values():
        if _is_solved(layers):
            bayes = math.fsum(row["bayes"] for row in layers)
            for instance in sorted(set.intersection(*(set(row.get("values", ())) for row in layers))):
                error = math.fsum(row["values"][instance] for row in layers)
                found.append((layers[0], (*place(layers[0]), instance), (error, bayes)))
    return found


def _log_ratios(known: Mapping[Any, tuple[float, float]], rows: Sequence[Mapping[str, Any]]) -> dict[Any, float]:
    """Logarithm of the ratio to the Bayes-optimal error, where that is not 0."""
    zero = ZERO * max((row.get("target") or 0.0 for row in rows), default=0.0)
    return {key: math.log(e / bayes) for key, (e, bayes) in known.items() if bayes > zero and e > 0}


def _is_told_apart(best: Mapping[str, Any], other: Mapping[str, Any], logs: Mapping[str, dict[Any, float]]) -> bool:
    """Whether the difference is more than chance, by the runs or, where only means are kept, by those; single runs cannot say."""
    change = change_between(logs[best["algorithm"]], logs[other["algorithm"]], TIE)
    if change is None:
        change = change_between(_mean_log(best), _mean_log(other), TIE)
    return change is not None and abs(change.value) > change.half


def _mean_log(one: Mapping[str, Any]) -> JsonObject:
    ratio, error = one["ratio_to_bayes"], one["ratio_error"]
    return {"mean": math.log(ratio), "sem": None if error is None else error / ratio}


def _contender(rows: Rows) -> JsonObject:
    points = list(grouped(rows, place).values())
    firsts = [layers[0] for layers in points]
    known = [layers for layers in points if all(None not in (row["mean"], row["bayes"]) for row in layers)]
    target = rows[0].get("target", 0.0)  # one for the suite
    logs, errors, zeros = [], [], []
    for layers in known:
        mean, bayes = (math.fsum(row[key] for row in layers) for key in ("mean", "bayes"))
        if bayes <= ZERO * target:
            zeros.append(mean)
        elif mean > 0:
            sems = [math.inf if row["sem"] is None else row["sem"] for row in layers]
            logs.append(math.log(mean / bayes))
            errors.append(math.hypot(*sems) / bayes / (mean / bayes))
    ratio = math.exp(math.fsum(logs) / len(logs)) if logs else None
    error = ratio * math.hypot(*errors) / len(logs) if ratio else math.inf
    near = [layers[0]["time_to_theory"]["0.05"] for layers in points if _is_solved(layers)]
    unsolved = sum(row["mean"] is not None for layers in points if not _is_solved(layers) for row in layers[:1])
    times = [one["seconds"] for one in near]
    return {
        "ratio_to_bayes": ratio,
        "ratio_error": error if math.isfinite(error) else None,
        "where_zero": max(zeros, default=None),
        "zero_reached": max(zeros) <= target if zeros else None,
        **_against_prediction(rows),
        "points": len(known),
        "missing": len(points) - len(known),
        "near_seconds": None if None in times or not times else float(np.median(times)),
        "near_fraction": mean_of([one["fraction"] or 0.0 for one in near]) if known else None,
        **{key: mean_of([r[key] for r in firsts if r[key] is not None]) for key in ("seconds", "iterations")},
        "status_counts": summed_statuses(firsts),
        "moving": sum((row.get("still_moving") or {}).get("runs", 0) for row in firsts),
        **({"unsolved": unsolved} if unsolved else {}),
    }


def _is_solved(layers: Rows) -> bool:
    return all(row["bayes"] is not None for row in layers)


def _against_prediction(rows: Rows) -> JsonObject:
    """Whether the runs match the prediction for their algorithm, and their largest relative difference from it.

    No, where one point is off by more than ``NEAR`` and than the 99% interval of its runs. Yes, only where none is and every
    point could have been refused: at least ``FEW`` runs, and an interval of at most ``VAGUE``.
    """
    predicted = [row for row in rows if row.get("own_theory") is not None]
    known = [row for row in predicted if row["mean"] is not None]
    if not known:
        reason = min((row["no_theory"] for row in rows if row.get("no_theory")), default=None)
        return {"own_theory": None, "own_difference": None, "no_theory": reason}
    distances, refused, clear = [], False, len(known) == len(predicted)
    for row in known:
        expected, difference = row["own_theory"], row["mean"] - row["own_theory"]
        if expected:
            distances.append(difference / abs(expected))
        target = row.get("target", 0.0)
        near, vague = (NEAR * abs(expected), VAGUE * abs(expected)) if expected else (target, target)
        half = half_interval(row["sem"], row["n"], row.get("own_theory_error"))
        refused |= abs(difference) > max(half, near)
        clear &= row["n"] >= FEW and half <= vague
    said = "no" if refused else "yes" if clear else "unclear"
    return {"own_theory": said, "own_difference": max(distances, key=abs, default=None), "no_theory": None}


def _rank(one: Mapping[str, Any]) -> tuple[float, ...]:
    """Those with an estimate everywhere first, then by the ratio to Bayes, then by the error where theory is 0.

    What was seen only where theory is 0 has no ratio: it comes after those that have one. An online run is there often, at
    the sample ratio of all its fresh samples, which the others never had.
    """
    ratio, zero = one["ratio_to_bayes"], one["where_zero"]
    if ratio is None:
        return one["missing"], math.inf, math.inf if zero is None else zero
    return one["missing"], ratio, zero or 0.0


# -- in words -------------------------------------------------------------------------------------------------------------


def verdict_line(verdict: Mapping[str, Any]) -> str:
    """One line: the best algorithm, its error over the optimal one, whether it matches its prediction, seconds."""
    if verdict["metric"] is None:
        return f"{verdict['problem']}: no verdict, because no metric of this suite is an error"
    best = verdict["contenders"][0]
    unsolved = max(one.get("unsolved", 0) for one in verdict["contenders"])
    if not best["points"]:
        reason = (
            "no verdict, because the optimal error is not known" if unsolved else "no algorithm has made an estimate"
        )
        return f"{verdict['problem']}: {reason}"
    parts = [f"{verdict['problem']}: {best['algorithm']}{' is best' if len(verdict['contenders']) > 1 else ''}"]
    if best["ratio_to_bayes"] is not None:
        parts.append(f"{ratio_words(best)} times the optimal error")
    if best["where_zero"] is not None and (best["ratio_to_bayes"] is None or not best["zero_reached"]):
        parts.append(f"{'0' if best['zero_reached'] else number(best['where_zero'])} where the optimal error is 0")
    parts.append(prediction_words(best))
    if best["seconds"] is not None:
        parts.append(f"{seconds(best['seconds'])} per run")
    if verdict["tied"]:
        parts.append(f"tied with {tied_words(verdict)}")
    if unsolved:
        parts.append(
            f"without {unsolved} of {best['points'] + unsolved} sample ratios, whose optimal error is not known"
        )
    return ", ".join(parts)


def prediction_words(one: Mapping[str, Any]) -> str:
    """Whether an algorithm matches its prediction; by how much it is off, if it does not."""
    off = one["own_theory"] == "no" and one["own_difference"] is not None
    return OWN[one["own_theory"]] + (f" ({one['own_difference']:+.0%})" if off else "")


def own_words(one: Mapping[str, Any]) -> str:
    """The same as an entry of a table."""
    off = one["own_theory"] == "no" and one["own_difference"] is not None
    return f"no, {one['own_difference']:+.0%}" if off else one["own_theory"] or "none"


def tied_words(verdict: Mapping[str, Any]) -> str:
    """Names of the algorithms that are tied with the best, or the first of them and how many more there are."""
    names = verdict["tied"]
    return " and ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"


def near_words(one: Mapping[str, Any]) -> str:
    """In place of a time to within 5% of Bayes: at no sample ratio, or not at all of them; blank where nothing was run."""
    return "" if one["near_fraction"] is None else "partly" if one["near_fraction"] else "never"


# -- all problems together ------------------------------------------------------------------------------------------------


def errors(rows: Sequence[JsonObject]) -> dict[str, dict[tuple[Any, ...], tuple[float, float]]]:
    """Error and Bayes-optimal error, both summed over components, of each algorithm (on each backend) on each instance.

    Without algorithms that draw samples of their own, and stand at a sample ratio well above the one that was asked for: they
    saw other data, and more of it, than the instance has.
    """
    own = [row for row in rows if row["metric"] == "mse" and row["alpha"] <= 1.5 * _asked(row)]
    found: dict[str, dict[tuple[Any, ...], tuple[float, float]]] = {}
    name = names_with_backend(own)
    for row, (problem, _, _, *where), pair in _by_instance(own):
        found.setdefault(name(row), {})[problem, *where] = pair
    return found


def summary(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """One entry for each algorithm (on each backend) over all problems of a suite, best first; empty for a single one.

    Returns
    -------
    list of dict
        ``algorithm``; ``instances`` that it has an estimate on, ``all`` that anyone has; ``ratio_to_bayes``, geometric mean
        over those whose Bayes-optimal error is not 0; ``to_best``, the geometric mean of its error over that of the
        first algorithm on the same instances, with ``interval`` by Student's t on the paired logarithms (None for the first).
    """
    known = errors(rows)
    if len(known) < 2:
        return []
    everything = len({where for own in known.values() for where in own})
    logs = {name: _log_ratios(own, rows) for name, own in known.items()}
    ratios = {name: math.exp(math.fsum(own.values()) / len(own)) if own else None for name, own in logs.items()}
    names = sorted(logs, key=lambda name: (-len(known[name]), math.inf if ratios[name] is None else ratios[name]))
    first, found = logs[names[0]], []
    for name in names:
        paired = name != names[0] and len(first.keys() & logs[name].keys()) > 1
        change = change_between(first, logs[name], TIE) if paired else None
        found.append({
            "algorithm": name, "instances": len(known[name]), "all": everything, "ratio_to_bayes": ratios[name],
            "to_best": None if change is None else math.exp(change.value),
            "interval": None if change is None else [math.exp(change.value + side * change.half) for side in (-1, 1)],
        })  # fmt: skip
    return found
