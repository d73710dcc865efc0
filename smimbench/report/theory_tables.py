"""Terminal tables of theory: curve points, thresholds, published values, predictions for algorithms, Monte Carlo checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from smimbench.interfaces import AlgorithmPrediction, Host
from smimbench.report.columns import Column, column_of, make_table, number, one_digit
from smimbench.report.row import grouped
from smimbench.report.tables import Columns
from smimbench.report.theory_document import (
    AlgorithmTheory,
    ProblemTheory,
    PublishedValue,
)
from smimbench.theory.types import Bifurcation, TheoryPoint, Threshold, Thresholds
from smimbench.theory.verification import LARGEST_DRAWS, SECONDS, Check

ALPHA = Column("alpha", "{:.5g}".format, fields="alpha")


def _values(word: str) -> Columns:
    """Return the columns of a theory point; ``word`` is the word for a component, such as layer."""
    return [
        Column(word, fields="component"),
        "MSE",
        "numerical error",
        "error in alpha",
        "overlap",
    ]


class ComponentRow(NamedTuple):
    """Table row for one component of a theory point.

    Attributes
    ----------
    component : int or None
        From 1; None where there is one.
    alpha_error : float or None
        None where the curve is exact.
    algorithm, dimension
        Of a prediction.
    """

    alpha: float
    component: int | None
    mse: float
    mse_error: float
    alpha_error: float | None
    overlap: float | None
    branch: str
    generalization_error: dict[str, float] | None = None
    algorithm: str = ""
    dimension: int | str = ""


def _rows_of_point(point: TheoryPoint) -> list[ComponentRow]:
    """Make one table row per component of a theory point."""
    overlap = point.squared_cosine or np.diagonal(point.overlap).tolist()
    rows = _component_rows(point, point.alpha, point.alpha_error, overlap)
    errors = point.generalization_error
    return [row._replace(generalization_error=errors) for row in rows]


def _component_rows(
    point: TheoryPoint | AlgorithmPrediction,
    alpha: float,
    alpha_error: Host,
    overlap: Sequence[float | None],
) -> list[ComponentRow]:
    """Make one table row per component; unless the curve is exact, errors include that of the sample ratio."""
    mse, error = np.atleast_1d(point.mse), np.atleast_1d(point.mse_error)
    is_exact = not alpha_error.max() > 1e-6 * alpha
    return [
        ComponentRow(
            alpha,
            k + 1 if len(mse) > 1 else None,
            float(mse[k]),
            float(error[k]),
            None if is_exact else float(alpha_error[k]),
            overlap[k],
            point.branch,
        )
        for k in range(len(mse))
    ]


def theory_tables(theories: Sequence[ProblemTheory]) -> list[RenderableType]:
    """Make a table of theory points, followed by lines on the thresholds, for each problem."""
    tables: list[RenderableType] = []
    for theory in theories:
        label, points = Text(theory.label, style="bold"), theory.points
        if theory.unsolved:
            reason = Text(f"not solved: {theory.unsolved}", style="bold red")
            tables.append(Group(label, reason, ""))
        if theory.no_theory:
            tables.append(Group(label, Text(theory.no_theory), ""))
        if not points:
            continue
        word = _word(theory)
        rows = [row for point in points for row in _rows_of_point(point)]
        # Stored points may have errors of prediction that were not asked for now: a column has them for all, or is not there.
        predicted: Columns = []
        if all(point.generalization_error for point in points):
            predicted = ["Bayes gen. error", "plug-in gen. error"]
        columns: Columns = [ALPHA, *_values(word), *predicted, "branch"]
        methods = ", ".join(sorted({point.method for point in points}))
        tables.append(
            make_table(theory.label, columns, rows, f"obtained by: {methods}")
        )
        if theory.thresholds is not None:
            is_single = len(points[0].mse) == 1
            tables.append(_threshold_lines(theory.thresholds, word, is_single))
        tables += _published_tables(theory.published)
    return tables


def _word(theory: ProblemTheory) -> str:
    return "layer" if "layers" in theory.spec.get("channel", ()) else "component"


_SET = {"label", "metric", "entry", "component", "source", "remark"}


def _published_tables(published: Sequence[PublishedValue]) -> list[RenderableType]:
    """Make a table for each set of published values, with the theoretical values."""
    columns: Columns = [
        ALPHA,
        "published",
        Column("theory", partial(number, digits=6), fields="theory"),
        "difference",
        "tolerance",
    ]
    tables = []
    sets = grouped(
        published, lambda value: str(value.reference.model_dump(include=_SET))
    )
    for values in sets.values():
        reference = values[0].reference
        place = ""
        if reference.component is not None:
            place = f", component {reference.component}"
        elif reference.entry:
            place = f", entry {reference.entry[0]}{reference.entry[1]}"
        title = f"{reference.label}: {reference.metric}{place}"
        remark = f"; {reference.remark}" if reference.remark else ""
        source = f"source: {reference.source}{remark}"
        tables.append(make_table(title, columns, values, source))
    return tables


def _threshold_lines(
    thresholds: Thresholds, word: str, is_single: bool
) -> RenderableType:
    """Make the lines on the thresholds of a problem, with the reason where a threshold does not exist."""

    def alpha_text(threshold: Threshold) -> str:
        return f"alpha = {_with_error(threshold, 7)}"

    weak, perfect, late = (
        thresholds.weak_recovery,
        thresholds.perfect_recovery,
        thresholds.late_recovery,
    )
    lines = [("weak_recovery", alpha_text(weak) if weak else "")]
    recovery = alpha_text(perfect) if perfect else ""
    if perfect and late:
        recovery = (
            f"{alpha_text(late)} (uninformed), {_with_error(perfect, 7)} (informed)"
        )
    lines.append(("perfect_recovery", recovery))
    steps = thresholds.sequential
    if len(steps) > 1 or not (is_single or steps):
        lines.append(("sequential", _order_of_learning(steps, word)))
    if hard := thresholds.hard_phase:
        low, high = map(_with_error, (hard.information_theoretic, hard.algorithmic))
        range_ = f"{low} to {high}"
        lines.append(
            (
                "hard_phase",
                f"{range_}: algorithms with an uninformed start do not reach the Bayes-optimal error",
            )
        )
        if hard.spinodal != hard.information_theoretic:
            begin = _with_error(hard.spinodal)
            lines.append(("", f"the informed branch begins at {begin}"))
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, min_width=19)
    for key, text in lines:
        name = "learned in order" if key == "sequential" else key.replace("_", " ")
        reason = thresholds.reasons.get(key)
        table.add_row(
            f"  {name}", Text(text or (f"none: {reason}" if reason else "none"))
        )
    return Group(table, "")


def _with_error(threshold: Threshold, digits: int = 5) -> str:
    error = one_digit(threshold.error)
    return f"{threshold.value:.{digits}g}" + (f" ± {error}" if error else "")


def _order_of_learning(steps: Sequence[Bifurcation], word: str) -> str:
    """Describe which components are learned at which sample ratio, in order."""
    sentences = []
    by_place = grouped(steps, lambda step: _with_error(step.threshold))
    for place, together in by_place.items():
        *names, name = (str(step.component + 1) for step in together)
        components = f"{word} {name}"
        if names:
            components = f"{word}s {', '.join(names)} and {name}"
        sentences.append(f"{components} at {place}")
    return ", then ".join(sentences)


def prediction_tables(theories: Sequence[ProblemTheory]) -> list[RenderableType]:
    """Make the tables of predictions for algorithms, one per problem, with notes on methods and missing predictions."""
    tables: list[RenderableType] = []
    for theory in theories:
        entries = theory.algorithms or ()
        predicted = [e for e in entries if not isinstance(e.prediction, str)]
        rows: list[ComponentRow] = []
        for predictions in grouped(predicted, lambda e: e.algorithm).values():
            # Sizes are told apart where the prediction depends on them.
            places = [0.0 if e.fresh else e.alpha for e in predictions]
            sized = len(set(places)) < len(places)
            for entry in sorted(predictions, key=lambda e: e.alpha):
                rows += _rows_of_prediction(entry, sized)
        title = f"{theory.label}: predictions for the algorithms"
        notes = Text("\n".join(_notes(entries)), style="dim")
        if rows:
            letter, word = predicted[0].dimension_letter, predicted[0].component_word
            size = column_of("D", "dimension")._replace(heading=letter)
            columns = [column_of("algorithm", "algorithm"), ALPHA, size, *_values(word)]
            tables.append(make_table(title, columns, rows))
        if notes:
            heading = Text(title, style="bold")
            tables.append(notes if rows else Group(heading, notes, ""))
    return tables


def _rows_of_prediction(entry: AlgorithmTheory, sized: bool) -> list[ComponentRow]:
    """Make one table row per component of a prediction, with its dimension if ``sized``."""
    prediction = entry.prediction
    assert not isinstance(prediction, str)
    alpha_error = np.atleast_1d(prediction.more.get("alpha_error", 0.0))
    rows = _component_rows(prediction, entry.alpha, alpha_error, entry.overlap)
    dimension = entry.dimension if sized else ""
    return [
        row._replace(algorithm=entry.algorithm, dimension=dimension) for row in rows
    ]


def _notes(entries: Sequence[AlgorithmTheory]) -> list[str]:
    """Return notes on the predictions for algorithms, one line each, starting with the algorithms' names."""
    notes: list[tuple[str, str]] = []
    for entry in entries:
        name, prediction = entry.algorithm, entry.prediction
        if isinstance(prediction, str):
            notes.append((f"no prediction: {prediction}", name))
            continue
        notes.append((f"obtained by {prediction.method}", name))
        if entry.fresh:
            note = "alpha counts the fresh samples of all steps"
            notes.append((note, name))
        if isinstance(prediction.trajectory, str):
            notes.append((f"no trajectory: {prediction.trajectory}", name))
    by_text = grouped(notes, lambda note: note[0])
    return [
        f"{'; '.join(dict.fromkeys(name for _, name in together))}: {text}"
        for text, together in by_text.items()
    ]


