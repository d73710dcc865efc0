"""Terminal tables of theory: curve points, thresholds, published values, predictions for algorithms, Monte Carlo checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from smimbench.files import JsonObject
from smimbench.interfaces import AlgorithmPrediction, Host
from smimbench.report.columns import Column, column_of, make_table, number, one_digit
from smimbench.report.row import Number, grouped
from smimbench.report.tables import Columns
from smimbench.report.theory_document import (
    AlgorithmTheory,
    ProblemTheory,
    PublishedValue,
)
from smimbench.theory.types import (
    Bifurcation,
    Check,
    TheoryPoint,
    Threshold,
    Thresholds,
)
from smimbench.theory.verification import MAX_DRAWS, SECONDS

ALPHA = Column("alpha", "{:.5g}".format, fields="alpha")


def _theory_columns(component_word: str) -> Columns:
    """Return the columns of a fixed point of theory: component, MSE and overlap with numerical errors; ``component_word`` is the
    word for a component, such as layer.
    """
    return [
        Column(component_word, fields="component"),
        "MSE ÷ prior variance",
        "numerical error",
        "error as shift of alpha",
        "overlap with signal",
    ]


def _rows_of_point(point: TheoryPoint) -> list[JsonObject]:
    """Make one table row per component of the signal for a fixed point of theory (``point``)."""
    overlap = point.squared_cosine or np.diagonal(point.overlap).tolist()
    errors = {"generalization_error": point.generalization_error}
    return _component_rows(point, point.alpha, point.alpha_error, overlap, errors)


def _component_rows(
    point: TheoryPoint | AlgorithmPrediction,
    alpha: float,
    alpha_error: Host,
    overlap: Sequence[Number],
    more_columns: JsonObject,
) -> list[JsonObject]:
    """Make one table row per component of a fixed point (or prediction) at the sample ratio ``alpha``. ``alpha_error`` (P,) is
    the error of the MSE expressed as a shift of alpha, shown unless it is negligible; ``overlap`` (P,) the overlap with the
    signal; ``more_columns`` hold what is equal in all rows.
    """
    is_exact = not alpha_error.max() > 1e-6 * alpha
    errors_as_alpha_shifts = [None] * len(overlap) if is_exact else alpha_error
    columns = zip(point.mse, point.mse_error, errors_as_alpha_shifts, overlap)
    return [
        {
            "alpha": alpha,
            "component": component if len(overlap) > 1 else None,
            "mse": mse,
            "mse_error": mse_error,
            "alpha_error": error_as_alpha_shift,
            "overlap": component_overlap,
            "branch": point.branch,
            **more_columns,
        }
        for component, (
            mse,
            mse_error,
            error_as_alpha_shift,
            component_overlap,
        ) in enumerate(columns, 1)
    ]


def theory_tables(theories: Sequence[ProblemTheory]) -> list[RenderableType]:
    """Make for each problem a table of its fixed points of theory, followed by lines on the thresholds."""
    tables: list[RenderableType] = []
    for theory in theories:
        problem_label = Text(theory.label, style="bold")
        points = theory.points
        if theory.unsolved:
            reason = Text(f"not solved: {theory.unsolved}", style="bold red")
            tables.append(Group(problem_label, reason, ""))
        if theory.no_theory:
            tables.append(Group(problem_label, Text(theory.no_theory), ""))
        if not points:
            continue
        component_word = _component_word(theory)
        rows = [row for point in points for row in _rows_of_point(point)]
        # Stored points may have errors of prediction that were not asked for now: a column has them for all, or is not there.
        error_columns: Columns = []
        if all(point.generalization_error for point in points):
            error_columns = ["Bayes gen. error", "plug-in gen. error"]
        columns: Columns = [
            ALPHA,
            *_theory_columns(component_word),
            *error_columns,
            "fixed-point branch",
        ]
        methods = ", ".join(sorted({point.method for point in points}))
        tables.append(
            make_table(theory.label, columns, rows, f"obtained by: {methods}")
        )
        if theory.thresholds is not None:
            is_single = len(points[0].mse) == 1
            tables.append(
                _threshold_lines(theory.thresholds, component_word, is_single)
            )
        tables += _published_tables(theory.published)
    return tables


def _component_word(theory: ProblemTheory) -> str:
    """Return the word for a component of the signal in tables of a problem's theory: component or layer."""
    return "layer" if "layers" in theory.spec.get("channel", ()) else "component"


_SET = {"label", "metric", "entry", "component", "source", "remark"}


