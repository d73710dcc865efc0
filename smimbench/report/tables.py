"""How tables are made: cells, columns and titles; the tables of errors and of runtime; rows as CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from smimbench.files import printable
from smimbench.registry.metrics import find_metric
from smimbench.report.labels import grouped, letter_of, names_with_backend, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

__all__ = [
    "as_csv",
    "as_markdown",
    "csv_text",
    "differs",
    "dimension_column",
    "error_tables",
    "flat",
    "make_table",
    "markdown_table",
    "marked_z",
    "missing_values",
    "number",
    "runtime_tables",
    "signed",
    "status_line",
    "titled",
    "two_verdicts",
]


SHORT = {"ok": "ok", "not-converged": "n.c.", "diverged": "div.", "timeout": "t/o", "failed": "fail", "skipped": "skip"}


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
    if value is None:
        return ""
    if error is None:
        return number(value)
    if error < exact:
        return number(value, 5)
    return f"{number(value)}±{number(error, decimals=0)}"


def seconds(value: float | None) -> str:
    """A duration with its unit, to three digits."""
    if value is None:
        return ""
    # From 1000 seconds and 100 minutes on the next unit: 3.48e+03 s is hard to read.
    for least, unit, size in ((6000.0, "h", 3600.0), (999.5, "min", 60.0), (1.0, "s", 1.0), (1e-3, "ms", 1e-3)):
        if value >= least:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def statuses(counts: dict[str, int], moving: int = 0) -> Text:
    """All statuses of a row, anything but ok in color, and how many of the runs still moved at their last step."""
    text = Text()
    for i, (name, count) in enumerate(sorted(counts.items(), key=lambda kv: kv[0] != "ok")):
        text.append(" " if i else "").append(f"{count} {SHORT[name]}", style="green" if name == "ok" else "bold red")
    if moving:
        text.append(f" {moving} moving", style="yellow")
    return text


def shown(value: Any, form: str) -> str:
    """A value in this format; blank where there is none."""
    return "" if value is None else format(value, form)


FEW = 4
"""Runs below which z is marked: the standard error of three runs is off by half. Doubled, most quick suites are marked."""

Column = tuple[str, str, "Callable[[Any], str | Text]"]
"""Heading, ``"l"`` for words that wrap or ``"r"`` for numbers that do not, and the cell of a row."""


def make_table(
    title: str, columns: Sequence[Column], rows: Iterable[Any], caption: str = "", padding: int = 0
) -> RenderableType:
    """A table of the one style of this package, ``padding`` blanks between its columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, padding, 0, 0), show_edge=False)
    for name, side, _ in columns:
        table.add_column(name, justify="right" if side == "r" else "left", no_wrap=side == "r", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row) for _, _, cell in columns))
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


def place_columns(rows: Sequence[dict[str, Any]]) -> list[Column]:
    """Algorithm, sample ratio and, where they differ, dimension; the backend stands at the algorithm where they differ."""
    columns: list[Column] = [
        ("algorithm", "l", names_with_backend(rows)),
        ("alpha", "r", lambda r: f"{r['alpha']:.4g}"),
    ]
    return columns + dimension_column(rows)


def dimension_column(rows: Sequence[dict[str, Any]]) -> list[Column]:
    """The dimension, where rows differ in it."""
    several = len({row["dimension"] for row in rows}) > 1
    return [(letter_of(rows), "r", lambda r: str(r["dimension"]))] if several else []


def component_column(rows: Sequence[dict[str, Any]]) -> list[Column]:
    """The component, where a row has one."""
    if all(row["component"] is None for row in rows):
        return []
    word = rows[0].get("component_word") or "component"
    return [(word, "r", lambda r: str(r["component"] or ""))]


def error_tables(rows: Sequence[dict[str, Any]], *, full: bool = True) -> list[RenderableType]:
    """Error against theory: one table per problem and metric, the largest excess over Bayes first."""
    return [
        _error_table(problem, metric, members, full)
        for problem, all_of_it in grouped(rows, lambda r: r["problem"]).items()
        for metric, members in grouped(all_of_it, lambda r: r["metric"]).items()
    ]


def differs(row: dict[str, Any]) -> bool:
    """Whether the prediction for the algorithm differs from the optimal value, or is missing."""
    own = row.get("own_theory")
    return bool(row.get("no_theory")) or (own is not None and own != row["bayes"])


