"""Definition of the columns of all tables (heading, meaning, cell text), and tables for a terminal and HTML."""

from __future__ import annotations

import io
import math
import re
import textwrap
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from smimbench.files import printable
from smimbench.report.row import FITTED, common_dimension_letter, names_with_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from jinja2 import Environment
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from smimbench.report.row import (
        Epsilon,
        LearnedSequence,
        LearningFactor,
        Number,
        PassesWorth,
        Row,
        RowEntry,
    )

FROM_LIMIT = "*"
"""Mark of a z that is the difference from the limit of the prediction, because its value at finite D is not known."""

FEW = 4
"""Number of runs below which z is marked as unreliable: the standard error of three runs is off by half."""

Z_MARKS = {
    FROM_LIMIT: "from the limit of infinite size; the prediction at this size is not known",
    "?": f"fewer than {FEW} runs",
}
"""Marks in a column of z with their meaning."""

SHORT = {
    "ok": "ok",
    "not-converged": "n.c.",
    "diverged": "div.",
    "timeout": "t/o",
    "failed": "fail",
    "skipped": "skip",
}


# -- cells ----------------------------------------------------------------------------------------------------------------


def number(value: Number, digits: int = 4, decimals: int = 1) -> str:
    """Format a number with ``digits`` decimals if it is below 10, with four significant digits above; very small and large
    numbers get an exponent and ``decimals`` decimals. None is blank.
    """
    if value is None:
        return ""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) < 10.0**-digits / 2 or abs(value) >= 1e5:
        mantissa, _, exponent = f"{value:.{decimals}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{digits}f}" if abs(value) < 10 else f"{value:.4g}"


def uncertain(value: Number, error: Number, smallest_shown_error: float = 1e-5) -> str:
    """Format a value with its error, which is left out if it is below ``smallest_shown_error``."""
    if value is None or error is None:
        return number(value)
    return (
        number(value, 5)
        if error < smallest_shown_error
        else f"{number(value)}±{number(error, decimals=0)}"
    )


def measured(value: Number, error: Number) -> str:
    """Format a value with its standard error, however small."""
    return uncertain(value, error, 0.0)


def seconds(value: Number) -> str:
    """Format a duration with its unit, to three digits."""
    if value is None:
        return ""
    # From 1000 seconds and 100 minutes on the next unit: 3.48e+03 s is hard to read.
    for minimum, unit, seconds_per_unit in (
        (6000.0, "h", 3600.0),
        (999.5, "min", 60.0),
        (1.0, "s", 1.0),
        (1e-3, "ms", 1e-3),
    ):
        if value >= minimum:
            return f"{value / seconds_per_unit:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def signed(
    value: Number, format_spec: str, large_from: float, large_format_spec: str
) -> str:
    """Format a number with its sign, in another format if it is at least ``large_from``; None is blank."""
    return (
        ""
        if value is None
        else format(
            value,
            "+z" + (format_spec if abs(value) < large_from else large_format_spec),
        )
    )


def marked_z(z: Number, n: int | None) -> str:
    """Format a z-score (a difference in units of its standard error), marked by ``?`` if ``n`` runs are too few for a reliable
    standard error.
    """
    return signed(z, ".1f", 1000, ".0e") + (
        "?" if z is not None and n is not None and n < FEW else ""
    )


def statuses(counts: Mapping[str, int], moving_runs: int) -> Text:
    """Format ``counts``, the number of runs per status (in color unless ok), and the number ``moving_runs`` of those whose error
    still changed at the last step.
    """
    text = Text()
    for index, (status, run_count) in enumerate(
        sorted(counts.items(), key=lambda kv: kv[0] != "ok")
    ):
        text.append(" " if index else "").append(
            f"{run_count} {SHORT[status]}",
            style="green" if status == "ok" else "bold red",
        )
    if moving_runs:
        text.append(f" ({moving_runs} moving)", style="yellow")
    return text


def ratio_words(ratio: Number, error: Number = None) -> str:
    """Format a ratio of the error to the optimal one, with its standard error if known; None is blank."""
    if ratio is None or error is None:
        return percent(ratio, ".4g")
    if max(ratio, error) >= 1e5:
        return measured(ratio, error)
    decimals = max(0, min(3, -math.floor(math.log10(max(error, 1e-9)))))
    return f"{ratio:.{decimals}f}±{error:.{decimals}f}"