def _published_tables(published: Sequence[PublishedValue]) -> list[RenderableType]:
    """Make a table for each set of published values, with the theoretical values."""
    columns: Columns = [
        ALPHA,
        "published value",
        Column("theory", partial(number, digits=6), fields="theory"),
        "theory - published",
        "uncertainty of published value",
    ]
    tables = []
    values_by_reference = grouped(
        published, lambda value: str(value.reference.model_dump(include=_SET))
    )
    for values in values_by_reference.values():
        reference = values[0].reference
        component_text = ""
        if reference.component is not None:
            component_text = f", component {reference.component}"
        elif reference.entry:
            component_text = f", entry {reference.entry[0]}{reference.entry[1]}"
        title = f"{reference.label}: {reference.metric}{component_text}"
        remark = f"; {reference.remark}" if reference.remark else ""
        source = f"source: {reference.source}{remark}"
        tables.append(make_table(title, columns, values, source))
    return tables


def _threshold_lines(
    thresholds: Thresholds, component_word: str, is_single: bool
) -> RenderableType:
    """Make the lines on the thresholds of a problem, with the reason where a threshold does not exist; ``is_single`` says
    whether the signal has one component.
    """
    weak = thresholds.weak_recovery
    perfect = thresholds.perfect_recovery
    late = thresholds.late_recovery
    weak_text, recovery = (
        f"alpha = {_with_error(threshold, 7)}" if threshold else ""
        for threshold in (weak, late or perfect)
    )
    if perfect and late:
        recovery += f" (uninformed), {_with_error(perfect, 7)} (informed)"
    lines = [
        ("weak_recovery", "weak recovery", weak_text),
        ("perfect_recovery", "perfect recovery", recovery),
    ]
    bifurcations = thresholds.sequential
    if len(bifurcations) > 1 or not (is_single or bifurcations):
        order = _order_of_learning(bifurcations, component_word)
        lines.append(("sequential", "learned in order", order))
    if hard := thresholds.hard_phase:
        lower, upper = map(_with_error, (hard.information_theoretic, hard.algorithmic))
        text = f"{lower} to {upper}: algorithms with an uninformed start do not reach the Bayes-optimal error"
        lines.append(("", "hard phase", text))
        if hard.spinodal != hard.information_theoretic:
            spinodal = _with_error(hard.spinodal)
            lines.append(("", "", f"the informed branch begins at {spinodal}"))
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, min_width=19)
    for key, name, text in lines:
        reason = thresholds.reasons.get(key)
        if not text:
            text = f"none: {reason}" if reason else "none"
        elif reason:
            text += f"; {reason}"
        table.add_row(f"  {name}", Text(text))
    return Group(table, "")


def _with_error(threshold: Threshold, digits: int = 5) -> str:
    """Format a threshold (a sample ratio) to ``digits`` digits, with its numerical error."""
    error = one_digit(threshold.error)
    return f"{threshold.value:.{digits}g}" + (f" ± {error}" if error else "")


def _order_of_learning(bifurcations: Sequence[Bifurcation], component_word: str) -> str:
    """Describe in words which components of the signal are learned from which sample ratio on, in order."""
    sentences = []
    by_threshold = grouped(
        bifurcations, lambda bifurcation: _with_error(bifurcation.threshold)
    )
    for threshold_text, simultaneous in by_threshold.items():
        *earlier_numbers, last_number = (
            str(bifurcation.component + 1) for bifurcation in simultaneous
        )
        components = f"{component_word} {last_number}"
        if earlier_numbers:
            components = (
                f"{component_word}s {', '.join(earlier_numbers)} and {last_number}"
            )
        sentences.append(f"{components} at {threshold_text}")
    return ", then ".join(sentences)


def prediction_tables(theories: Sequence[ProblemTheory]) -> list[RenderableType]:
    """Make the tables of predictions for algorithms, one per problem, with notes on methods and missing predictions."""
    tables: list[RenderableType] = []
    for theory in theories:
        entries = theory.algorithms or ()
        predicted = [
            entry for entry in entries if not isinstance(entry.prediction, str)
        ]
        rows: list[JsonObject] = []
        for algorithm_entries in grouped(predicted, lambda e: e.algorithm).values():
            # Sizes are told apart where the prediction depends on them.
            ratios = [
                0.0 if entry.fresh else entry.alpha for entry in algorithm_entries
            ]
            show_dimension = len(set(ratios)) < len(ratios)
            for entry in sorted(algorithm_entries, key=lambda entry: entry.alpha):
                rows += _rows_of_prediction(entry, show_dimension)
        title = f"{theory.label}: predictions for the algorithms"
        notes = Text("\n".join(_prediction_notes(entries)), style="dim")
        if rows:
            columns = [
                column_of("algorithm", "algorithm"),
                ALPHA,
                Column(
                    predicted[0].dimension_letter, fields="dimension", unless_same=True
                ),
                *_theory_columns(predicted[0].component_word),
            ]
            tables.append(make_table(title, columns, rows))
        if notes:
            heading = Text(title, style="bold")
            tables.append(notes if rows else Group(heading, notes, ""))
    return tables


