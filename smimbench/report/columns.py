"""The columns of all tables: what each means and how its cells are written; tables for a terminal, for HTML, and the page
docs/columns.md.
"""

from __future__ import annotations

import html
import math
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from smimbench.files import printable
from smimbench.report.labels import letter_of, names_with_backend
from smimbench.report.optimum import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from smimbench.files import JsonObject

FEW = 4
"""Runs below which z is marked: the standard error of three runs is off by half. Doubled, most quick suites are marked."""

SHORT = {"ok": "ok", "not-converged": "n.c.", "diverged": "div.", "timeout": "t/o", "failed": "fail", "skipped": "skip"}


# -- cells ----------------------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 4, decimals: int = 1) -> str:
    """A number in few characters, ``decimals`` of them after the point where it needs an exponent; blank for none."""
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


def uncertain(value: float | None, error: float | None, exact: float = 1e-5) -> str:
    """Value and error; an error too small to show at this many digits is left out."""
    if value is None or error is None:
        return number(value)
    return number(value, 5) if error < exact else f"{number(value)}±{number(error, decimals=0)}"


def seconds(value: float | None) -> str:
    """A duration with its unit, to three digits."""
    if value is None:
        return ""
    # From 1000 seconds and 100 minutes on the next unit: 3.48e+03 s is hard to read.
    for least, unit, size in ((6000.0, "h", 3600.0), (999.5, "min", 60.0), (1.0, "s", 1.0), (1e-3, "ms", 1e-3)):
        if value >= least:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def signed(value: float | None, form: str, large: float, form_of_large: str) -> str:
    """A number with its sign, in another format from ``large`` on; blank for none."""
    return "" if value is None else format(value, "+" + (form if abs(value) < large else form_of_large))


def marked_z(z: float | None, n: int | None) -> str:
    """z, marked where few runs make its standard error a guess."""
    return signed(z, ".1f", 1000, ".0e") + ("?" if z is not None and n is not None and n < FEW else "")


def statuses(row: Mapping[str, Any]) -> Text:
    """All statuses of a row, anything but ok in color, and how many of the runs still moved at their last step."""
    text = Text()
    for i, (name, count) in enumerate(sorted(row["status_counts"].items(), key=lambda kv: kv[0] != "ok")):
        text.append(" " if i else "").append(f"{count} {SHORT[name]}", style="green" if name == "ok" else "bold red")
    if moving := row.get("moving") or (row.get("still_moving") or {}).get("runs"):
        text.append(f" {moving} moving", style="yellow")
    return text


def ratio_words(one: Mapping[str, Any]) -> str:
    """Error over the optimal one, with its standard error where that is known; blank where there is none."""
    ratio, error = one["ratio_to_bayes"], one.get("ratio_error")
    if ratio is None or error is None:
        return percent(ratio, ".4g")
    digits = max(0, min(3, -math.floor(math.log10(max(error, 1e-9)))))
    return f"{ratio:.{digits}f}±{error:.{digits}f}"


def percent(value: float | None, form: str = ".0%") -> str:
    """A share; blank for none."""
    return "" if value is None else format(value, form)


def _near(row: Mapping[str, Any], epsilon: str = "0.05") -> JsonObject:
    found: JsonObject = row["time_to_theory"][epsilon]
    return found


def never(near: Mapping[str, Any]) -> str:
    """In place of a time to come near the optimal error; blank where that is not known."""
    return "" if near["fraction"] is None else "never"


def _sized(row: Mapping[str, Any]) -> str:
    if row["metric"] != "mse" or not row["bayes"] or "optimum" not in row:
        return ""
    return LIMIT if row["optimum_source"] == LIMIT else number(row["optimum"])


def _of_peak(row: Mapping[str, Any]) -> str:
    share = row.get("ceiling_fraction")
    return "" if share is None else f"{100 * share:.0f}% {'x' if row['ceiling'] == 'products' else 'r'}"


def _z(row: Mapping[str, Any]) -> float | None:
    """Distance from the prediction; from the optimal value where nothing else is predicted."""
    predicted = row.get("own_theory") is not None or row.get("no_theory")
    found: float | None = row.get("own_z") if predicted else row["z"]
    return found