def worth_words(worth: PassesWorth) -> str:
    """Format the number of passes that runs are worth, with its interval; blank if it is unknown."""
    if worth.worth is None:
        return worth.remark or ""
    low, high = worth.interval or (None, None)
    if not worth.worth or low is None:
        return f"{worth.worth:.2g}"
    return f"{worth.worth:.1f} ({low:.1f} to {'more' if high is None else format(high, '.1f')})"


def percent(value: Number, format_spec: str = ".0%") -> str:
    """Format a fraction as a percentage, or as another ``format_spec`` says; None is blank."""
    return "" if value is None else format(value, format_spec)


def _time_near_text(epsilon: Epsilon, row: Row) -> str:
    """Format the median time until the error of the runs of a row is at most ``1 + epsilon`` times the optimal one; ``never`` if
    most runs do not get there, blank if it is unknown.
    """
    near = row.cost.near[epsilon]
    return seconds(near.seconds) or ("" if near.fraction is None else "never")


def optimum_at_size_words(
    ratio: Number, error: Number, source: str | None, separator: str = " "
) -> str:
    """Format the ``ratio`` of the Bayes-optimal error at the dimension of the runs to that at infinite dimension, with its
    error and the source of the former; unknown is blank.

    There is no number for the algorithm to whose runs it was fitted: its ratio to it would be 1 by construction.
    """
    if source is None or (ratio is None and not source.startswith(FITTED)):
        return ""
    source = source.replace(FITTED, "fitted to ")
    return (
        source if ratio is None else f"{ratio_words(ratio, error)}{separator}{source}"
    )


def _peak_share_text(share: Number, ceiling: str) -> str:
    """Format a share of the machine's peak speed that iterations reach; ``ceiling`` says which peak bounds them, marked ``x``
    (matrix products) or ``r`` (memory reads).
    """
    return (
        ""
        if share is None
        else f"{100 * share:.0f}% {'x' if ceiling == 'products' else 'r'}"
    )


def z_text(row: Row | RowEntry) -> str:
    """Format the z-score of a row: its mean minus the prediction at its dimension, in standard errors; marked by ``*`` if only
    the prediction at infinite dimension is known.
    """
    text = marked_z(row.z, row.estimate.n)
    return f"{text}{FROM_LIMIT}" if text and row.z_at_size is None else text


def _learning_orders_text(sequences: Sequence[LearnedSequence]) -> str:
    """Format the three most frequent orders in which components were learned, each with its number of runs."""
    return ", ".join(
        f"{' '.join(map(str, order.layers)) or 'none'} ({order.runs})"
        for order in sequences[:3]
    )


def _learning_factor_text(factor: LearningFactor | None) -> str:
    """Format the learning time of the last component divided by that of the first, with its standard error."""
    if factor is None:
        return ""
    return f"{factor.mean:.3g}" + ("" if factor.sem is None else f"±{factor.sem:.2g}")


def _change_text(
    change_percent: Number, interval: Sequence[float] | None, baseline: Number
) -> str:
    """Format a change of a mean, in percent of its ``baseline``, with the half-width of its confidence ``interval`` (in the units
    of the mean).
    """
    if change_percent is None:
        return ""
    text = f"{change_percent:+.3g}"
    if interval is not None and baseline:
        lower, upper = interval
        text += f"±{50 * (upper - lower) / abs(baseline):.2g}"
    return f"{text}%"


def one_digit(error: Number) -> str:
    """Format a numerical error with one significant digit; None is blank."""
    return "" if error is None else f"{error:.0e}" if error else "0"


def _generalization_error_text(
    estimator: str, errors: Mapping[str, Number] | None, component: int | None
) -> str:
    """Format the generalization error of an estimator (Bayes or plug-in) from ``errors`` by estimator, in the row of the
    first component only, since it is one number for all.
    """
    # one error for all components: only in the first row
    return number((errors or {}).get(estimator), 5) if component in (None, 1) else ""


# -- columns --------------------------------------------------------------------------------------------------------------


def as_text(value: object) -> str:
    """Convert a value to text; None is blank."""
    return "" if value is None else str(value)


