"""The board as a page, made from the packed files of results/board alone: ``python tools/board.py [FILE ...]`` prints it.

The exit code is 1 if a row of a file is not on it. ``--packages FILE`` prints what pip has to install to run its rows again,
``--figure FILE FOLDER`` draws its contenders, as in README.md.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smimbench.files import canonical_json
from smimbench.numerics.statistics import quantile
from smimbench.report.charts import Chart, Panel, Series, save
from smimbench.report.columns import number, ratio_words, seconds, statuses
from smimbench.report.packed import packed_under, read_pack, read_packed, rerun_obstacle
from smimbench.report.row import grouped
from smimbench.report.stored_table import UNVERIFIABLE
from smimbench.report.style import looks
from smimbench.report.text_files import markdown_table
from smimbench.report.verdict import agreement_cell, verdicts
from smimbench.suite import SuiteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from smimbench.files import JsonObject

LEVEL = 0.95
"""Level of the intervals: of two whose intervals are apart one ranks above. Nearer to 1, more share a rank."""
ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results" / "board"
INTERVAL = f"{LEVEL:.0%} interval"
HEAD = f"""# The board

How far from the Bayes-optimal error is each contender, as far as anybody can run its rows again? The [protocol](protocol.md)
says what is tuned and counted. Tuned contenders and those that need no tuning have rankings of their own; what was set by hand
has none. Contenders share a rank where their {INTERVAL}s overlap. Time is the CPU time of a run on the machine of the submission,
without tuning; it compares little between machines.

To submit a contender, run a suite and pack its results into a file that a pull request adds to `results/board`:

```sh
smimbench tune mine.toml
smimbench run mine.toml
smimbench submit mine.toml --by "A. Name" --output results/board/mine.json.gz
smimbench verify results/board/mine.json.gz --cells 3
```

The file holds all that is needed to run its cells again: the suite, the records of all runs but for their trajectories, theory,
versions, hashes of code and searches. Rows are made from these when the file is read, where the package of the contender is
installed.
The last command solves theory again and compares three cells; the pull request does the same with others. A row is not on the
board if others cannot run it again: smimbench had uncommitted changes, a plugin is no installed package, the backend is
not numpy, or a clock ended some runs.
"""


def board(paths: Iterable[Path]) -> list[JsonObject]:
    """All entries of the board, best first within each contest and ranking.

    Returns
    -------
    list of dict
        ``contest`` (problem, dimension and sample ratios, in words), ``ranking`` (``tuned, 8 trials``, ``self-tuning`` or ``by
        hand``), ``rank`` (1 and the number of those that are better beyond the intervals), ``by``, ``written``, ``versions``, the
        name of the ``file``, and what ``verdicts`` says of a contender, with the ``interval`` of its error over the optimal one
        and the ``cpu_seconds`` of a run at the first sample ratio.
        Of what was submitted twice the newest is there.
    """
    newest: dict[str, JsonObject] = {}
    for path in paths:
        table, shared, _ = read_packed(path)
        rows = [row for row in table.rows if not rerun_obstacle(row, shared)]
        for verdict in verdicts(rows):
            size = verdict.problem, verdict.dimension
            inside = [
                row for row in rows if (row.place.problem, row.place.dimension) == size
            ]
            alphas = sorted({row.place.nominal_alpha for row in inside})
            for contender in verdict.contenders:
                standing = contender.document()
                contender_row = next(
                    row
                    for row in inside
                    if row.place.algorithm == standing["algorithm"]
                )
                contest = canonical_json(
                    [
                        contender_row.identity.problem,
                        alphas,
                        verdict.dimension,
                        verdict.metric,
                    ]
                )
                key = canonical_json([contest, contender_row.identity.algorithm])
                entry = {
                    **standing,
                    **{
                        name: shared.get(name)
                        for name in ("by", "written", "versions", "packages")
                    },
                }
                entry |= {
                    "key": contest,
                    "file": path.name,
                    "interval": _interval(standing, contender_row.estimate.n),
                    "cpu_seconds": contender_row.cost.cpu_seconds,
                    "ranking": _ranking(standing),
                    "as_predicted": agreement_cell(contender),
                }
                size = f"{verdict.dimension_letter} = {verdict.dimension}, alpha {', '.join(map('{:.4g}'.format, alphas))}"
                entry["contest"] = f"{verdict.problem}, {size}"
                if key not in newest or newest[key]["written"] < entry["written"]:
                    newest[key] = entry
    entries: list[JsonObject] = []
    for same in grouped(
        newest.values(), lambda entry: (entry["key"], entry["ranking"])
    ).values():
        for standing in same:
            standing["contest"], standing["rank"] = (
                same[0]["contest"],
                1 + sum(_is_better(rival, standing) for rival in same),
            )
        entries += sorted(same, key=_order)
    return sorted(
        entries,
        key=lambda entry: (
            entry["contest"],
            entry["ranking"] == "by hand",
            entry["ranking"],
        ),
    )


def _interval(entry: Mapping[str, Any], n: int) -> list[float] | None:
    """Interval of the error over the optimal one, by Student's t on its logarithm."""
    ratio, error = entry["ratio_to_bayes"], entry["ratio_error"]
    if not ratio or error is None or n < 2:
        return None
    factor = math.exp(quantile((1 + LEVEL) / 2, n - 1) * error / ratio)
    return [ratio / factor, ratio * factor]


def _ranking(entry: Mapping[str, Any]) -> str:
    """The ranking that an entry belongs to, see docs/protocol.md."""
    settings: str = entry["settings"]
    if settings in ("default", "as published"):
        return "self-tuning"
    return settings if settings.startswith("tuned") else "by hand"


