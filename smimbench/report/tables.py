"""Tables for a terminal of 80 columns and for a pipe."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from smimbench.registry.metrics import find_metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

__all__ = [
    "as_csv",
    "as_markdown",
    "error_tables",
    "number",
    "plain_table",
    "runtime_tables",
    "status_line",
    "titled",
]

SHORT = {
    "ok": "ok",
    "not-converged": "n.c.",
    "diverged": "div.",
    "timeout": "t/o",
    "failed": "fail",
    "skipped": "skip",
}


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
    """A duration with its unit."""
    if value is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def statuses(counts: dict[str, int]) -> Text:
    """All statuses of a row; anything but ok in colour."""
    text = Text()
    for i, (name, count) in enumerate(sorted(counts.items(), key=lambda kv: kv[0] != "ok")):
        text.append(" " if i else "").append(
            f"{count} {SHORT[name]}", style="green" if name == "ok" else "bold red"
        )
    return text


_WORD = 12


def plain_table(columns: Sequence[tuple[str, str]]) -> Table:
    """An empty table of the one style of this package; columns are (name, "l" or "r"): words wrap, numbers do not."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for name, side in columns:
        table.add_column(
            name, justify="right" if side == "r" else "left", no_wrap=side == "r", overflow="fold"
        )
    return table


def titled(table: Table, title: str, caption: str = "") -> RenderableType:
    """A finished table under a title that may be wider than the table."""
    for column in table.columns:
        if column.no_wrap:  # half a number is a wrong number: rather a table wider than the screen
            column.min_width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        else:  # words of an ordinary length stay whole, too
            words = (word for cell in (column.header, *column.cells) for word in str(cell).split())
            column.min_width = min(max(map(cell_len, words), default=0), _WORD)
    return Group(Text(title, style="bold"), table, *([Text(caption, style="dim")] if caption else []))


def _groups(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["problem"], []).append(row)
    return list(found.items())


def _varies(rows: Sequence[dict[str, Any]], key: str) -> bool:
    return len({row[key] for row in rows}) > 1


def _algorithm(row: dict[str, Any], backends: bool) -> str:
    return f"{row['algorithm']}@{row['backend']}" if backends else str(row["algorithm"])