def _one_verdict() -> list[Column]:
    """Theory of the best that is possible, which is that of the algorithm too."""
    return [
        ("optimal", "r", lambda r: uncertain(r["theory"], r["theory_error"])),
        ("diff", "r", lambda r: signed(r["difference"], ".4f", 1e4, ".1e")),
        ("z", "r", lambda r: _shown_z(r, "z")),
    ]


def two_verdicts() -> list[Column]:
    """What is predicted for the algorithm, how far its runs are from that, and what is optimal."""
    return [
        ("predicted", "r", lambda r: uncertain(r.get("own_theory"), r.get("own_theory_error"))),
        ("z", "r", lambda r: _shown_z(r, "own_z")),
        ("optimal", "r", lambda r: uncertain(r["bayes"], None)),
    ]


def _worst(row: dict[str, Any]) -> tuple[float, ...]:
    """Failures, then the largest ratio to Bayes; where there is no ratio, the largest distance from it."""
    bad = sum(count for name, count in row["status_counts"].items() if name not in ("ok", "skipped"))
    ratio = row["ratio_to_bayes"] or 0.0
    distance = abs(row["mean"] - row["bayes"]) if None not in (row["mean"], row["bayes"]) else 0.0
    own = abs(row["difference"] or 0.0)
    return (-bad, -math.inf if row["mean"] is None else -ratio, -distance, -own, row["alpha"])


def _cut(rows: list[dict[str, Any]], full: bool, notes: list[str]) -> list[dict[str, Any]]:
    """The rows that are shown, and a note of those that are not."""
    if full or len(rows) <= 16:
        return rows
    notes.append(f"16 of {len(rows)} rows; --full shows all")
    return rows[:16]


def marked_z(z: float | None, n: int | None) -> str:
    """z, marked where few runs make its standard error a guess."""
    return signed(z, ".1f", 1000, ".0e") + ("?" if z is not None and n is not None and n < FEW else "")


def _shown_z(row: dict[str, Any], key: str) -> str:
    return marked_z(row.get(key), row["n"])


def _error_table(problem: str, metric: str, rows: list[dict[str, Any]], full: bool) -> RenderableType:
    where, about = place_columns(rows), find_metric(metric)
    head = f"{problem}: {about.label} against theory"
    if len(where) == 2:
        head += f", {letter_of(rows)} = {rows[0]['dimension']}"
    columns: list[Column] = [
        *where,
        *component_column(rows),
        ("n", "r", lambda r: str(r["n"])),
        ("mean ± s.e.m.", "r", lambda r: uncertain(r["mean"], r["sem"], 0.0)),
        *(two_verdicts() if any(map(differs, rows)) else _one_verdict()),
    ]
    if about.direction == "lower":
        columns.append(("error / optimal", "r", lambda r: shown(r["ratio_to_bayes"], ".3g")))
    columns.append(
        ("status", "l", lambda r: statuses(r["status_counts"], (r.get("still_moving") or {}).get("runs", 0)))
    )
    notes = ["worst first"]
    shown_rows = _cut(sorted(rows, key=_worst), full, notes)
    return make_table(head, columns, shown_rows, "; ".join(notes))


def signed(value: float | None, form: str, large: float, form_of_large: str) -> str:
    """A number with its sign, in another format from ``large`` on; blank for none."""
    return "" if value is None else format(value, "+" + (form if abs(value) < large else form_of_large))


