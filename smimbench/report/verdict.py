"""The verdict of each problem: which contender is nearest to the Bayes-optimal error, by what ratio, whether that may
be chance, and at what cost; in a line and as a table.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric
from smimbench.report.aggregate import ZERO, change_between, half_interval, mean_of
from smimbench.report.labels import grouped, letter_of, names_with_backend, place
from smimbench.report.tables import FEW, make_table, number, seconds, statuses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column

__all__ = ["OWN", "contender_tables", "near_words", "ratio_words", "tied_words", "verdict_line", "verdicts"]

OWN = {
    "yes": "matches its prediction",
    "no": "does not match its prediction",
    "unclear": "too few runs to compare with its prediction",
}
"""Whether an algorithm matches its prediction, in words."""

NEAR = 0.05
"""Relative difference from a prediction that finite size may explain. Doubled, more runs agree."""

VAGUE = 0.2
"""Relative width of the interval of runs to a side above which they cannot say yes. Doubled, more runs say yes."""

TIE = 0.95
"""Level of the interval of a paired difference within which two algorithms are not told apart; nearer to 1, more are tied."""


def verdicts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
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
        per run; ``status_counts``; ``moving``, runs whose error still moved at their last step.
    """
    return [_verdict(problem, members) for problem, members in grouped(rows, lambda r: r["problem"]).items()]


