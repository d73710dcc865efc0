"""The board as a page, made from the packed files of results/board alone: ``python tools/board.py [FILE ...]`` prints it.

The exit code is 1 if a row of a file is not on it. ``--packages FILE`` prints what pip has to install to run its rows again,
``--figure`` draws docs/board.svg.
"""

from __future__ import annotations

import math
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import canonical_json
from smimbench.numerics.statistics import quantile
from smimbench.report.columns import number, ratio_words, seconds, statuses
from smimbench.report.packed import packed_under, read_pack, read_packed, rerun_obstacle
from smimbench.report.row import grouped
from smimbench.report.stored_table import UNVERIFIABLE
from smimbench.report.style import COLORS, plain_matplotlib
from smimbench.report.text_files import markdown_table
from smimbench.report.verdict import verdicts
from smimbench.report.wording import agreement_cell, worth_cell
from smimbench.suite import SuiteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.report.row import Row
    from smimbench.report.verdict import Contender

LEVEL = 0.95
"""Level of the intervals, and of all comparisons with a leader together. Nearer to 1, more are tied."""
RESAMPLINGS = 20_000
"""Resamplings of the instances of a problem. With a tenth of them the ends of intervals scatter by 2% of their width."""
LARGEST_RATIO = 100.0
"""Largest ratio in the picture. Ten times as large, the ratios between 1 and 2 cannot be told apart."""
END_OF_AXIS = 800.0
"""End of the picture's axis, with room for a number of passes beyond the largest ratio."""
ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results" / "board"
INTERVAL = f"{LEVEL:.0%} interval"
PICTURE = "![Error over the Bayes-optimal error of every contender on every problem, and CPU time](board.svg)"
HEAD = f"""# The board

How far from the Bayes-optimal error is each contender, as far as anybody can run its rows again? The [protocol](protocol.md)
says what is tuned and counted. Tuned contenders and those that need no tuning have rankings of their own; what was set by hand
has none.

{PICTURE}

SENTENCE

A contender is tied with the leader if the interval of its error over the leader's contains 1. These intervals hold together, over
the whole board, at {LEVEL:.0%}: instances are compared in pairs, the largest t of a ranking is resampled, and Bonferroni's
correction covers the rankings of all problems. CPU times of other machines compare little.

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
    """All entries of the board (a contender on a problem, from a packed file), best first within each contest and ranking.

    Returns
    -------
    list of dict
        ``contest`` (problem, dimension and sample ratios, in words), ``ranking`` (``tuned, 8 trials``, ``self-tuning`` or ``by
        hand``), ``rank`` (1 if tied with the leader of the ranking), ``behind_leader`` (interval of the error over the
        leader's, see `simultaneous_intervals`), ``by``, ``written``, ``versions``, the
        name of the ``file``, and what ``verdicts`` says of a contender, with the ``interval`` of its error over the optimal one
        and the ``cpu_seconds`` of a run at the first sample ratio.
        Of what was submitted twice the newest is there.
    """
    newest: dict[object, JsonObject] = {}
    for path in paths:
        table, run_document, _ = read_packed(path)
        rows = [row for row in table.rows if not rerun_obstacle(row, run_document)]
        for verdict in verdicts(rows):
            size = verdict.problem, verdict.dimension
            contest_rows = [
                row for row in rows if (row.place.problem, row.place.dimension) == size
            ]
            alphas = sorted({row.place.nominal_alpha for row in contest_rows})
            ratios = ", ".join(f"{alpha:.4g}" for alpha in alphas)
            rows_by_algorithm = grouped(contest_rows, lambda row: row.place.algorithm)
            for contender in verdict.contenders:
                first_row = rows_by_algorithm[contender.algorithm][0]
                contest = [
                    first_row.identity.problem,
                    alphas,
                    verdict.dimension,
                    verdict.metric,
                ]
                entry = {**contender.document(), "file": path.name}
                for name in ("by", "written", "versions", "packages"):
                    entry[name] = run_document.get(name)
                entry |= {
                    "key": canonical_json(contest),
                    "contest": f"{verdict.problem}, {verdict.dimension_letter} = {verdict.dimension}, alpha {ratios}",
                    "logs": _log_errors(
                        rows_by_algorithm[contender.algorithm], verdict.metric
                    ),
                    "interval": _interval(entry, first_row.estimate.n),
                    "cpu_seconds": first_row.cost.cpu_seconds,
                    "ranking": _ranking(entry["settings"]),
                    "as_predicted": agreement_cell(contender),
                    "worth": worth_cell(contender),
                    "worth_passes": _only_number(contender, "worth"),
                    "passes": _only_number(contender, "passes"),
                    "is_compared": _only_number(contender, "is_compared"),
                }
                key = entry["key"], canonical_json(first_row.identity.algorithm)
                if key not in newest or newest[key]["written"] < entry["written"]:
                    newest[key] = entry
    rankings = grouped(newest.values(), lambda entry: (entry["key"], entry["ranking"]))
    contested_count = sum(len(ranking) > 1 for ranking in rankings.values())
    level = 1 - (1 - LEVEL) / max(contested_count, 1)
    entries: list[JsonObject] = []
    for ranking in rankings.values():
        ranking.sort(key=_order)
        intervals = simultaneous_intervals(
            [entry.pop("logs") for entry in ranking], level
        )
        for place, (entry, interval) in enumerate(zip(ranking, intervals), 1):
            is_tied = interval is not None and interval[0] <= 1 <= interval[1]
            entry["contest"] = ranking[0]["contest"]
            entry |= {"behind_leader": interval, "rank": 1 if is_tied else place}
        entries += ranking
    return sorted(
        entries,
        key=lambda entry: (
            entry["contest"],
            entry["ranking"] == "by hand",
            entry["ranking"],
        ),
    )


def _only_number(contender: Contender, name: str) -> float | None:
    """The field ``name`` of what a contender is worth, if it was run at a single sample ratio and has one component."""
    is_single = len(contender.first_order) == 1
    return getattr(contender.first_order[0], name) if is_single else None


def _interval(entry: Mapping[str, Any], n: int) -> list[float] | None:
    """Confidence interval of a contender's error over the optimal one, by Student's t on the logarithm of this ratio over ``n``
    runs; None where it is unknown.
    """
    ratio, error = entry["ratio_to_limit"], entry["ratio_to_limit_error"]
    if not ratio or error is None or n < 2:
        return None
    factor = math.exp(quantile((1 + LEVEL) / 2, n - 1) * error / ratio)
    return [ratio / factor, ratio * factor]


def _ranking(settings: str) -> str:
    """The ranking that a contender with these settings belongs to, see docs/protocol.md."""
    if settings in ("default", "as published"):
        return "self-tuning"
    return settings if settings.startswith("tuned") else "by hand"


def _order(entry: Mapping[str, Any]) -> tuple[float, ...]:
    """Sort key of the entries of a ranking: errors that are impossibly low last, then by missing sample ratios, then by the error
    over the optimal one.
    """
    ratio = entry["ratio_to_limit"]
    distance = math.inf if ratio is None else ratio
    is_too_low = entry["below_optimum"] or entry["below_floor"]
    return is_too_low, entry["missing"], distance


def _log_errors(rows: Sequence[Row], metric: str) -> dict[str, float]:
    """Logarithms of the errors of one algorithm's runs in a metric, by sample ratio, component and instance; failed runs have
    none.
    """
    return {
        f"{row.place.nominal_alpha} {row.component} {instance}": math.log(error)
        for row in rows
        for instance, error in row.estimate.values.items()
        if row.metric == metric and error > 0
    }


def simultaneous_intervals(
    contenders: Sequence[Mapping[str, float]], level: float
) -> list[list[float] | None]:
    """Confidence intervals of each contender's error over the error of the first contender, which hold for all ``contenders``
    together with probability ``level``; ``logs`` are logarithms of errors.

    The mean d of the differences of logarithms on shared instances has the interval ``d +- q s``, with s its standard error and q
    the quantile, over resampled instances, of the largest ``|d* - d| / s*`` of all contenders: they are compared on the same
    instances, so their deviations are correlated.

    Parameters
    ----------
    contenders : sequence of dict
        Logarithms of errors by instance.
    level : float
        Probability that all intervals hold.

    Returns
    -------
    list
        ``[low, high]`` for each contender, ``[1, 1]`` for the first; None where fewer than two instances are shared.
    """
    instances = sorted(contenders[0])
    count = len(instances)
    if count < 2:
        return [None] * len(contenders)
    logs = np.array(
        [[logs.get(instance, np.nan) for instance in instances] for logs in contenders]
    )
    differences = logs - logs[0]
    shared = np.isfinite(differences)
    differences = np.where(shared, differences, 0.0)
    rng = np.random.default_rng(0)
    resampled = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLINGS)
    weights = np.vstack([np.ones(count), resampled])  # the first one is the sample
    counts = np.maximum(weights @ shared.T, 2)
    means = weights @ differences.T / counts
    variances = weights @ (differences**2).T / counts - means**2
    errors = np.sqrt(np.maximum(variances, 0) / (counts - 1))
    tiny = 1e-9 * errors[0] + np.finfo(float).tiny
    deviations = abs(means[1:] - means[0]) / (errors[1:] + tiny)
    is_usable = shared.sum(axis=1) >= 2
    largest = np.where(is_usable, deviations, 0.0).max(axis=1)
    half_widths = np.quantile(largest, level) * errors[0]
    ends = np.exp([means[0] - half_widths, means[0] + half_widths]).T.tolist()
    return [interval if usable else None for interval, usable in zip(ends, is_usable)]


def page(paths: Sequence[Path] | None = None) -> str:
    """The board as Markdown, made of the packed files ``paths`` (default: all in results/board)."""
    entries = board(packed_under(FOLDER) if paths is None else paths)
    sections = [HEAD.replace("SENTENCE\n\n", in_words(entries))]
    if not entries:
        sections.append("Nothing has been submitted yet.\n")
    for contest, contest_entries in grouped(
        entries, lambda entry: entry["contest"]
    ).items():
        sections.append(f"## {contest}\n")
        for ranking, ranking_entries in grouped(
            contest_entries, lambda entry: entry["ranking"]
        ).items():
            title = f"**{ranking[0].upper()}{ranking[1:]}**"
            sections.append(f"{title}\n\n{_table(ranking_entries, _row)}")
        sections.append(_without_worth(contest_entries))
        sections.append(
            "<details markdown><summary>Versions, authors and files</summary>\n\n"
            f"{_table(contest_entries, _origin)}\n</details>\n"
        )
    return "\n".join(sections)


def in_words(entries: Sequence[Mapping[str, Any]]) -> str:
    """What tuned contenders are worth in passes of the best first-order method, in words; empty if none is compared with it."""
    tuned = [
        entry
        for entry in entries
        if entry["ranking"].startswith("tuned") and entry["is_compared"]
    ]
    worths = sorted(
        (entry["worth_passes"], f"{entry['algorithm']} on {entry['contest']}")
        for entry in tuned
        if entry["worth_passes"] is not None
    )
    if not worths:
        return ""
    (least, least_name), *_, (most, most_name) = worths * 2
    words = (
        f"Tuned contenders make {np.median([entry['passes'] for entry in tuned]):.4g} passes over the data, in the median. The "
        f"best first-order method has their errors after {least:.1f} ({least_name.partition(',')[0]}) to {most:.1f} passes "
        f"({most_name.partition(',')[0]}), {np.median([worth for worth, _ in worths]):.1f} in the median"
    )
    if len(worths) < len(tuned):
        words += f"; {len(tuned) - len(worths)} of {len(tuned)} errors are as small as those in which it ends"
    return f"{words}: [what a pass is worth](worth.md).\n\n"


def _without_worth(entries: Iterable[Mapping[str, Any]]) -> str:
    """Why contenders are not compared with the best first-order method, in a sentence; empty if none is."""
    names_by_reason: dict[str, list[str]] = {}
    for entry in entries:
        for first_order in entry["first_order"][:1]:
            if first_order["reason"]:
                names = names_by_reason.setdefault(first_order["reason"], [])
                names.append(entry["algorithm"])
    if not names_by_reason:
        return ""
    reasons = (
        f"{', '.join(names)} ({reason})" for reason, names in names_by_reason.items()
    )
    return f"Not on the scale of passes: {'; '.join(reasons)}.\n"


def _table(entries: Sequence[Mapping[str, Any]], row: Any) -> str:
    """Markdown table of these entries, made by the function ``row``; columns that are empty for all entries are left out."""
    rows = [row(entry) for entry in entries]
    return markdown_table([key for key in rows[0] if any(r[key] for r in rows)], rows)


def _row(entry: Mapping[str, Any]) -> dict[str, str]:
    """Cells of an entry in the table of its ranking, by column."""
    interval_to_leader = entry["behind_leader"]
    leader_text = (
        ""
        if interval_to_leader is None
        else f"{interval_to_leader[0]:.3g} to {interval_to_leader[1]:.3g}"
    )
    is_ranked = entry["ranking"] != "by hand"
    if is_ranked and interval_to_leader and entry["rank"] == 1:
        leader_text = (
            "leader" if interval_to_leader == [1.0, 1.0] else f"tied ({leader_text})"
        )
    return {
        "rank": str(entry["rank"]) if is_ranked else "",
        "contender": entry["algorithm"],
        "error ÷ optimal error": ratio_words(
            entry["ratio_to_limit"], entry["ratio_to_limit_error"]
        ),
        "over the leader": leader_text if is_ranked else "",
        "passes": number(entry["passes"], 0),
        "worth in passes": entry["worth"],
        "error where optimum is 0": number(entry["where_zero"], 3),
        "agrees with theory": entry["as_predicted"],
        "CPU time": seconds(entry["cpu_seconds"]),
        "runs": str(statuses(entry["status_counts"], entry["moving"])),
    }


def _origin(entry: Mapping[str, Any]) -> dict[str, str]:
    """Cells of an entry in the table of versions, authors and files, by column."""
    packages = entry["packages"] or {}
    versions = {
        name: entry["versions"].get(name, "") for name in ("smimbench", "numpy")
    } | packages
    return {
        "contender": entry["algorithm"],
        "date": time.strftime("%Y-%m-%d", time.gmtime(entry["written"])),
        "version": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "who": entry["by"],
        "file": entry["file"],
    }


def picture(paths: Sequence[Path], target: Path) -> None:
    """Draw the error of every contender (a row) over the optimal one on every problem (a column), with intervals, and CPU time.

    Rows are sorted by the geometric mean of this ratio over the problems that a contender takes; what was set by hand is
    left out. Full marks are tied with the leader of their ranking.
    """
    entries = [
        entry
        for entry in board(paths)
        if entry["interval"] and entry["ranking"] != "by hand"
    ]
    contests = grouped(entries, lambda entry: entry["contest"])
    contenders = grouped(entries, lambda entry: entry["algorithm"])

    def mean_log(name: str) -> float:
        """Mean over problems of the logarithm of a contender's error over the optimal one."""
        return sum(
            math.log(entry["ratio_to_limit"]) for entry in contenders[name]
        ) / len(contenders[name])

    names = sorted(contenders, key=mean_log, reverse=True)
    with plain_matplotlib():
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullLocator

        sizes = dict.fromkeys(
            ("xtick.labelsize", "ytick.labelsize", "axes.titlesize"), 7
        )
        with rc_context({**sizes, "axes.spines.left": False, "axes.grid": False}):
            figure = Figure((7.2, 0.6 + 0.2 * len(names)), layout="constrained")
            widths = [*[1.0] * len(contests), 0.8]
            axes = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
        for axis, (contest, contest_entries) in zip(axes, contests.items()):
            problem, _, size = contest.partition(", ")
            axis.set_title(f"{problem}\n{size.replace(', alpha', chr(10) + 'α =')}")
            axis.axvline(1, color="black", linewidth=0.8)
            for entry in contest_entries:
                y, ratio, color = (
                    names.index(entry["algorithm"]),
                    entry["ratio_to_limit"],
                    _color(entry),
                )
                axis.plot(entry["interval"], [y, y], color=color, linewidth=1, zorder=1)
                x, marker = (
                    (ratio, "o") if ratio <= LARGEST_RATIO else (LARGEST_RATIO, ">")
                )
                face_color = color if entry["rank"] == 1 else "white"
                axis.plot(x, y, marker, color=color, mfc=face_color, ms=4)
                if ratio > LARGEST_RATIO:
                    text_style = {"ha": "right", "va": "center", "fontsize": 6}
                    axis.text(x / 1.5, y, f"{ratio:.3g}", color=color, **text_style)
                if entry["worth_passes"] is not None:
                    words, place = (f"{entry['worth_passes']:.1f}", (END_OF_AXIS, y))
                    axis.text(*place, words, ha="right", va="center", fontsize=5)
            axis.set_xlim(0.8, END_OF_AXIS)
        for entry in entries:
            y = names.index(entry["algorithm"])
            axes[-1].plot(entry["cpu_seconds"], y, "|", color=_color(entry), ms=6)
        axes[-1].set_title("CPU seconds\nper run")
        for axis in axes:
            axis.set_xscale("log")
            logarithm_base = 100 if axis is axes[-1] else 10
            axis.xaxis.set_major_locator(LogLocator(logarithm_base, numticks=4))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter("{x:g}")
            axis.tick_params(axis="x", length=2)
            axis.tick_params(axis="y", length=0)
            axis.grid(axis="y", color="0.9", linewidth=0.6, alpha=1)
        axes[0].set_yticks(range(len(names)), names)
        figure.supxlabel(
            "error / optimal error at infinite size, one axis for all problems (full: tied with the leader of its ranking; "
            "blue: self-tuning, orange: tuned;\nnumbers: worth in passes of the best first-order method)",
            fontsize=7,
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, metadata={"Date": None})


def _color(entry: Mapping[str, Any]) -> str:
    """Color of an entry in the picture: one for contenders that need no tuning, one for tuned ones."""
    return COLORS[0 if entry["ranking"] == "self-tuning" else 1]


def packages(path: Path) -> list[str]:
    """Packages that pip has to install to run the rows of a packed file again: paths of examples in this checkout, with the
    libraries that they take if installed, or names with versions.
    """
    requirements = []
    for name, version in read_pack(path)["run"].get("packages", {}).items():
        folder = ROOT / "plugins" / "examples" / name
        if not folder.is_dir():
            requirements.append(f"{name}=={version}")
            continue
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        extras = {*project.get("optional-dependencies", {})} - {"test"}
        requirements.append(f"{folder}[{','.join(sorted(extras))}]")
    return requirements


def absent(path: Path) -> list[str]:
    """One line for each row of a packed file that is not on the board, with the reason."""
    table, run_document, remarks = read_packed(path)
    reasons = {
        f"{row.place.problem}: {row.place.algorithm}": rerun_obstacle(row, run_document)
        for row in table.rows
    }
    lines = [
        f"{row_label} is not on the board: {reason}"
        for row_label, reason in reasons.items()
        if reason
    ]
    lines += [remark for remark in remarks if remark != UNVERIFIABLE]
    return [f"{path}: {line}" for line in lines]


def main(words: Sequence[str]) -> list[str]:
    """Print what the command line (``words``) asks for; return one line for each row that is not on the board."""
    if words[:1] == ["--packages"]:
        print("\n".join(packages(Path(words[1]))))  # noqa: T201
        return []
    if words[:1] == ["--figure"]:
        picture(packed_under(FOLDER), ROOT / "docs" / "board.svg")
        return []
    files = [Path(word) for word in words] or packed_under(FOLDER)
    print(page(files))  # noqa: T201
    return [line for file in files for line in absent(file)]


if __name__ == "__main__":
    try:
        sys.exit("\n".join(main(sys.argv[1:])) or 0)
    except SuiteError as error:
        sys.exit(str(error))
