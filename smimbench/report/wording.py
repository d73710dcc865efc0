"""Verdicts in words: lines of verdicts, phrases on agreement with theory, and what the phrases mean."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from smimbench.registry.registry import metric_label
from smimbench.report.columns import (
    COLUMNS,
    Column,
    make_table,
    measured,
    number,
    optimum_at_size_words,
    ratio_words,
    seconds,
    worth_words,
)
from smimbench.report.statistics import count_runs
from smimbench.report.verdict import Contender, ErrorRatio, Verdict

if TYPE_CHECKING:
    from rich.console import Console

AGREEMENT = {
    "yes": "agrees with theory",
    "no": "disagrees with theory",
    "finite size": "these sizes are too small to test the prediction",
    "too few runs": "too few runs to test the prediction",
    None: "no prediction",
}
"""Text for each answer to the question whether an algorithm agrees with theory."""

REFUSED = ("no", "far off")
"""Answers that say that an algorithm disagrees with theory."""

BELOW = "below the Bayes optimum: check samples, teacher or code"
"""Remark on an algorithm whose error is impossibly low."""

BELOW_FLOOR = "below the floor: check how it counts passes"
"""Remark on an algorithm whose error is impossibly low after so few passes over the data."""

REVERSED = "the order reverses"
"""Remark on algorithms of which each is better than the other at some sample ratio."""

RATIO, AT_SIZE, WORTH, DETECTABLE, OUTLIERS = (
    "1.05±0.01 times the optimal error at infinite size",
    "(optimum at D = 80: 1.040±0.002, sampled)",
    "300 passes, worth 4.2 (4.1 to 4.4)",
    "a deviation above 18% would have been detected",
    "3 of 60 runs are outliers",
)
"""Phrases with numbers in ``VERDICT_HELP``."""

VERDICT_HELP = {
    "gamp is best": "Its error is the smallest, as a geometric mean over the sample ratios at the largest dimension. tied "
    "with: runs do not tell these algorithms apart (95% interval).",
    RATIO: "Its error over the Bayes-optimal error, the smallest that any algorithm can reach, by theory for infinite size.",
    AT_SIZE: "The optimum at the size that was run, over that of infinite size: a ratio of 1.04 is the best possible. Left "
    "out where it is not known.",
    WORTH: "Its passes over the data, and those after which the best first-order method has its error (95% interval).",
    "agrees with theory": "Its errors are what theory predicts for this algorithm, within chance and the effects of finite "
    "size: its code can be trusted as far as the next number says.",
    DETECTABLE: "What the test sees: a mistake that changes the error by as much or more would have been found with a "
    "probability of 99%. Smaller ones may be hidden; more seeds and larger dimensions find them.",
    "disagrees with theory": "A number is further from its prediction than chance and finite size allow (in brackets: how "
    "far, z in standard errors). Look for a mistake in the code, or for runs that stopped too early.",
    "these sizes are too small to test the prediction": "Finite size may explain the difference from theory, or hide one of "
    "50%: add larger dimensions.",
    "too few runs to test the prediction": "A difference of 50% could go unnoticed: add seeds.",
    OUTLIERS: "All others agree with theory: look at these.",
    "no prediction": "There is no theory for this algorithm. Its error can be compared with the optimum; its code is not "
    "tested.",
    BELOW: "No algorithm can beat the optimum by more than chance: it saw more samples or the teacher, or the code is wrong.",
    BELOW_FLOOR: "No first-order method gets so far in so few passes: it makes more than it counts, or is of another kind.",
    "2.1 times gamp's error (2.03 to 2.18)": "Ratio of two errors on the same data sets, with its 95% interval.",
    REVERSED: "Which algorithm is better depends on the sample ratio: it is significantly better at some and worse at others.",
}
"""What the phrases of a verdict mean: text of ``smimbench help verdict``, of the site and of the hints on the HTML page."""


def print_phrases(console: Console, meanings: dict[str, str]) -> None:
    """Print phrases of a verdict, each with its meaning below it."""
    for phrase, meaning in meanings.items():
        console.print(phrase, style="bold")
        console.print(textwrap.indent(textwrap.fill(meaning, 76), "    "))


def note(remarks: Iterable[str], width: int = 80, max_lines: int | None = None) -> str:
    """Join ``remarks`` on results to the note that follows a verdict, wrapped to ``width`` characters, and cut after
    ``max_lines`` lines if that is given, after a whole remark if one fits; empty if there are no remarks.
    """
    distinct_remarks = [*dict.fromkeys(remarks)]
    lines: list[str] = []
    for count in range(len(distinct_remarks), 0, -1):
        text = "; ".join(distinct_remarks[:count])
        rest = _MORE_REMARKS if count < len(distinct_remarks) else ""
        wrap = functools.partial(
            textwrap.wrap,
            f"note: {text}{rest}",
            width,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines = wrap()
        if max_lines is None or len(lines) <= max_lines:
            break
        lines = wrap(max_lines=max_lines, placeholder=_MORE_REMARKS)
    return "\n".join(lines)


_MORE_REMARKS = " ... (all: smimbench show --full)"
"""End of a note that is cut."""


def verdict_line(verdict: Verdict) -> str:
    """Return the first line of a verdict: the best algorithm, its error over the optimal one, agreement with theory, and time."""
    problem, ranking = verdict.problem, verdict.contenders
    if verdict.metric is None:
        return f"{problem}: no verdict, because no metric of this suite is an error"
    best = ranking[0]
    if not best.points:
        return f"{problem}: no algorithm produced an estimate"
    is_best = " is best" if len(ranking) > 1 else ""
    phrases = [f"{problem}: {best.algorithm}{is_best}"]
    if best.ratio_to_limit is not None:
        ratio = ratio_words(best.ratio_to_limit, best.ratio_to_limit_error)
        phrase = f"{ratio} times the optimal error at infinite size"
        at_size = optimum_words(verdict)
        if at_size:
            phrase += f" ({at_size})"
        phrases.append(phrase)
    phrases += _error_phrases(best)
    if best.compared:
        phrases.append(compared_words(best.compared))
    phrases += _zero_phrases(best, 4)
    phrases += _worth_phrases(best)
    if best.mean_error is None:
        phrases.append(agreement_words(best))
    if best.seconds is not None:
        phrases.append(f"{seconds(best.seconds)} per run")
    if verdict.tied:
        phrases.append(f"tied with {tied_words(verdict)}")
    for attribute, remark in (("below_optimum", BELOW), ("below_floor", BELOW_FLOOR)):
        too_low = [
            contender.algorithm
            for contender in ranking[1:]
            if getattr(contender, attribute)
        ]
        if too_low:
            phrases.append(f"{', '.join(too_low)}: {remark}")
    unsolved = max(contender.unsolved for contender in ranking)
    if best.mean_error is not None:
        phrases.append("the optimal error is not known")
    elif unsolved:
        phrases.append(
            f"{unsolved} of {best.points + unsolved} sample ratios left out, whose optimal error is not known"
        )
    return ", ".join(phrases)


def optimum_words(verdict: Verdict) -> str:
    """Return the ratio of the optimal error at the dimension of a verdict to that at infinite dimension, and where it is from, in
    words; empty if it is unknown.
    """
    best = verdict.contenders[0]
    if best.optimum_to_limit is None:  # nor does a fit to its own runs tell
        return ""
    ratio_and_error = best.optimum_to_limit, best.optimum_to_limit_error
    words = optimum_at_size_words(*ratio_and_error, best.optimum_source, ", ")
    size = f"{verdict.dimension_letter} = {verdict.dimension}"
    return f"optimum at {size}: {words}"


def contender_line(contender: Contender) -> str:
    """Return the line of a verdict on another algorithm than the best: its error relative to the best one's and to the optimal
    error.
    """
    phrases = []
    if contender.compared:
        phrases.append(compared_words(contender.compared))
    if contender.ratio_to_limit is not None:
        phrases.append(f"{contender.ratio_to_limit:.3g} times the optimal error")
    phrases += _error_phrases(contender) + _zero_phrases(contender, 2)
    phrases += _worth_phrases(contender)
    if contender.is_too_low or contender.agreement.prediction in REFUSED:
        phrases.append(agreement_words(contender))
    return f"{contender.algorithm}: {', '.join(phrases) or 'no estimate'}"


def _error_phrases(contender: Contender) -> list[str]:
    """Return the phrases on a contender's error, where no optimal error is known, and on its number of failed runs."""
    phrases = []
    if contender.mean_error and contender.mean_error.mean is not None:
        phrases.append(f"error {measured(*contender.mean_error)}")
        if contender.points > 1:
            phrases[0] += f" (geometric mean of {contender.points} sample ratios)"
    if contender.failed:
        run_count = count_runs(contender.status_counts)
        phrases.append(f"{contender.failed} of {run_count} runs failed")
    return phrases