def error_tables(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Error against theory: one table per problem and metric, the largest excess over theory first."""
    tables: list[RenderableType] = []
    for problem, members in _groups(rows):
        for metric in dict.fromkeys(row["metric"] for row in members):
            tables.append(_error_table(problem, metric, [row for row in members if row["metric"] == metric]))
    return tables


def _worst(row: dict[str, Any]) -> tuple[float, ...]:
    bad = sum(count for name, count in row["status_counts"].items() if name not in ("ok", "skipped"))
    excess = math.inf if row["mean"] is None else abs(row["difference"] or 0.0)
    return (-bad, -excess, row["alpha"])


def _error_table(problem: str, metric: str, rows: list[dict[str, Any]]) -> RenderableType:
    backends, dims, components = (
        _varies(rows, "backend"),
        _varies(rows, "dimension"),
        _varies(rows, "component"),
    )
    about = find_metric(metric)
    head = f"{problem}: {about.label} against theory"
    if not dims:
        head += f", D = {rows[0]['dimension']}"
    ratio = about.direction == "lower"
    columns = [("algorithm", "l"), ("alpha", "r")]
    columns += [("D", "r")] if dims else []
    columns += [(rows[0].get("component_word", "component"), "r")] if components else []
    columns += [("n", "r"), ("mean ± s.e.m.", "r"), ("theory ± err", "r"), ("diff", "r"), ("z", "r")]
    columns += [("/Bayes", "r")] if ratio else []
    columns += [("status", "l")]
    notes = []
    if any(row["sem"] is None and row["n"] for row in rows):
        notes.append("one run only: no standard error")
    if any(row["theory"] == 0 for row in rows):
        notes.append("ratio and z are blank where theory is 0")
    notes += [
        f"{name} is blank: {reason}"
        for name, reason in dict.fromkeys(
            (row["algorithm"], why) for row in rows for why in row.get("blank", ())
        )
    ]
    table = plain_table(columns)
    for row in sorted(rows, key=_worst):
        cells: list[str | Text] = [_algorithm(row, backends), f"{row['alpha']:.4g}"]
        cells += [str(row["dimension"])] if dims else []
        cells += [str(row["component"] or "")] if components else []
        z = row["z"]
        shown_z = "" if z is None else (f"{z:+.1f}" if abs(z) < 1000 else f"{z:+.0e}")
        difference = (
            ""
            if row["difference"] is None
            else f"{row['difference']:+{'.4f' if abs(row['difference']) < 1e4 else '.1e'}}"
        )
        cells += [
            str(row["n"]),
            uncertain(row["mean"], row["sem"], 0.0),
            uncertain(row["theory"], row["theory_error"]),
            difference,
            shown_z,
        ]
        cells += (
            [f"{row['ratio_to_bayes']:.3g}" if row["ratio_to_bayes"] is not None else ""] if ratio else []
        )
        table.add_row(*cells, statuses(row["status_counts"]))
    return titled(
        table, head, "; ".join(["worst first: failures, then the largest difference from theory", *notes])
    )


def runtime_tables(rows: Sequence[dict[str, Any]], fingerprint: str) -> list[RenderableType]:
    """Runtime: one table per problem, slowest to reach theory first; times of other machines are named as such."""
    return [_runtime_table(problem, members, fingerprint) for problem, members in _groups(rows)]


def _runtime_table(problem: str, rows: list[dict[str, Any]], fingerprint: str) -> RenderableType:
    backends, dims = _varies(rows, "backend"), _varies(rows, "dimension")
    unique: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        unique.setdefault((row["algorithm"], row["backend"], row["alpha"], row["dimension"]), row)
    members = list(unique.values())
    columns = [("algorithm", "l"), ("alpha", "r")] + ([("D", "r")] if dims else [])
    columns += [("within 5%", "r"), ("reached", "r"), ("iter.", "r"), ("first", "r"), ("per iter.", "r")]
    peaks = any(row.get("ceiling_fraction") is not None for row in members)
    columns += [("of peak", "r")] if peaks else []
    columns += [("memory", "r")]
    notes = [
        "within 5%: median time to an error at most 5% above theory (below run.target where theory is 0); runs that never get "
        "there count as infinity; reached: share of runs that do"
    ]
    if not all(row["trusted"] for row in members):
        notes.append("times are untrusted: cells may have run side by side (use --timing)")
    foreign = sorted({m for row in members for m in row["machines"] if m != fingerprint})
    if foreign:
        notes.append(f"some times come from another machine ({', '.join(foreign)}) and are not comparable")
    if peaks:
        notes.append(
            "of peak: share of this machine's rate of matrix products (x) or of reading memory (r), whichever is the limit here"
        )
    table = plain_table(columns)

    def slowest(row: dict[str, Any]) -> tuple[float, ...]:
        reached = row["time_to_theory"]["0.05"]["seconds"]
        return (-(math.inf if reached is None else reached), -(row["seconds"] or 0.0))

    for row in sorted(members, key=slowest):
        reached = row["time_to_theory"]["0.05"]
        cells = [_algorithm(row, backends), f"{row['alpha']:.4g}"] + ([str(row["dimension"])] if dims else [])
        cells += [
            "never" if reached["seconds"] is None else seconds(reached["seconds"]),
            "" if reached["fraction"] is None else f"{100 * reached['fraction']:.0f}%",
            number(row["iterations"], 0) if row["iterations"] is not None else "",
            seconds(row["first_iteration"]),
            seconds(row["per_iteration"]),
            *([_of_peak(row)] if peaks else []),
            "" if row["peak_memory"] is None else f"{row['peak_memory'] / 2**20:.0f} MB",
        ]
        table.add_row(*cells)
    return titled(table, f"{problem}: runtime", "; ".join(notes))


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
    "theory_error", "difference", "z", "ratio_to_bayes", "seconds", "iterations", "per_iteration", "status_counts",
)  # fmt: skip


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV, all digits."""
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_FIELDS)
    for row in rows:
        writer.writerow([_counts(row[f]) if f == "status_counts" else row[f] for f in _FIELDS])
    return buffer.getvalue()


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a Markdown table, rounded."""
    fields = [f for f in _FIELDS if f != "per_iteration"]
    lines = ["| " + " | ".join(fields) + " |", "|" + "---|" * len(fields)]
    for row in rows:
        shown = [
            _counts(row[f])
            if f == "status_counts"
            else number(row[f])
            if isinstance(row[f], float)
            else str("" if row[f] is None else row[f])
            for f in fields
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in shown) + " |")
    return "\n".join(lines) + "\n"


def _counts(counts: dict[str, int]) -> str:
    return " ".join(f"{count} {name}" for name, count in counts.items())
