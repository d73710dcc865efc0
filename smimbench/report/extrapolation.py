"""Extrapolation of rows from several dimensions to infinite dimension, where theory holds.

Theory is a statement about D -> infinity; at finite D a mean differs from it by its finite-size correction. A row at one D says
how far it is from theory, and the extrapolation whether that is a correction or a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smimbench.files import JsonObject, canonical_json
from smimbench.numerics.size_laws import SECOND, Extrapolation, extrapolate, pooled_errors
from smimbench.numerics.statistics import normal_score
from smimbench.report.labels import grouped, summed_statuses

ONE_SAMPLE = 4.0
"""Allowance for matrices from few samples, in units of one of them: ``1 / n = 1 / (alpha d^2)`` is of second order, and a ratio
within a run, as the Nishimori ratio, is off by one to three times that. Doubled, limits from less than 30 samples are half as
sure."""

FEWEST = 3
"""Dimensions from which on rows are extrapolated: with two there is a line through both, and nothing tests it."""


def extrapolated_rows(rows: Sequence[JsonObject], target: float = 1e-3) -> list[JsonObject]:
    """One entry for every problem, algorithm, backend, nominal sample ratio, metric and component of three dimensions or more.

    Parameters
    ----------
    rows : sequence of dict
        As from ``error_rows``.
    target : float
        Absolute error that counts as reached where theory says 0 (``run.target`` of the suite): there ``z`` takes it for an
        additional error.

    Returns
    -------
    list of dict
        ``value`` and its standard ``error`` at D = infinity, with the allowance for second order, and the degrees of freedom
        ``error_dof`` of Student's t law for it; the ``coefficient`` of 1/D and ``coefficient_error``, next to
        ``own_coefficient``, that in closed form, where the algorithm's theory has it, and ``second``, that of 1/D^2; ``chi2``,
        ``dof``, ``p_value``; ``theory``, ``theory_error``, ``difference``, and ``z``, the difference in units of all errors
        together, as likely as a normal variable of that size; ``points``, what was fitted. Where ``refusal`` says why there is
        no limit, all of these but the last are None.
        As in rows, ``theory`` is the algorithm's own (``own_theory``) where it has one, otherwise the Bayes-optimal value.

    Notes
    -----
    The number of samples is rounded, so that the sample ratio really used depends a little on D. What is fitted are the values at
    the sample ratio of the largest D: the others are moved there by the ratio of theory at the two.
    """
    keys = ("algorithm", "backend", "nominal_alpha", "metric", "component")

    def what(row: JsonObject) -> tuple[Any, ...]:
        problem = row["identity"]["problem"]
        if "features" in problem.get("inputs", {}):  # one problem at every dimension
            problem = {**problem, "inputs": {**problem["inputs"], "features": None}}
        else:
            problem = [row["problem"], problem]
        return (*(row[key] for key in keys), canonical_json([problem, row["identity"]["algorithm"]]))

    groups = grouped(rows, what).values()
    found = (_extrapolated_row(sorted(members, key=lambda row: row["dimension"]), target) for members in groups)
    return [entry for entry in found if entry is not None]


def _extrapolated_row(members: Sequence[JsonObject], target: float) -> JsonObject | None:
    runs = [row for row in members if row["mean"] is not None]
    if len(runs) < FEWEST:
        return None
    last = runs[-1]
    sizes, counts = ([row[key] for row in runs] for key in ("dimension", "n"))
    factors = [last["theory"] / row["theory"] if row["theory"] and last["theory"] else 1.0 for row in runs]
    values = [row["mean"] * factor for row, factor in zip(runs, factors)]
    errors = [math.nan if row["sem"] is None else row["sem"] * factor for row, factor in zip(runs, factors)]
    pooled, dof = pooled_errors(sizes, np.array(errors) * np.sqrt(counts), counts)
    points = [
        {"dimension": size, "n": n, "mean": row["mean"], "moved": value,
         "error": max(float(error), 1e-9 * abs(value), 1e-9 * target)}
        for row, size, n, value, error in zip(runs, sizes, counts, values, pooled) if math.isfinite(error)
    ]  # fmt: skip
    if len(points) < FEWEST:
        return None
    second = max(SECOND, ONE_SAMPLE / last["alpha"]) if last["dimension_letter"] == "d" else SECOND
    used, moved, stated = ([one[key] for one in points] for key in ("dimension", "moved", "error"))
    fit = extrapolate(used, moved, stated, dof, second)
    copied = ("problem", "algorithm", "backend", "metric", "component", "bayes", "identity", "component_word", "dimension_letter",
              "own_theory", "own_theory_error", "no_theory", "own_coefficient", "theory", "theory_error")  # fmt: skip
    limit = {
        "value": fit.limit,
        "error": fit.error,
        "error_dof": fit.dof,
        "coefficient": fit.coefficient,
        "coefficient_error": fit.coefficient_error,
        "second": fit.second,
        "difference": None if last["theory"] is None else fit.limit - last["theory"],
        "z": _z(fit, last, target),
    }
    return {
        **{key: last[key] for key in copied},
        "alpha": last["nominal_alpha"],
        **(dict.fromkeys(limit) if fit.refusal else limit),
        "own_z": None if last["own_theory"] is None or fit.refusal else limit["z"],
        "refusal": fit.refusal,
        "chi2": fit.chi2,
        "dof": fit.free,
        "p_value": fit.p_value,
        "n": sum(counts),
        "status_counts": summed_statuses(members),
        "points": points,
    }


def _z(fit: Extrapolation, last: JsonObject, target: float) -> float | None:
    """Distance of a limit from theory in all errors: by Student's law, as the normal score that is as unlikely."""
    if last["theory"] is None:
        return None
    scale = math.hypot(fit.error, last["theory_error"] or 0.0, target if last["theory"] == 0 else 0.0)
    score = (fit.limit - last["theory"]) / scale
    return math.copysign(normal_score(abs(score), fit.dof), score)