def _zero_phrases(contender: Contender, digits: int) -> list[str]:
    """Return the phrase on the contender's error at sample ratios where the optimal error is 0, with ``digits`` decimals; none if
    it reached 0 there and there is a ratio to the optimum at others.
    """
    if contender.where_zero is None:
        return []
    if contender.zero_reached:
        phrases = ["0 where the optimal error is 0"]
        return phrases if contender.ratio_to_limit is None else []
    return [f"{number(contender.where_zero, digits)} where the optimal error is 0"]


def _worth_phrases(contender: Contender) -> list[str]:
    """Return the phrase on what a contender's passes over the data are worth, if it was run at a single sample ratio."""
    first_order, *others = contender.first_order
    if others or not first_order.is_compared:
        return []
    words = f"{number(first_order.passes, 0)} passes, worth {worth_words(first_order)}"
    is_small = first_order.worth is not None and first_order.worth < 1
    return [f"{words}: {first_order.remark}" if is_small else words]


def compared_words(comparison: ErrorRatio) -> str:
    """Return the text on the ratio of an algorithm's error to that of another (``comparison``), with its confidence interval."""
    low, high = comparison.interval
    return f"{comparison.ratio:.3g} times {comparison.reference}'s error ({low:.3g} to {high:.3g})"


def reversal_line(verdict: Verdict) -> str:
    """Return the line on algorithms that are better than the best one at some sample ratios and worse at others."""
    best, phrases = verdict.contenders[0].algorithm, []
    for reversal in verdict.reversals[:2]:
        better_at, worse_at = map(
            _sample_ratios_text, (reversal.better_at, reversal.worse_at)
        )
        phrases.append(
            f"{reversal.algorithm} is better than {best} at {better_at}, worse at {worse_at}"
        )
    if hidden_count := len(verdict.reversals) - len(phrases):
        phrases.append(f"and {hidden_count} more")
    return f"{REVERSED}: {'; '.join(phrases)}"