def _verdict(problem: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(row["metric"] for row in rows)
    metric = next((name for name in sorted(names, key=lambda n: n != "mse") if _counts_errors(name)), None)
    largest = max(row["dimension"] for row in rows)
    found: dict[str, Any] = {"problem": problem, "metric": metric, "dimension": largest, "contenders": []}
    found["dimension_letter"] = letter_of(rows)
    own = [row for row in rows if row["metric"] == metric and row["dimension"] == largest]
    name = names_with_backend(own)
    asked = {row.get("nominal_alpha", row["alpha"]) for row in own}
    logs = {}
    for label, members in grouped(own, name).items():
        one = _contender(members)
        logs[label] = _log_ratios_to_bayes(members)
        # A sample ratio that others were run at and this one was not is no estimate, either.
        one["missing"] += len(asked - {row.get("nominal_alpha", row["alpha"]) for row in members})
        found["contenders"].append({"algorithm": label, **one})
    found["contenders"].sort(key=_verdict_rank)
    best = found["contenders"][0] if found["contenders"] else {"ratio_to_bayes": None}
    found["tied"] = [
        one["algorithm"]
        for one in found["contenders"][1:]
        if None not in (one["ratio_to_bayes"], best["ratio_to_bayes"])
        and one["missing"] == best["missing"]
        and _not_told_apart(best, one, logs)
    ]
    return found


def _log_ratios_to_bayes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Logarithm of the ratio to Bayes of every run, by sample ratio and instance, where the Bayes-optimal error is not 0."""
    found = {}
    for layers in grouped(rows, place).values():
        if any(row["bayes"] is None for row in layers):
            continue
        bayes = math.fsum(row["bayes"] for row in layers)
        if bayes <= ZERO * layers[0].get("target", 0.0):
            continue
        for instance in set.intersection(*(set(row.get("values", ())) for row in layers)):
            error = math.fsum(row["values"][instance] for row in layers)
            if error > 0:
                found[f"{layers[0].get('nominal_alpha', layers[0]['alpha'])} {instance}"] = math.log(error / bayes)
    return found


def _not_told_apart(best: dict[str, Any], other: dict[str, Any], logs: dict[str, dict[str, float]]) -> bool:
    """Whether the difference may be chance, by the runs or, where only means are kept, by those; of single runs nobody knows."""
    change = change_between(logs[best["algorithm"]], logs[other["algorithm"]], TIE)
    if change is None:
        known, new = (_mean(one) for one in (best, other))
        change = change_between(known, new, TIE)
    return change is None or abs(change.value) <= change.half


def _mean(one: dict[str, Any]) -> dict[str, Any]:
    """Logarithm of a ratio to Bayes, and its standard error."""
    ratio, error = one["ratio_to_bayes"], one["ratio_error"]
    return {"mean": math.log(ratio), "sem": None if error is None else error / ratio}


def _counts_errors(metric: str) -> bool:
    return find_metric(metric).direction == "lower"


def _contender(rows: list[dict[str, Any]]) -> dict[str, Any]:
    points = list(grouped(rows, place).values())
    ratios, zeros, missing = [], [], 0
    for layers in points:
        if any(row["mean"] is None or row["bayes"] is None for row in layers):
            missing += 1
            continue
        mean, bayes = (math.fsum(row[key] for row in layers) for key in ("mean", "bayes"))
        if bayes <= ZERO * layers[0].get("target", 0.0):
            zeros.append((mean, layers[0].get("target", 0.0)))
        else:
            error = math.hypot(*(row["sem"] or 0.0 for row in layers))
            ratios.append((mean / bayes, error / bayes if all(row["sem"] is not None for row in layers) else None))
    logs = [(math.log(r), e / r if e is not None else None) for r, e in ratios if r > 0]
    ratio = math.exp(math.fsum(log for log, _ in logs) / len(logs)) if logs else None
    known = ratio is not None and all(e is not None for _, e in logs)
    firsts = [layers[0] for layers in points]
    near = [row["time_to_theory"]["0.05"]["seconds"] for row in firsts]
    status: Counter[str] = Counter()
    for row in firsts:
        status.update(row["status_counts"])
    return {
        "ratio_to_bayes": ratio,
        "ratio_error": ratio * math.hypot(*(e or 0.0 for _, e in logs)) / len(logs) if ratio and known else None,
        "where_zero": max((mean for mean, _ in zeros), default=None),
        "zero_reached": all(mean <= target for mean, target in zeros) if zeros else None,
        **_against_own_theory(rows),
        "points": len(points) - missing,
        "missing": missing,
        "near_seconds": None if None in near or not near else float(np.median(near)),
        "near_fraction": mean_of([row["time_to_theory"]["0.05"]["fraction"] or 0.0 for row in firsts])
        if len(points) > missing
        else None,
        "seconds": mean_of([row["seconds"] for row in firsts if row["seconds"] is not None]),
        "iterations": mean_of([row["iterations"] for row in firsts if row["iterations"] is not None]),
        "status_counts": dict(status),
        "moving": sum((row.get("still_moving") or {}).get("runs", 0) for row in firsts),
    }


def _against_own_theory(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether the runs match the prediction for their algorithm, and their largest relative difference from it.

    No, where one point is off by more than ``NEAR`` and than the 99% interval of its runs. Yes, only where none is and every
    point could have been refused: at least ``FEW`` runs, and an interval of at most ``VAGUE``.
    """
    predicted = [row for row in rows if row.get("own_theory") is not None]
    known = [row for row in predicted if row["mean"] is not None]
    reasons = sorted({row["no_theory"] for row in rows if row.get("no_theory")})
    if not known:
        return {"own_theory": None, "own_difference": None, "no_theory": reasons[0] if reasons else None}
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
    return {
        "own_theory": "no" if refused else "yes" if clear else "unclear",
        "own_difference": max(distances, key=abs, default=None),
        "no_theory": None,
    }


def _verdict_rank(one: dict[str, Any]) -> tuple[float, ...]:
    """Those with an estimate everywhere first, then by the ratio to Bayes, then by the error where theory is 0.

    What was seen only where theory is 0 has no ratio: it comes after those that have one. An online run stands there often, at
    the sample ratio of all its fresh samples, which the others never had.
    """
    ratio, zero = one["ratio_to_bayes"], one["where_zero"]
    return (
        one["missing"],
        math.inf if ratio is None else ratio,
        math.inf if zero is None and ratio is None else zero or 0.0,
    )


def verdict_line(verdict: dict[str, Any]) -> str:
    """One line: the best algorithm, its error over the optimal one, whether it matches its prediction, seconds."""
    if verdict["metric"] is None:
        return f"{verdict['problem']}: no verdict, because no metric of this suite is an error"
    best = verdict["contenders"][0]
    if not best["points"]:
        return f"{verdict['problem']}: no algorithm has made an estimate"
    parts = [f"{verdict['problem']}: {best['algorithm']}{' is best' if len(verdict['contenders']) > 1 else ''}"]
    if best["ratio_to_bayes"] is not None:
        parts.append(f"{ratio_words(best)} times the optimal error")
    if best["where_zero"] is not None and (best["ratio_to_bayes"] is None or not best["zero_reached"]):
        parts.append(f"{'0' if best['zero_reached'] else number(best['where_zero'])} where the optimal error is 0")
    difference = "" if best["own_difference"] is None else f" ({best['own_difference']:+.0%})"
    parts.append(OWN.get(best["own_theory"], "no prediction") + (difference if best["own_theory"] == "no" else ""))
    if best["seconds"] is not None:
        parts.append(f"{seconds(best['seconds'])} per run")
    if verdict["tied"]:
        parts.append(f"tied with {tied_words(verdict)}")
    return ", ".join(parts)


def tied_words(verdict: dict[str, Any]) -> str:
    """Names of the algorithms that are tied with the best, or the first of them and how many more there are."""
    names = verdict["tied"]
    return " and ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"


def near_words(one: dict[str, Any]) -> str:
    """In place of a time to within 5% of Bayes: at no sample ratio, or not at all of them; blank where nothing was run."""
    return "" if one["near_fraction"] is None else "partly" if one["near_fraction"] else "never"


def ratio_words(one: dict[str, Any]) -> str:
    """Ratio to Bayes with its error; blank where there is none."""
    ratio, error = one["ratio_to_bayes"], one["ratio_error"]
    if ratio is None:
        return ""
    if error is None:
        return f"{ratio:.3g}"
    digits = max(0, min(3, -math.floor(math.log10(max(error, 1e-9)))))
    return f"{ratio:.{digits}f}±{error:.{digits}f}"


def contender_tables(found: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """One table per problem that at least two algorithms were run on, best first."""
    return [_contender_table(verdict) for verdict in found if len(verdict["contenders"]) > 1 and verdict["metric"]]


def _contender_table(verdict: dict[str, Any]) -> RenderableType:
    contenders = verdict["contenders"]
    columns: list[Column] = [("algorithm", "l", lambda c: c["algorithm"]), ("error / optimal", "r", ratio_words)]
    if any(one["where_zero"] is not None for one in contenders):
        columns.append(("at 0", "r", lambda c: number(c["where_zero"], 3) if not c["zero_reached"] else "0"))
    columns += [
        ("as predicted", "l", _own_words),
        ("time to 5%", "r", lambda c: seconds(c["near_seconds"]) or near_words(c)),
        ("runs at 5%", "r", lambda c: "" if c["near_fraction"] is None else f"{c['near_fraction']:.0%}"),
        ("per run", "r", lambda c: seconds(c["seconds"])),
        ("status", "l", lambda c: statuses(c["status_counts"], c.get("moving", 0))),
    ]
    notes = ["best first"]
    if verdict["tied"]:
        notes.append(f"tied with the first ({TIE:.0%} interval): {tied_words(verdict)}")
    head = f"{verdict['problem']}: all algorithms, {letter_of([verdict])} = {verdict['dimension']}"
    return make_table(head, columns, contenders, "; ".join(notes))


def _own_words(one: dict[str, Any]) -> str:
    if one["own_theory"] is None:
        return "none"
    if one["own_theory"] != "no":
        return str(one["own_theory"])
    return "no" if one["own_difference"] is None else f"no, {one['own_difference']:+.0%}"