def verification_tables(theories: Sequence[ProblemTheory]) -> list[RenderableType]:
    """Make the tables of Monte Carlo checks, one per problem, with a summary of their z."""
    columns: Columns = [
        ALPHA,
        Column("quantity", _quantity, words=True),
        "printed value",
        Column("numerical error", one_digit, fields="error"),
        "Monte Carlo",
        Column("standard error", one_digit, fields="standard_error"),
        Column("z", _z),
        "detectable deviation",
    ]
    tables: list[RenderableType] = []
    for theory in theories:
        checks = theory.checks
        if not checks:
            continue
        # Bounds that hold and errors that are 0 in both say nothing about the distribution.
        z = [check.z for check in checks if check.z] or [0.0]
        worst = max(checks, key=lambda check: abs(check.z))
        summary = (
            f"{len(checks)} numbers checked by Monte Carlo: rms z {math.sqrt(sum(v * v for v in z) / len(z)):.2f}, "
            f"largest {worst.z:+z.2f} ({_quantity(worst)} at alpha = {worst.alpha:.5g})"
        )
        if undecided := sum(not check.has_enough_draws for check in checks):
            summary += (
                f"; {undecided} undecided: too few draws hit a jump of the labels"
            )
        if any(check.bound for check in checks):
            summary += "; unlearned signals and perfect recovery: growth rate of a small overlap or error, at most 1"
        caption = f"{summary}. {_resolution(checks)}"
        tables.append(make_table(theory.label, columns, checks, caption))
    return tables