class Column(NamedTuple):
    """Column of a table: ``heading``, function ``text`` that formats its cells, ``meaning`` for the help, and whether it contains
    ``words``, which may wrap.

    The text is made of the values of ``fields`` (names apart by blanks, ``estimate.mean`` of what is nested), or of the whole row
    if there are none. A page sorts by ``sorts``, or the first field. Columns without any entry are left out; with
    ``unless_same`` those, too, in which all rows agree. ``marks`` are characters in cells whose meaning follows the table.
    """

    heading: str
    text: Callable[..., str | Text] = as_text
    meaning: str = ""
    fields: str = ""
    words: bool = False
    unless_same: bool = False
    sorts: str = ""
    marks: Mapping[str, str] = MappingProxyType({})

    def cell(self, row: object) -> str | Text:
        """Return the text of the cell in a row."""
        return (
            self.text(*(_value_at_path(row, name) for name in self.fields.split()))
            if self.fields
            else self.text(row)
        )

    def key(self, row: Any) -> Any:
        """Return the value by which the HTML page sorts the cell of a ``row``; None for a blank cell."""
        paths = self.sorts or self.fields
        return _value_at_path(row, paths.split()[0]) if paths else None


def _value_at_path(value: object, path: str) -> object:
    """Return the value of the field of ``value`` with a path like ``estimate.mean``; None if there is none."""
    if isinstance(value, dict):
        return value.get(path)
    for attribute in path.split("."):
        value = None if value is None else getattr(value, attribute)
    return value


_NEARNESS: tuple[tuple[Epsilon, str], ...] = (("0.5", "1.5"), ("0.2", "1.2"))