def missing_values(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for every algorithm without a prediction, or with a blank metric, that says why."""
    lines = dict.fromkeys(
        f"{row['algorithm']}: no prediction: {row['no_theory']}" for row in rows if row.get("no_theory")
    )
    lines |= dict.fromkeys(
        f"{row['algorithm']}: {row['metric']} is blank: {why}" for row in rows for why in row.get("blank", ())
    )
    return list(lines)


def runtime_tables(rows: Sequence[dict[str, Any]], fingerprint: str, *, full: bool = True) -> list[RenderableType]:
    """Runtime: one table per problem, slowest to reach theory first; times of other machines are named as such.

    What an algorithm refuses has taken no time and has no row.
    """
    groups = grouped((row for row in rows if set(row["status_counts"]) != {"skipped"}), lambda row: row["problem"])
    return [_runtime_table(problem, members, fingerprint, full) for problem, members in groups.items()]


def _runtime_table(problem: str, rows: list[dict[str, Any]], fingerprint: str, full: bool) -> RenderableType:
    members = [same[0] for same in grouped(rows, place).values()]
    peaks = any(row.get("ceiling_fraction") is not None for row in members)
    columns: list[Column] = [
        *place_columns(rows),
        ("time to 5%", "r", lambda r: seconds(_near(r)["seconds"]) or "never"),
        ("runs at 5%", "r", lambda r: shown(_near(r)["fraction"], ".0%")),
        ("iter.", "r", lambda r: number(r["iterations"], 0)),
        ("first", "r", lambda r: seconds(r["first_iteration"])),
        ("per iter.", "r", lambda r: seconds(r["per_iteration"])),
        *([("of peak", "r", _of_peak)] if peaks else []),
        ("memory", "r", lambda r: "" if r["peak_memory"] is None else f"{r['peak_memory'] / 2**20:.0f} MB"),
    ]
    notes = ["slowest first"]
    if not all(row["trusted"] for row in members):
        notes.append("untrusted: cells may have run side by side (--timing)")
    if foreign := sorted({m for row in members for m in row["machines"] if m != fingerprint}):
        notes.append(f"some of another machine ({', '.join(foreign)})")

    def slowest(row: dict[str, Any]) -> tuple[float, ...]:
        reached = _near(row)["seconds"]
        return (-(math.inf if reached is None else reached), -(row["seconds"] or 0.0))

    shown_rows = _cut(sorted(members, key=slowest), full, notes)
    return make_table(f"{problem}: runtime", columns, shown_rows, "; ".join(notes))


def _near(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = row["time_to_theory"]["0.05"]
    return found


def _of_peak(row: dict[str, Any]) -> str:
    if row.get("ceiling_fraction") is None:
        return ""
    return f"{100 * row['ceiling_fraction']:.0f}% {'x' if row['ceiling'] == 'products' else 'r'}"


def status_line(counts: dict[str, int], missing: int = 0) -> Text:
    """One line that counts all six statuses, and what has not run."""
    text = Text("cells: ")
    text.append(", ".join(f"{counts.get(name, 0)} {name}" for name in SHORT if counts.get(name, 0)) or "none")
    if missing:
        text.append(f", {missing} not run yet", style="yellow")
    return text


_FIELDS = (
    "problem", "algorithm", "backend", "alpha", "dimension", "n", "metric", "component", "mean", "sem", "theory",
    "theory_error", "difference", "z", "own_theory", "own_theory_error", "own_z", "bayes", "ratio_to_bayes", "seconds",
    "iterations", "per_iteration", "status_counts",
)  # fmt: skip


def as_csv(rows: Sequence[dict[str, Any]], extrapolated: Sequence[dict[str, Any]] = ()) -> str:
    """Rows as CSV, all digits; then, at dimension ``inf``, what is extrapolated from them, if anything is.

    The columns ``law``, ``chi2`` and ``dof`` stand there only then: they are blank for rows of a finite dimension.
    """
    limits = [
        {**dict.fromkeys(_FIELDS), **entry, "dimension": "inf", "mean": entry["value"], "sem": entry["error"]}
        for entry in extrapolated
    ]
    fields = (*_FIELDS, "law", "chi2", "dof") if limits else _FIELDS
    return csv_text(({**row, "status_counts": _counts(row["status_counts"])} for row in (*rows, *limits)), fields)


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a Markdown table, rounded."""
    return markdown_table([f for f in _FIELDS if f != "per_iteration"], rows)


def markdown_table(fields: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """These fields of rows as a Markdown table, rounded."""
    lines = ["| " + " | ".join(fields) + " |", "|" + "---|" * len(fields)]
    for row in rows:
        cells = (_literal(_rounded(row.get(field))) for field in fields)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    """Text that Markdown, and the HTML in it, show as it is."""
    return re.sub(
        r"([\\`*\[\]|~!#])", r"\\\1", flat(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )


def _rounded(value: Any) -> str:
    if isinstance(value, dict):
        return _counts(value)
    return number(value) if isinstance(value, float) else str("" if value is None else value)


def _counts(counts: dict[str, int]) -> str:
    return " ".join(f"{count} {name}" for name, count in counts.items())


def csv_text(rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> str:
    """These fields of rows with all digits; blank where a row has none.

    Text is one printable line, with an apostrophe in front where a spreadsheet would take it for a formula.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_harmless, fields))
    writer.writerows([_harmless(row.get(field)) for field in fields] for row in rows)
    return buffer.getvalue()


def _harmless(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = flat(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def flat(text: str) -> str:
    """Text on one line, without characters that steer a terminal or turn its direction."""
    return " ".join(printable(text).split())