def _sample_ratios_text(alphas: Sequence[float]) -> str:
    """Name up to three sample ratios ``alphas``, or the range of more."""
    if len(alphas) > 3:
        return (
            f"{len(alphas)} sample ratios from {min(alphas):.4g} to {max(alphas):.4g}"
        )
    return f"alpha {' and '.join(f'{alpha:.4g}' for alpha in alphas)}"


def agreement_words(contender: Contender) -> str:
    """Return the phrase on whether a contender agrees with theory, with the measured or the detectable deviation."""
    answer = contender.agreement.prediction
    return _agreement_text(
        contender,
        AGREEMENT.get(answer, ""),
        "a deviation above {} would have been detected",
    )


def agreement_meaning(contender: Contender) -> str:
    """Return the explanation of the phrase on whether a contender agrees with theory."""
    answer = contender.agreement.prediction
    if contender.is_too_low:
        return VERDICT_HELP[BELOW if contender.below_optimum else BELOW_FLOOR]
    if contender.agreement.far_off is not None:
        return VERDICT_HELP[OUTLIERS]
    meaning = VERDICT_HELP[AGREEMENT[answer]]
    return f"{meaning} {VERDICT_HELP[DETECTABLE]}" if answer == "yes" else meaning


def worth_cell(contender: Contender) -> str:
    """Return the table cell on what a contender's passes are worth: of several sample ratios and components, the range."""
    first_order = contender.first_order
    worths = [entry.worth for entry in first_order if entry.worth is not None]
    if len(first_order) == 1 or len(worths) < len(first_order):
        return worth_words(first_order[0]) if len(first_order) == 1 else ""
    return f"{min(worths):.2g} to {max(worths):.2g}"