COLUMNS: dict[str, list[Column]] = {
    "Where a row is from": [
        Column("problem", as_text, "Label of the problem in the suite.", "place.problem", words=True),
        Column("algorithm", as_text, "Label of the algorithm in the suite, with @backend where several "
               "backends are shown. Estimates given to `smimbench score` are listed here too.", "place.algorithm", words=True),
        Column("parameter choice", as_text, "How the parameters of the algorithm were chosen. tuned: by `smimbench tune`, on "
               "seeds that no score uses. as published: as in the "
               "publication that the suite names. by hand: written in the suite. default: all others, and those that could be "
               "tuned and were not. oracle: it starts near the teacher, so it is not ranked. Steps and samples do not "
               "count.", "place.settings", words=True),
        Column("alpha", "{:.4g}".format, "Sample ratio of the runs: n / D, or n / d^2 for a signal of extensive "
               "rank, where n is the number of samples. For an algorithm that draws fresh samples, n counts all that it drew.",
               "place.alpha"),
        Column("D", as_text, "Dimension of the signal; d for a signal of extensive rank.", "place.dimension",
               unless_same=True),
        Column("metric", as_text, "Name of the measured quantity, such as mse; see `smimbench "
               "list metrics`.", "metric", words=True),
        Column("component", as_text, "Number of the signal component, from 1; the number of the "
               "layer where the channel has layers.", "component"),
        Column("runs", as_text, "Number of runs that gave an estimate.", "estimate.n"),
        Column("run status", statuses, "Number of runs per outcome: ok, n.c. (not converged), div. (diverged), t/o (timeout), "
               "fail, skip. `(8 moving)`: in so many of these the error was still changing at the last step.",
               "runs.status_counts runs.moving", words=True),
    ],
    "Errors": [
        Column("mean ± s.e.m.", measured, "Mean of the metric over the runs and its "
               "standard error, which needs at least two runs.", "estimate.mean estimate.sem"),
        Column("predicted", uncertain, "Value that theory predicts "
               "for this algorithm, with its numerical error; blank if there is no theory for this algorithm.",
               "prediction.value prediction.error"),
        Column("optimal", number, "Bayes-optimal value, from state evolution for D to infinity at the "
               "sample ratio of the row.", "optimum.limit"),
        Column("mean - optimal", partial(signed, format_spec=".4f", large_from=1e4, large_format_spec=".1e"),
               "Mean over the runs minus the optimal value.", "theory.difference"),
        Column("z score", z_text, "Mean over the runs minus the predicted value at the dimension of the runs, in units of the "
               "combined standard error; `z_at_size` in JSON. `*`: only the predicted value for D to infinity is known. `?`: "
               "fewer than 4 runs, too few for a reliable standard error. Blank where the prediction is 0.",
               sorts="z", marks=Z_MARKS),
        Column("error ÷ optimal error", ratio_words, "Mean error divided by the Bayes-optimal error for D to infinity. At finite "
               "D the best possible ratio is not 1 but `optimal error, this D ÷ infinite D`. In the verdict: the geometric mean "
               "over sample ratios, in which a run without an estimate counts as the worst. Blank where the optimal error is 0.",
               "ratio_to_limit ratio_to_limit_error"),
        Column("optimal error, this D ÷ infinite D", optimum_at_size_words, "Bayes-optimal error at the dimension of the runs, "
               "divided by that for D to infinity, and where it is from. closed form, sampled: known without the runs of the "
               "table. fitted to gamp: estimated from the runs of gamp, whose row has no number, because its ratio to them is 1 "
               "by construction. Blank where only the limit is known.",
               "optimum_to_limit optimum_to_limit_error optimum.source", words=True),
        Column("passes", partial(number, digits=0), "Mean number of passes over the data, each a product with the inputs and one "
               "with their transpose. Blank for minibatches, fresh samples, and what does not count them.", "first_order.passes"),
        Column("error ÷ floor", ratio_words, "Mean error divided by the smallest error of a first-order method after as many "
               "passes, at this D where that is known.", "first_order.ratio"),
        Column("worth in passes", worth_words, "Number of passes after which the best first-order method has the error of the "
               "runs, with its 95% interval. `12 or more`: that method does not get further.", "first_order", words=True),
        Column("mean error", measured, "Where no optimal error is known: the error, as a geometric mean over sample ratios.",
               "mean_error mean_error_sem"),
        Column("error where optimum is 0", lambda error, reached: "0" if reached else number(error, 3),
               "Largest error among sample ratios where the optimal error is 0; printed as 0 if all these errors are below "
               "run.target.",
               "where_zero zero_reached"),
        Column("agrees with theory", meaning="Result of a test (level 1%) that the errors at all sample ratios, sizes and "
               "metrics agree with theory. yes: they do; the percentage in brackets is the relative deviation that the test "
               "would have found with a probability of 99%. no: they do not (largest deviation and its z). finite size?: add "
               "larger D to see whether the deviation is due to finite D. 3 of 60 runs are outliers: the others agree with "
               "theory. "
               "too few runs: a deviation of 50% could go unnoticed."),
        Column("instances with estimate", "{}/{}".format, "Number of instances (data sets) for which the algorithm gave an "
               "estimate, out of those for which any algorithm did. Algorithms that draw their own samples are left out.",
               "instances all"),
        Column("error ÷ lowest error", partial(number, digits=3), "Error divided by the error of the algorithm in the first "
               "line, as a geometric mean over the instances for which both gave an estimate. The first line has the lowest "
               "error or, of all problems together, the lowest among algorithms with the most estimates.", "to_best"),
        Column("95% interval of error ratio", lambda ends: " to ".join(number(end, 3) for end in ends or ()),
               "95% confidence interval of error ÷ lowest error, from Student's t applied to the logarithms.", "interval"),
    ],
    "Time": [
        Column("time to 1.05x optimum", partial(_time_near_text, "0.05"), "Median time until the error of a run "
               "is at most 1.05 times the optimum: the optimal error at this D, or the error of a Bayes-optimal algorithm on the "
               "instance if that is larger; where the optimum is 0, until the error is below run.target. A run that does not "
               "get so close counts as infinite time. never: most runs do not; partly: some sample ratios have no such time."),
        Column("runs at 1.05x optimum", lambda r: percent(r.cost.near["0.05"].fraction),
               "Share of runs whose error gets below 1.05 times the optimum."),
        *(Column(f"time to {ratio}x optimum", partial(_time_near_text, epsilon),
                 f"Median time until the error is at most {ratio} times the optimum.")
          for epsilon, ratio in _NEARNESS),
        Column("time per run", seconds, "Mean duration of a run.", "cost.seconds"),
        Column("iter.", partial(number, digits=0), "Mean number of iterations of a run.", "cost.iterations"),
        Column("first iter. time", seconds, "Time of the first iteration, which often compiles.", "cost.first_iteration"),
        Column("time per iter.", seconds, "Median duration of an iteration, without the first.", "cost.per_iteration"),
        Column("share of peak speed", _peak_share_text,
               "Speed of an iteration as a share of this machine's measured peak: of matrix "
               "products (x) or of memory reads (r), whichever limits the iteration.", "cost.ceiling_fraction cost.ceiling"),
        Column("peak memory", lambda size: "" if size is None else f"{size / 2**20:.0f} MB", "Largest memory used by any run.",
               "cost.peak_memory"),
    ],
    "Infinite dimension": [
        Column("extrapolated ± error", lambda value, error, refusal: refusal or measured(value, error),
               "Mean of the metric extrapolated from at least three dimensions to infinite D. The standard error allows for "
               "terms of order 1/D^2. `sizes too "
               "small`: these terms may move the limit by more than a tenth. `no series in 1/D`: the means scatter about the "
               "fit by more than chance (p < 1%).", "accepted_fit.limit accepted_fit.error fit.refusal"),
        Column("1/D coefficient ± error", measured, "Fitted coefficient b of the "
               "1/D term, with its standard error.", "accepted_fit.coefficient accepted_fit.coefficient_error"),
        Column("1/D coefficient, theory", partial(percent, format_spec=".4g"), "Coefficient b of the 1/D term as known in "
               "closed form.", "prediction.coefficient"),
        Column("chi2 / dof", "{:.1f}/{}".format, "Chi-square of the fit in 1/D, divided by its degrees of "
               "freedom.", "fit.chi2 fit.free"),
    ],
    "Order of learning": [
        Column("layer 1 learning time", meaning="One column for each layer or component: median time, in epochs "
               "or iterations, until it reaches half of its optimal overlap; `-` where the optimal overlap is 0."),
        Column("learning order (runs)", _learning_orders_text,
               "Order in which the components or layers reach half of their optimal "
               "overlap; in brackets, the number of runs with this order.", "runs.learning_order.sequences", words=True),
        Column("last ÷ first learning time", _learning_factor_text, "Learning time of the last component divided by that of the "
               "first: geometric mean over runs and its standard error.", "runs.learning_order.factor"),
        Column("runs that learn all", percent, "Share of runs that learned all components.", "runs.learning_order.success"),
    ],
    "Other numbers that runs report": [
        Column("index in reported list", as_text, "Position of the number in a list that the algorithm reports, such as a list "
               "of eigenvalues.", "list_index", unless_same=True),
        Column("theory, infinite D", lambda value: number(value) or "none", "Value that theory predicts for a reported number as "
               "D grows; none: theory predicts no such value.", "finding.theory"),
        Column("runs with this number", "{}/{}".format, "Number of runs that reported this number, out of all runs.",
               "finding.found finding.runs"),
    ],
    "Comparison of two results": [
        Column("mean before", number, "Mean of the metric in the first of the two compared results.", "baseline.estimate.mean"),
        Column("mean after", number, "Mean of the metric in the second of the two compared results.", "candidate.estimate.mean"),
        Column("change of mean", _change_text, "Relative change of the mean from the first result to the second, with its 99.7% "
               "interval; errors are compared instance by instance where both results use the same instances.",
               "judgment.percent judgment.interval baseline.estimate.mean"),
        Column("verdict on change", as_text, "Conclusion for the second result relative to the first. better, worse: the "
               "interval of the change excludes 0. differs: it does not, but every shared run is worse. more runs fail: a larger "
               "share of the runs gave no estimate. only before, only after: the other result has no such row. both at 0: below "
               "run.target where the optimum is 0.",
               "judgment.verdict", words=True),
    ],
    "Theory": [
        Column("MSE ÷ prior variance", partial(number, digits=6), "Predicted mean squared error of a component, divided by that "
               "of guessing the prior mean, which is the prior variance.", "mse"),
        Column("overlap with signal", partial(number, digits=6), "Predicted overlap of the estimate with the signal.", "overlap"),
        Column("numerical error", one_digit, "Numerical error of the number in the column to the left.", "mse_error"),
        Column("error as shift of alpha", one_digit, "Numerical error of the MSE, expressed as a shift of the "
               "sample ratio that would change the MSE as much.", "alpha_error"),
        Column("Bayes gen. error", partial(_generalization_error_text, "bayes"),
               "Generalization error (on new data) of the posterior mean "
               "of the label.", "generalization_error component"),
        Column("plug-in gen. error", partial(_generalization_error_text, "plugin"),
               "Generalization error (on new data) of labels computed "
               "by putting the estimate in place of the signal.", "generalization_error component"),
        Column("fixed-point branch", lambda name: "" if name == "unique" else name, "Solution of state evolution, where there "
               "are several: informed (iteration starts at the signal) or uninformed (starts at the prior mean, and is what "
               "algorithms reach).", "branch", words=True),
        Column("published value", partial(number, digits=6), "Value of this quantity in the publication.", "value"),
        Column("theory - published", lambda theory, value: f"{theory - value:+.1e}",
               "Computed theory value minus the published value.",
               "theory value"),
        Column("uncertainty of published value", lambda tolerance, within: f"{tolerance:.0e}" + ("" if within else " off"),
               "Uncertainty of the published value, as the suite states it (`tolerance`). off: theory differs from it by more "
               "than this and its own numerical error together.", "tolerance within"),
        Column("theory value", lambda value, is_bound: ("<= " if is_bound else "") + number(value, 5), "Value that `smimbench "
               "theory` prints, to be tested with --verify.", "printed bound"),
        Column("Monte Carlo estimate", partial(number, digits=5), "Monte Carlo estimate of the printed value, by --verify, from "
               "plain random draws.", "drawn"),
        Column("standard error of estimate", one_digit, "Standard error of the Monte Carlo estimate to the left.",
               "standard_error"),
        Column("detectable deviation", partial(percent, format_spec=".1%"), "Smallest relative deviation of the printed "
               "value that --verify finds (beyond z = 4) in nine tests of ten, given its draws and the printed error.",
               "excludes"),
    ],
}  # fmt: skip
_BY_HEADING = {
    column.heading: column for columns in COLUMNS.values() for column in columns
}


