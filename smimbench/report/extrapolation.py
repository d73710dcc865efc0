"""Extrapolation of rows from several dimensions to infinite dimension, where theory holds.

Theory is a statement about D -> infinity; at finite D a mean differs from it by its finite-size correction. A row at one D says
how far it is from theory, and the extrapolation whether that is a correction or a mistake.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smimbench.files import canonical_json
from smimbench.numerics.size_laws import SECOND, extrapolate, pooled_errors
from smimbench.numerics.statistics import normal_score
from smimbench.report.labels import grouped, summed_statuses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.files import JsonObject

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
    keys = ("problem", "algorithm", "backend", "nominal_alpha", "metric", "component")

    def what(row: JsonObject) -> tuple[Any, ...]:
        return (*(row[key] for key in keys), canonical_json(row["identity"]))

    groups = grouped(rows, what).values()
    found = (_extrapolated_row(sorted(members, key=lambda row: row["dimension"]), target) for members in groups)
    return [entry for entry in found if entry is not None]


def _extrapolated_row(members: Sequence[JsonObject], target: float) -> JsonObject | None:
    runs = [row for row in members if row["mean"] is not None]
    if len({row["dimension"] for row in runs}) < FEWEST:
        return None
    sizes, last = [row["dimension"] for row in runs], runs[-1]
    factors = [_factor(row, last) for row in runs]
    values = [row["mean"] * factor for row, factor in zip(runs, factors)]
    deviations = [
        math.nan if row["sem"] is None else row["sem"] * math.sqrt(row["n"]) * factor
        for row, factor in zip(runs, factors)
    ]
    errors, dof = pooled_errors(sizes, deviations, [row["n"] for row in runs])
    used = [i for i, error in enumerate(errors) if math.isfinite(error)]
    if len(used) < FEWEST:
        return None
    floors = [max(float(errors[i]), 1e-9 * abs(values[i]), 1e-9 * target) for i in used]
    second = max(SECOND, ONE_SAMPLE / last["alpha"]) if last["dimension_letter"] == "d" else SECOND
    found = extrapolate([sizes[i] for i in used], [values[i] for i in used], floors, dof, second)
    fitted: JsonObject = {
        "value": found.limit,
        "error": found.error,
        "error_dof": found.dof,
        "coefficient": found.coefficient,
        "coefficient_error": found.coefficient_error,
        "second": found.second,
        **_against_theory(found.limit, found.error, found.dof, last["theory"], last["theory_error"], target),
    }
    if found.refusal:
        fitted = {key: fitted[key] if key.startswith("theory") else None for key in fitted}
    copied = ("problem", "algorithm", "backend", "metric", "component", "bayes", "identity", "component_word",
              "dimension_letter", "own_theory", "own_theory_error", "no_theory", "own_coefficient")  # fmt: skip
    return {
        **{key: last[key] for key in copied},
        "own_z": None if last["own_theory"] is None else fitted["z"],
        "alpha": last["nominal_alpha"],
        **fitted,
        "refusal": found.refusal,
        "chi2": found.chi2,
        "dof": found.free,
        "p_value": found.p_value,
        "n": sum(row["n"] for row in runs),
        "status_counts": summed_statuses(members),
        "points": [
            {"dimension": sizes[i], "n": runs[i]["n"], "mean": runs[i]["mean"], "moved": values[i], "error": error}
            for i, error in zip(used, floors)
        ],
    }


def _factor(row: JsonObject, last: JsonObject) -> float:
    """Ratio of the predictions at the sample ratios of two dimensions; 1 if one is unknown or 0."""
    return float(last["theory"] / row["theory"]) if row["theory"] and last["theory"] else 1.0


def _against_theory(
    limit: float, error: float, dof: float, theory: float | None, theory_error: float | None, target: float
) -> JsonObject:
    if theory is None:
        return {"theory": None, "theory_error": theory_error, "difference": None, "z": None}
    scale = math.hypot(error, theory_error or 0.0, target if theory == 0 else 0.0)
    score = (limit - theory) / scale
    # An error that rests on few runs is itself unsure: Student's law, as the normal score that is as unlikely.
    return {
        "theory": theory,
        "theory_error": theory_error,
        "difference": limit - theory,
        "z": math.copysign(normal_score(abs(score), dof), score),
    }