def _resolution(checks: Sequence[Check]) -> str:
    """Describe which deviations the Monte Carlo checks of a problem can and cannot detect."""
    sentences = []
    goals = [check.excludes or 0.0 for check in checks if check.quantity == "MSE"]
    if max(goals, default=0.0):
        sentences.append(
            f"An MSE that is {100 * max(goals):.2g}% off would have been detected at every sample ratio"
        )
    stopped = [f"{check.alpha:.5g}" for check in checks if check.stopped]
    if stopped:
        places, limit = (
            dict.fromkeys(stopped),
            f"{SECONDS:g} s or {LARGEST_DRAWS:,} draws",
        )
        sentences.append(
            f"At alpha = {', '.join(places)} the draws stopped at {limit}, before the precision of --resolve was reached"
        )
    sentences.append(
        "An error that is common to a channel's labels and its posterior is not detected."
    )
    return ". ".join(sentences)


def _z(check: Check) -> str:
    if not check.has_enough_draws:
        return "few"
    if check.bound and not check.z:
        return "holds"
    return f"{check.z:+z.2f}" + ("" if check.agrees else " !")


def _quantity(check: Check) -> str:
    component = "" if check.component is None else f" {check.component + 1}"
    branch = "" if check.branch == "unique" else f", {check.branch}"
    return f"{check.quantity}{component}{branch}"