def _sequences(row: Mapping[str, Any]) -> str:
    most = row["learning_order"]["sequences"][:3]
    return ", ".join(f"{' '.join(map(str, item['layers'])) or 'none'} ({item['runs']})" for item in most)


def _last_over_first(row: Mapping[str, Any]) -> str:
    factor = row["learning_order"]["factor"]
    if factor is None:
        return ""
    return f"{factor['mean']:.3g}" + ("" if factor["sem"] is None else f"±{factor['sem']:.2g}")


def _change(entry: Mapping[str, Any]) -> str:
    if entry["change_percent"] is None:
        return ""
    if entry["interval"] is None or not entry["before"]:
        return f"{entry['change_percent']:+.3g}%"
    low, high = entry["interval"]
    return f"{entry['change_percent']:+.3g}±{50 * (high - low) / abs(entry['before']):.2g}%"


def one_digit(error: float | None) -> str:
    """A numerical error; blank for none."""
    return "" if error is None else f"{error:.0e}" if error else "0"


def _generalization(point: Mapping[str, Any], kind: str) -> str:
    if point["component"] not in (None, 1):  # one error for all components: only in the first row
        return ""
    return number((point.get("generalization_error") or {}).get(kind), 5)


# -- columns --------------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column: heading, text of a cell, meaning, what a page sorts by, and whether it holds words, which wrap.

    Columns without any entry are left out; with ``unless_same`` those, too, in which all rows agree.
    """

    heading: str
    text: Callable[[Any], str | Text] = str
    meaning: str = ""
    key: str = ""
    words: bool = False
    unless_same: bool = False


COLUMNS: dict[str, list[Column]] = {
    "Where a row is from": [
        Column("problem", lambda r: r["problem"], "Its label in the suite.", words=True),
        Column("algorithm", lambda r: r["algorithm"], "Its label in the suite, with @backend where several backends are shown. "
               "Estimates from `smimbench score` stand next to the algorithms of the suite.", words=True),
        Column("alpha", lambda r: f"{r['alpha']:.4g}", "Sample ratio that was used: n / D, or n / d^2 for a signal of extensive "
               "rank. Of algorithms that draw fresh samples, the ratio of all samples that they drew.", "alpha"),
        Column("D", lambda r: str(r["dimension"]), "Dimension of the signal; d for a signal of extensive rank.", "dimension",
               unless_same=True),
        Column("metric", lambda r: r["metric"], "What is measured; `smimbench list metrics`.", words=True),
        Column("component", lambda r: str(r["component"] or ""), "Component of the signal, from 1; layer where the channel has "
               "layers."),
        Column("n", lambda r: str(r["n"]), "Runs with an estimate."),
        Column("status", statuses, "How the runs ended: ok, n.c. (not converged), div. (diverged), t/o (timeout), fail, skip. "
               "`moving`: the error still moved at the last step.", words=True),
    ],
    "Errors": [
        Column("mean ± s.e.m.", lambda r: uncertain(r["mean"], r["sem"], 0.0), "Mean over the runs and its standard error. One "
               "run has no standard error.", "mean"),
        Column("predicted", lambda r: uncertain(r.get("own_theory"), r.get("own_theory_error")), "What theory predicts for this "
               "algorithm, with its numerical error; blank if there is no such theory.", "own_theory"),
        Column("optimal", lambda r: number(r["bayes"]), "Bayes-optimal value from state evolution at the same sample ratio.",
               "bayes"),
        Column("at this D", _sized, "The optimum at the size that was run: the limit, corrected by a term in 1/D. It is known in "
               "closed form, or measured by the runs of a Bayes-optimal algorithm. limit: it is not known.", "optimum"),
        Column("diff", lambda r: signed(r["difference"], ".4f", 1e4, ".1e"), "Mean minus optimal.", "difference"),
        Column("z", lambda r: marked_z(_z(r), r.get("n")), "Mean minus prediction (minus optimal where both are the same), in "
               "units of both errors together. `?`: fewer than 4 runs, too few for a standard error. Blank where theory is 0.",
               "own_z"),
        Column("error / optimal", ratio_words, "Error over the Bayes-optimal error at this D, as far as it is known; 1 cannot be "
               "beaten. In the verdict: the geometric mean over sample ratios. Blank where the optimal error is 0.",
               "ratio_to_bayes"),
        Column("at 0", lambda c: "0" if c["zero_reached"] else number(c["where_zero"], 3), "Largest error where the optimal "
               "error is 0 (0: below run.target).", "where_zero"),
        Column("as predicted", meaning="A test of all sample ratios, sizes and metrics, at a level of 1%. yes: no number is "
               "further from its prediction than chance and finite size allow; a deviation of the error by the share in "
               "brackets would have been seen with a probability of 95%. no: one does; the largest deviation and its z. finite "
               "size?: it may be finite size; add larger D. too few runs: a deviation by half would not have been seen."),
        Column("instances", lambda e: f"{e['instances']}/{e['all']}", "Instances with an estimate, of all. Algorithms that draw "
               "samples of their own are left out.", "instances"),
        Column("error / best", lambda e: number(e["to_best"], 3), "Error over that of the first algorithm, on the same "
               "instances: geometric mean.", "to_best"),
        Column("95% interval", lambda e: " to ".join(number(end, 3) for end in e["interval"] or ()), "Of error / best, by "
               "Student's t on the logarithms."),
    ],
    "Time": [
        Column("time to 5%", lambda r: seconds(_near(r)["seconds"]) or never(_near(r)), "Median time until the error is within "
               "5% of the optimum at this D, or of what a Bayes-optimal algorithm reached on the instance if that is more (below "
               "run.target where it is 0). A run that never gets there counts as infinity. never: most runs; partly: not at all "
               "sample ratios.", "near_seconds"),
        Column("runs at 5%", lambda r: percent(_near(r)["fraction"]), "Share of runs that get within 5% of the optimum.",
               "near_fraction"),
        *(Column(f"to {name}", lambda r, e=epsilon: seconds(_near(r, e)["seconds"]) or never(_near(r, e)),  # type: ignore[misc]
                 f"The same for {name}, in iterations where the table says so.")
          for epsilon, name in (("0.5", "50%"), ("0.2", "20%"), ("0.05", "5%"))),
        Column("per run", lambda r: seconds(r["seconds"]), "Mean time of a run.", "seconds"),
        Column("iter.", lambda r: number(r["iterations"], 0), "Mean number of iterations.", "iterations"),
        Column("first", lambda r: seconds(r["first_iteration"]), "Time of the first iteration, which often compiles."),
        Column("per iter.", lambda r: seconds(r["per_iteration"]), "Median time of the iterations after the first."),
        Column("of peak", _of_peak, "Share of this machine's measured rate of matrix products (x) or of reading memory (r), "
               "whichever limits the iteration."),
        Column("memory", lambda r: "" if r["peak_memory"] is None else f"{r['peak_memory'] / 2**20:.0f} MB", "Largest memory of "
               "a run."),
    ],
    "Infinite dimension": [
        Column("value ± err", lambda e: e["refusal"] or uncertain(e["value"], e["error"], 0.0), "Limit of the means as D grows, "
               "from at least three dimensions, with its standard error, which allows for terms of order 1/D^2. no series in "
               "1/D: means scatter about it by more than chance (p < 1%).", "value"),
        Column("b ± err", lambda e: uncertain(e["coefficient"], e["coefficient_error"], 0.0), "Fitted coefficient of 1/D."),
        Column("b in theory", lambda e: percent(e.get("own_coefficient"), ".4g"), "Its value in closed form."),
        Column("chi2", lambda e: f"{e['chi2']:.1f}/{e['dof']}", "Chi-square of the fit over its degrees of freedom.", "chi2"),
    ],
    "Order of learning": [
        Column("layer 1, component 1, ...", meaning="Median epochs (or iterations) until half of its optimal overlap; `-` where "
               "that is 0."),
        Column("order (runs)", _sequences, "Order in which components got there, and in how many runs.", words=True),
        Column("last / first", _last_over_first, "Time of the last component over that of the first: geometric "
               "mean and standard error."),
        Column("all", lambda r: percent(r["learning_order"]["success"]), "Share of runs that learned all components."),
    ],
    "Other numbers that runs report": [
        Column("no.", lambda e: str(e["no"]), "Position in the list that the algorithm reports, as of eigenvalues.",
               unless_same=True),
        Column("theory", lambda e: number(e["theory"]) or "none", "What theory expects; none: no such value as D grows."),
        Column("found", lambda e: f"{e['found']}/{e['runs']}", "Runs that found a value, of all."),
    ],
    "Comparison of two results": [
        Column("before", lambda e: number(e["before"]), "Mean of the first result."),
        Column("after", lambda e: number(e["after"]), "Mean of the second one."),
        Column("change", _change, "Relative change of the mean with its 99.7% interval, paired where the instances are "
               "the same."),
        Column("made by", meaning="Versions of the items that made the result, and those that are installed."),
        Column("verdict", lambda e: e["verdict"], "better, worse, within noise, nearer to theory (worse, but closer to the "
               "prediction), both at 0, only before, only after.", words=True),
    ],
    "Theory": [
        Column("MSE", lambda p: number(p["mse"], 6), "Predicted squared error per component, over that of the prior "
               "mean."),
        Column("overlap", lambda p: number(p["overlap"], 6), "Predicted overlap of the estimate with the signal."),
        Column("error", lambda p: one_digit(p["mse_error"]), "Numerical error of the number before it."),
        Column("in alpha", lambda p: one_digit(p["alpha_error"]), "The same error as a change of the sample ratio."),
        Column("gen. Bayes", lambda p: _generalization(p, "bayes"), "Error of prediction on new data of the posterior "
               "mean."),
        Column("plug-in", lambda p: _generalization(p, "plugin"), "Error of prediction on new data of the estimate "
               "put in."),
        Column("branch", lambda p: "" if p["branch"] == "unique" else p["branch"], "Where branches compete: informed (from the "
               "signal) or uninformed (from the prior mean, reached by algorithms).", words=True),
        Column("published", lambda row: number(row["value"], 6), "Published value."),
        Column("difference", lambda row: f"{row['theory'] - row['value']:+.1e}", "Theory minus the published value."),
        Column("tolerance", lambda row: f"{row['tolerance']:.0e}" + ("" if row["within"] else " off"), "Accuracy of the "
               "published value; off: theory is outside."),
        Column("printed", lambda row: ("<= " if row["bound"] else "") + number(row["printed"], 5), "Of --verify: the number that "
               "theory prints."),
        Column("drawn", lambda row: number(row["drawn"], 5), "Of --verify: the same number from plain draws."),
    ],
}  # fmt: skip
_KNOWN = {column.heading: column for columns in COLUMNS.values() for column in columns}


def _laid_out(columns: Iterable[str | Column], rows: Sequence[Any]) -> list[tuple[Column, str, list[str | Text]]]:
    """Columns with their headings for these rows and all their cells; those that say nothing are left out."""
    if not rows:
        return []
    texts = {"algorithm": names_with_backend(rows)} if "backend" in rows[0] else {}
    d = letter_of(rows)
    headings = {"D": d, "at this D": f"at this {d}", "component": rows[0].get("component_word") or "component"}
    found = []
    for one in columns:
        column = _KNOWN[one] if isinstance(one, str) else one
        cells = [texts.get(column.heading, column.text)(row) for row in rows]
        if any(map(str, cells)) and not (column.unless_same and len(set(map(str, cells))) == 1):
            found.append((column, headings.get(column.heading, column.heading), cells))
    return found


# -- on a terminal --------------------------------------------------------------------------------------------------------


def make_table(
    title: str, columns: Iterable[str | Column], rows: Iterable[Any], caption: str = "", padding: int = 0
) -> RenderableType:
    """A table of the one style of this package, ``padding`` blanks between its columns.

    Parameters
    ----------
    columns : iterable of str or Column
        Headings of columns that ``COLUMNS`` has, or others.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, padding, 0, 0), show_edge=False)
    shown = _laid_out(columns, list(rows))
    for column, heading, _ in shown:
        table.add_column(
            heading, justify="left" if column.words else "right", no_wrap=not column.words, overflow="fold"
        )
    for line in zip(*(cells for *_, cells in shown)):
        table.add_row(*line)
    return titled(table, title, caption)