def _rows_of_prediction(
    entry: AlgorithmTheory, show_dimension: bool
) -> list[JsonObject]:
    """Make one table row per component of a prediction, with its dimension if ``show_dimension``."""
    prediction = entry.prediction
    assert not isinstance(prediction, str)
    alpha_error = np.atleast_1d(prediction.more.get("alpha_error", 0.0))
    dimension = entry.dimension if show_dimension else ""
    labels = {"algorithm": entry.algorithm, "dimension": dimension}
    return _component_rows(prediction, entry.alpha, alpha_error, entry.overlap, labels)


def _prediction_notes(entries: Sequence[AlgorithmTheory]) -> list[str]:
    """Return notes on the predictions for algorithms (their method, or why there is none), one line each, starting with the names
    of the algorithms that it is about.
    """
    notes: dict[str, dict[str, None]] = {}
    for entry in entries:
        prediction = entry.prediction
        if isinstance(prediction, str):
            texts = [f"no prediction: {prediction}"]
        else:
            texts = [f"obtained by {prediction.method}"]
            if entry.fresh:
                texts.append("alpha counts the fresh samples of all steps")
            if isinstance(prediction.trajectory, str):
                texts.append(f"no trajectory: {prediction.trajectory}")
        for text in texts:
            notes.setdefault(text, {})[entry.algorithm] = None
    return [f"{'; '.join(algorithms)}: {text}" for text, algorithms in notes.items()]


def verification_tables(theories: Sequence[ProblemTheory]) -> list[RenderableType]:
    """Make the tables of Monte Carlo checks of theory, one per problem, each with a summary of the z-scores."""
    columns: Columns = [
        ALPHA,
        Column("quantity", _quantity_name, words=True),
        "theory value",
        Column("numerical error", one_digit, fields="error"),
        "Monte Carlo estimate",
        "standard error of estimate",
        Column("z score", _z_text),
        "detectable deviation",
    ]
    tables: list[RenderableType] = []
    for theory in theories:
        checks = theory.checks
        if not checks:
            continue
        # Bounds that hold and errors that are 0 in both say nothing about the distribution.
        scores = [check.z for check in checks if check.z] or [0.0]
        check_of_largest_z = max(checks, key=lambda check: abs(check.z))
        summary = (
            f"{len(checks)} numbers checked by Monte Carlo: rms z "
            f"{math.sqrt(sum(score * score for score in scores) / len(scores)):.2f}, "
            f"largest {check_of_largest_z.z:+z.2f} ({_quantity_name(check_of_largest_z)} at alpha = "
            f"{check_of_largest_z.alpha:.5g})"
        )
        if undecided_count := sum(not check.has_enough_draws for check in checks):
            summary += (
                f"; {undecided_count} undecided: too few draws hit a jump of the labels"
            )
        if any(check.bound for check in checks):
            summary += "; unlearned signals and perfect recovery: growth rate of a small overlap or error, at most 1"
        caption = f"{summary}. {_resolution_text(checks)}"
        tables.append(make_table(theory.label, columns, checks, caption))
    return tables


def _resolution_text(checks: Sequence[Check]) -> str:
    """Describe which deviations the Monte Carlo checks of a problem can and cannot detect."""
    sentences = []
    excluded_deviations = [
        check.excludes or 0.0 for check in checks if check.quantity == "MSE"
    ]
    if max(excluded_deviations, default=0.0):
        sentences.append(
            f"An MSE that is {100 * max(excluded_deviations):.2g}% off would have been detected at every sample ratio"
        )
    stopped_alphas = [f"{check.alpha:.5g}" for check in checks if check.stopped]
    if stopped_alphas:
        distinct_alphas = dict.fromkeys(stopped_alphas)
        draw_limit = f"{SECONDS:g} s or {MAX_DRAWS:,} draws"
        sentences.append(
            f"At alpha = {', '.join(distinct_alphas)} the draws stopped at {draw_limit}, before the precision of --resolve was "
            f"reached"
        )
    sentences.append(
        "An error that is common to a channel's labels and its posterior is not detected."
    )
    return ". ".join(sentences)


def _z_text(check: Check) -> str:
    """Format the z-score of a Monte Carlo check: ``few`` if there are too few draws, ``holds`` for a bound, otherwise a number,
    followed by ! if theory disagrees.
    """
    if not check.has_enough_draws:
        return "few"
    if check.bound and not check.z:
        return "holds"
    return f"{check.z:+z.2f}" + ("" if check.agrees else " !")


def _quantity_name(check: Check) -> str:
    """Name the quantity that a Monte Carlo check tests, with its component and fixed-point branch."""
    component = "" if check.component is None else f" {check.component + 1}"
    branch = "" if check.branch == "unique" else f", {check.branch}"
    return f"{check.quantity}{component}{branch}"