def column_of(heading: str, fields: str) -> Column:
    """Return a copy of the column of ``COLUMNS`` with this heading that reads other fields."""
    return _BY_HEADING[heading]._replace(fields=fields)


def caption_with_marks(
    caption: str, columns_with_cells: Sequence[tuple[Column, str, Sequence[str | Text]]]
) -> str:
    """Extend the ``caption`` of a table by the meaning of the marks, such as ``*``, that occur in its cells; columns come with
    their heading and cells.
    """
    meanings = [
        f"{mark}: {meaning}"
        for column, _, cells in columns_with_cells
        for mark, meaning in column.marks.items()
        if any(mark in str(cell) for cell in cells)
    ]
    return "; ".join(filter(None, [caption, *meanings]))


def lay_out_columns(
    columns: Iterable[str | Column], rows: Sequence[Any]
) -> list[tuple[Column, str, list[str | Text]]]:
    """Return the columns that have entries for these ``rows``, each with its heading and the texts of its cells; columns that
    would be empty are left out.
    """
    if not rows:
        return []
    cell_formats: dict[str, Callable[[Any], str | Text]] = {}
    dimension_letter, component_word = "D", "component"
    if hasattr(rows[0], "dimension_letter"):
        dimension_letter = common_dimension_letter(rows)
    if hasattr(rows[0], "place"):
        cell_formats = {"algorithm": names_with_backend(rows)}
        component_word = rows[0].component_word
    columns_with_cells = []
    for column_or_heading in columns:
        column = (
            _BY_HEADING[column_or_heading]
            if isinstance(column_or_heading, str)
            else column_or_heading
        )
        cells = [cell_formats.get(column.heading, column.cell)(row) for row in rows]
        distinct_cells = set(map(str, cells))
        is_same = column.unless_same and len(distinct_cells) == 1
        if distinct_cells != {""} and not is_same:
            heading = re.sub(r"\bD\b", dimension_letter, column.heading)
            if heading == "component":
                heading = component_word
            columns_with_cells.append((column, heading, cells))
    return columns_with_cells