def titled(table: Table, title: str, caption: str = "") -> RenderableType:
    """A finished table under a title that may be wider than the table."""
    for column in table.columns:
        if column.no_wrap:  # half a number is a wrong number: rather a table wider than the screen
            head = str(column.header)
            widest = max((cell_len(str(cell)) for cell in column.cells), default=0)
            column.header = textwrap.fill(head, max(widest, len(head) // 2, 1), break_long_words=False)
            column.min_width = max(widest, *map(cell_len, column.header.split("\n")))
        else:  # words of an ordinary length stay whole, too
            words = (word for cell in (column.header, *column.cells) for word in str(cell).split())
            column.min_width = min(max(map(cell_len, words), default=0), 12)
    return Group(Text(title, style="bold"), Whole(table), *([Text(caption, style="dim")] if caption else []))


class Whole:
    """A table that is never narrower than its columns: on a narrow screen it reaches beyond, and no column is left out."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, (_, right, _, left) = self.table.columns, self.table.padding
        needed = sum((column.min_width or 0) + left + right for column in columns) + len(columns) - 1
        yield from console.render(self.table, options.update_width(max(options.max_width, needed)))


# -- in HTML --------------------------------------------------------------------------------------------------------------


def html_table(
    columns: Iterable[str | Column],
    rows: Sequence[Any],
    about: Callable[[Any], Mapping[str, str]] = lambda row: {},
    more: Callable[[Any], Sequence[str]] = lambda row: (),
) -> str:
    """A table whose headings sort it; texts of others as they are written.

    Parameters
    ----------
    about : callable
        Attributes of the line of a row.
    more : callable
        Lines of small print in its last cell.
    """
    shown = _laid_out(columns, rows)
    heads = [f"<th{' class=text' if column.words else ''}>{_escaped(heading)}</th>" for column, heading, _ in shown]
    lines = []
    for row, *texts in zip(rows, *(cells for *_, cells in shown)):
        cells = [_html_cell(column, row, text) for (column, *_), text in zip(shown, texts)]
        cells += [f"<br><small>{_escaped(line)}</small>" for line in more(row)]
        attributes = "".join(f' {name}="{_escaped(value)}"' for name, value in about(row).items())
        lines.append(f"<tr{attributes}>{''.join(cells)}</tr>")
    head, body = "".join(heads), "\n".join(lines)
    return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _html_cell(column: Column, row: Any, text: str | Text) -> str:
    value = row.get(column.key) if column.key else None
    sorts = f' data-value="{float(value)!r}"' if isinstance(value, (int, float)) else ""
    kind = " class=status" if column.heading == "status" else " class=text" if column.words else ""
    return f"<td{kind}{sorts}>{_escaped(str(text))}"  # HTML ends it where the next one begins


def _escaped(text: str) -> str:
    return html.escape(printable(text))


# -- what they mean -------------------------------------------------------------------------------------------------------


def columns_document() -> dict[str, dict[str, str]]:
    """The meaning of every column, by topic."""
    return {topic: {column.heading: column.meaning for column in columns} for topic, columns in COLUMNS.items()}


def columns_page() -> str:
    """All columns as Markdown."""
    parts = [
        "# What the columns mean\n\n<!-- `smimbench help columns` prints this; written in smimbench/report/columns.py. -->\n"
    ]
    for title, columns in columns_document().items():
        lines = "\n".join(f"| {name} | {text} |" for name, text in columns.items())
        parts.append(f"## {title}\n\n| column | meaning |\n|---|---|\n{lines}\n")
    return "\n".join(parts)


def print_columns(console: Console, document: dict[str, dict[str, str]]) -> None:
    """A table per topic."""
    heads = [Column(key, lambda row, key=key: row[key], words=True) for key in ("column", "meaning")]  # type: ignore[misc]
    for title, columns in document.items():
        rows = [{"column": name, "meaning": text} for name, text in columns.items()]
        console.print(make_table(title, heads, rows, padding=1))
        console.print()