def agreement_cell(contender: Contender) -> str:
    """Return the table cell on the agreement of a contender (the scores of an algorithm) with theory."""
    answer = contender.agreement.prediction or "none"
    return _agreement_text(contender, answer.replace("size", "size?"), "{} detectable")


def _agreement_text(contender: Contender, answer_text: str, detectable: str) -> str:
    """Return the text on agreement with theory, with the measured or the detectable deviation in parentheses."""
    agreement = contender.agreement
    if contender.is_too_low:
        return BELOW if contender.below_optimum else BELOW_FLOOR
    if agreement.far_off is not None:
        outlier_count, runs = agreement.far_off
        return f"{outlier_count} of {runs} runs {'is an outlier' if outlier_count == 1 else 'are outliers'}"
    if agreement.prediction == "yes" and agreement.would_have_seen is not None:
        return f"{answer_text} ({detectable.format(_percent_text(agreement.would_have_seen)[1:])})"
    if agreement.prediction == "no" and agreement.deviation_of is not None:
        metric = agreement.deviation_of
        metric_words = "" if metric == "mse" else f"{metric_label(metric)} "
        deviation = _percent_text(agreement.deviation or 0.0)
        return (
            f"{answer_text} ({metric_words}{deviation}, z {agreement.deviation_z:.3g})"
        )
    return answer_text


def _percent_text(deviation: float) -> str:
    """Format a relative deviation in percent, to two digits."""
    return f"{deviation:+z.0%}" if abs(deviation) >= 0.095 else f"{deviation:+z.1%}"


def tied_words(verdict: Verdict) -> str:
    """Return the names of the algorithms tied with the best; of more than two, the first and a count."""
    if len(verdict.tied) <= 2:
        return " and ".join(verdict.tied)
    return f"{verdict.tied[0]} and {len(verdict.tied) - 1} more"


def no_time_words(contender: Contender) -> str:
    """Return the text shown if there is no time to reach within 5% of the optimum: never, partly, or blank if nothing was run."""
    if contender.near_fraction is None:
        return ""
    return "partly" if contender.near_fraction else "never"


# -- what they mean -------------------------------------------------------------------------------------------------------


def columns_document() -> dict[str, dict[str, str]]:
    """Return the meaning of every column, by topic and heading, as ``smimbench help columns`` prints it."""
    return {
        topic: {column.heading: column.meaning for column in columns}
        for topic, columns in COLUMNS.items()
    }


def print_columns(console: Console, document: dict[str, dict[str, str]]) -> None:
    """Print the meanings of the columns, in one table per topic."""
    help_columns = [
        Column(key, fields=key, words=True) for key in ("column", "meaning")
    ]
    for topic, columns in document.items():
        rows = [
            {"column": heading, "meaning": meaning}
            for heading, meaning in columns.items()
        ]
        console.print(make_table(topic, help_columns, rows, padding=1))
        console.print()