# -- on a terminal --------------------------------------------------------------------------------------------------------


def make_table(
    title: str,
    columns: Iterable[str | Column],
    rows: Iterable[Any],
    caption: str = "",
    padding: int = 0,
) -> RenderableType:
    """Make a table for the terminal from ``columns`` and ``rows``, with ``padding`` further blanks between its columns.

    Parameters
    ----------
    columns : iterable of str or Column
        Headings of columns that ``COLUMNS`` has, or others.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, padding, 0, 0), show_edge=False)
    laid_out_columns = lay_out_columns(columns, list(rows))
    for column, heading, _ in laid_out_columns:
        table.add_column(
            heading,
            justify="left" if column.words else "right",
            no_wrap=not column.words,
            overflow="fold",
        )
    for row_cells in zip(*(cells for *_, cells in laid_out_columns)):
        table.add_row(*row_cells)
    return titled(table, title, caption_with_marks(caption, laid_out_columns))


def titled(table: Table, title: str, caption: str = "") -> RenderableType:
    """Put a ``title``, which may be wider than the table, above a finished ``table``, and a ``caption`` below it."""
    for column in table.columns:
        heading = str(column.header)
        cells = [str(cell) for cell in column.cells]
        width = max(map(cell_len, cells), default=0)
        heading_lines = textwrap.wrap(
            heading,
            max(width, len(heading) // 2, 1),
            break_long_words=False,
            break_on_hyphens=False,
        )
        column.header = "\n".join(heading_lines)
        if column.no_wrap:
            # Half a number is a wrong number: rather a table wider than the screen.
            column.min_width = max([width, *map(cell_len, heading_lines)])
        else:  # words of an ordinary length stay whole, too
            all_words = " ".join([heading, *cells]).split()
            column.min_width = min(max(map(cell_len, all_words), default=0), 16)
    caption_lines = [Text(caption, style="dim")] if caption else []
    return Group(Text(title, style="bold"), UncutTable(table), *caption_lines)


class UncutTable:
    """Table that is never cut to the width of the screen; on a narrow screen it extends beyond the edge."""

    def __init__(self, table: Table) -> None:
        """Keep the finished ``table``, to be printed in its full width."""
        self.table = table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Render the table in its own width, however narrow the screen."""
        space = 1 + self.table.padding[1]
        widths = [(column.min_width or 0) + space for column in self.table.columns]
        width = max(options.max_width, sum(widths) - 1)
        yield from console.render(self.table, options.update_width(width))