def _order(entry: Mapping[str, Any]) -> tuple[float, ...]:
    ratio = entry["ratio_to_bayes"]
    return (
        entry["below_optimum"],
        entry["missing"],
        math.inf if ratio is None else ratio,
    )


def _is_better(entry: Mapping[str, Any], rival: Mapping[str, Any]) -> bool:
    """Whether one has estimates at more sample ratios, or an error smaller beyond the intervals."""
    if _order(entry)[:2] != _order(rival)[:2]:
        return _order(entry)[:2] < _order(rival)[:2]
    if None in (entry["interval"], rival["interval"]):
        return _order(entry) < _order(rival)
    return bool(entry["interval"][1] < rival["interval"][0])


def page(paths: Sequence[Path] | None = None) -> str:
    """The board as Markdown, of all packed files in results/board or of these."""
    entries = board(packed_under(FOLDER) if paths is None else paths)
    sections = [HEAD] if entries else [HEAD, "Nothing has been submitted yet.\n"]
    for contest, inside in grouped(entries, lambda entry: entry["contest"]).items():
        sections.append(f"## {contest}\n")
        for ranking, same in grouped(inside, lambda entry: entry["ranking"]).items():
            rows = [_row(entry) for entry in same]
            shown = [key for key in rows[0] if any(row[key] for row in rows)]
            sections.append(
                f"**{ranking[0].upper()}{ranking[1:]}**\n\n{markdown_table(shown, rows)}"
            )
    return "\n".join(sections)


def _row(entry: Mapping[str, Any]) -> dict[str, str]:
    packages = entry["packages"] or {}
    versions = {
        name: entry["versions"].get(name, "") for name in ("smimbench", "numpy")
    } | packages
    return {
        "rank": "" if entry["ranking"] == "by hand" else str(entry["rank"]),
        "contender": entry["algorithm"],
        "error / optimal": ratio_words(entry["ratio_to_bayes"], entry["ratio_error"]),
        INTERVAL: " to ".join(number(end, 3) for end in entry["interval"] or ()),
        "error where optimum is 0": number(entry["where_zero"], 3),
        "agrees with theory": entry["as_predicted"],
        "CPU time per run": seconds(entry["cpu_seconds"]),
        "status": str(statuses(entry["status_counts"], entry["moving"])),
        "date": time.strftime("%Y-%m-%d", time.gmtime(entry["written"])),
        "version": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "who": entry["by"],
        "file": entry["file"],
    }


def chart(path: Path) -> Chart:
    """Error over the optimal error against CPU time of all contenders of a file, a panel for each problem.

    What was set by hand, and what has no error over the optimal one, is left out.
    """
    entries = [
        entry
        for entry in board([path])
        if entry["interval"] and entry["ranking"] != "by hand"
    ]
    look = looks({entry["algorithm"]: entry["algorithm"] for entry in entries})
    panels = []
    for contest, inside in grouped(entries, lambda entry: entry["contest"]).items():
        series = [
            Series(
                entry["algorithm"],
                {"cpu_seconds": [entry["cpu_seconds"]], "value": [entry["ratio_to_bayes"]],
                 "low": [entry["interval"][0]], "high": [entry["interval"][1]]},
                {key: entry[key] for key in ("contest", "ranking", "algorithm")},
                "marks",
                look[entry["algorithm"]].color,
                {"marker": look[entry["algorithm"]].marker, "s": 22},
            )
            for entry in inside
        ]  # fmt: skip
        times = [entry["cpu_seconds"] for entry in inside]
        best = {"cpu_seconds": [min(times) / 2, 2 * max(times)], "value": [1.0, 1.0]}
        panels.append(
            Panel(contest.replace(", alpha", ",\nalpha ="), "CPU seconds per run", "error / optimal",
                  [Series("Bayes-optimal", best), *series], x_column="cpu_seconds", xlog=True, ylog=True)
        )  # fmt: skip
    return Chart("board", read_packed(path).table.title, panels)


def packages(path: Path) -> list[str]:
    """Packages of third parties in the words of pip: the example of this checkout, or what an index has."""
    packages = read_pack(path)["run"].get("packages", {})
    examples = {name: ROOT / "plugins" / "examples" / name for name in packages}
    return [
        str(examples[name]) if examples[name].is_dir() else f"{name}=={version}"
        for name, version in packages.items()
    ]


def absent(path: Path) -> list[str]:
    """One line for each row of a file that is not on the board."""
    table, shared, remarks = read_packed(path)
    reasons = {
        f"{row.place.problem}: {row.place.algorithm}": rerun_obstacle(row, shared)
        for row in table.rows
    }
    lines = [
        f"{path} is not on the board: {why}" for path, why in reasons.items() if why
    ]
    return [
        f"{path}: {line}"
        for line in (*lines, *(remark for remark in remarks if remark != UNVERIFIABLE))
    ]


def main(words: Sequence[str]) -> list[str]:
    """Print what is asked for; one line for each row that is not on the board."""
    if words[:1] == ["--packages"]:
        print("\n".join(packages(Path(words[1]))))  # noqa: T201
        return []
    if words[:1] == ["--figure"]:
        save(chart(Path(words[1])), Path(words[2]), ("png", "svg"), "page")
        return []
    files = [Path(word) for word in words] or packed_under(FOLDER)
    print(page(files))  # noqa: T201
    return [line for file in files for line in absent(file)]


if __name__ == "__main__":
    try:
        sys.exit("\n".join(main(sys.argv[1:])) or 0)
    except SuiteError as error:
        sys.exit(str(error))