def safe_console(**settings: Any) -> Console:
    """Make a console on which Rich markup and terminal escapes in texts have no effect."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Console that prints no control characters of a table's texts."""

        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            """Yield the pieces of rendered text, without control characters."""
            for segment in super().render(*arguments, **options):
                if not segment.control:
                    segment = Segment(printable(segment.text), segment.style)
                yield segment

    settings |= {"highlight": False, "markup": False, "emoji": False}
    return SafeConsole(soft_wrap=False, **settings)


def plain_text(tables: Iterable[RenderableType]) -> str:
    """Render tables as plain text of at most 80 characters per line."""
    text = io.StringIO()
    console = safe_console(file=text, width=80, color_system=None, force_jupyter=False)
    for table in tables:
        console.print(table, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


# -- in HTML --------------------------------------------------------------------------------------------------------------


def html_environment() -> Environment:
    """Make the Jinja environment of HTML templates, which escapes text from users and removes control characters."""
    import jinja2

    def without_control_characters(value: object) -> object:
        """Return a value that a template inserts, texts without control characters."""
        return type(value)(printable(value)) if isinstance(value, str) else value

    loader = jinja2.PackageLoader("smimbench.report", "assets")
    return jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=without_control_characters,
        loader=loader,
    )


def html_table(
    columns: Iterable[str | Column],
    rows: Sequence[object],
    attributes: Callable[[Any], Mapping[str, str]] = lambda row: {},
    small_print: Callable[[Any], Sequence[str]] = lambda row: (),
) -> str:
    """Make an HTML table that is sorted by clicking a heading; ``attributes`` gives the HTML attributes of the line of a row,
    ``small_print`` the lines of small print in its last cell. This needs jinja2.

    Parameters
    ----------
    attributes : callable
        Attributes of the line of a row.
    small_print : callable
        Lines of small print in its last cell.
    """
    template = html_environment().get_template("table.html.jinja")
    laid_out_columns = lay_out_columns(columns, rows)
    return template.render(
        shown=laid_out_columns,
        caption=caption_with_marks("", laid_out_columns),
        rows=rows,
        attributes=attributes,
        small_print=small_print,
    )
