"""Charts of the HTML page (metrics, profiles, learning, seconds, trajectories), from the data that lie beside the
figures, with all numbers to hover.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

from smimbench.registry.metrics import find_metric, is_in_trajectory
from smimbench.registry.registry import RegistryError
from smimbench.report.aggregate import ZERO
from smimbench.report.csv_text import flat
from smimbench.report.figures import FEWEST, UNINFORMED
from smimbench.report.labels import grouped, letter
from smimbench.report.profiles import CUT, READING
from smimbench.report.style import COLOURS, Look, looks_of
from smimbench.report.tables import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from smimbench.suite.cells import Suite

__all__ = ["COURSES", "charts_of"]

COURSES = ("seconds", "learning", "trajectories")
"""Figures with hundreds of curves: the page has them as charts only, or it would be ten times as large."""

MOST = 80
"""Points of a curve of such a chart; doubled, the page grows by a tenth and looks the same."""

SYMBOLS = dict(zip("osD^vPX*<>hp", ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star",
                                     "triangle-left", "triangle-right", "hexagon", "pentagon")))  # fmt: skip
"""Plotly's names of the markers of figures."""

PLAIN = Look("", "o", "-")
Entry = dict[str, str]


def charts_of(suite: Suite, tables: Sequence[Path]) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Groups (name, title, caption) and charts for the page's script, one chart per panel of a figure.

    Parameters
    ----------
    tables : sequence of Path
        CSV files as ``save_figure`` writes them.
    """
    groups, charts = [], []
    for path in tables:
        with path.open(encoding="utf-8", newline="") as file:
            # A formula has an apostrophe in front, for spreadsheets only.
            entries = [{k: re.sub("^'(?=[=+@-])", "", v) for k, v in one.items()} for one in csv.DictReader(file)]
        build, title, caption = _figure_kind(path.stem)
        if build is None or not entries:
            continue
        groups.append({"name": path.stem, "title": title, "caption": caption})
        charts += [{**chart, "group": path.stem} for chart in build(suite, path.stem, entries)]
    return groups, charts


def _figure_kind(name: str) -> tuple[Any, str, str]:
    if name == "seconds":
        return _seconds, "Error against seconds", "Median over runs."
    if name == "learning":
        return (
            _learning_chart,
            "Error against samples processed",
            "Median over runs; a sample that is processed again counts again.",
        )
    if name == "profiles":
        return _profile_chart, "Profiles over all problems", READING
    if name == "trajectories":
        return (
            _trajectory_chart,
            "Runs and the trajectory that theory has of them",
            "Solid: mean of the runs; dashed: theory of this very algorithm, from the starts of the runs.",
        )
    try:
        about = find_metric(name)
    except RegistryError:
        return None, "", ""
    return (
        _metric_chart,
        f"{about.label} against the sample ratio",
        "Point at a mark for its numbers; the legend hides lines.",
    )


def _looks(suite: Suite) -> dict[str, Look]:
    """Looks by label as a CSV has it."""
    return {flat(label): look for label, look in looks_of(suite).items()}


def _metric_chart(suite: Suite, name: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    charts = []
    looks, about = _looks(suite), find_metric(name)
    for (problem, component), own in grouped(entries, lambda e: (e["problem"], e["component"])).items():
        traces = []
        marks = [e for e in own if e["what"] == "threshold"]
        own = [e for e in own if e["what"] != "threshold"]
        kinds = grouped(own, lambda e: (e["what"], e.get("algorithm") or ""))
        for (what, algorithm), members in kinds.items():
            look = looks.get(algorithm, PLAIN)
            words = [
                _words_of_trace(
                    algorithm or what, e, {"alpha": "alpha", "value": about.label, "error": "±", "n": "runs"}
                )
                for e in members
            ]
            trace = _trace(members, "alpha", words)
            if what == "runs":
                hollow = [e.get("hollow") == "True" for e in members]
                symbol = SYMBOLS.get(look.marker, "circle")
                trace |= {"mode": "markers", "name": algorithm, "algorithm": algorithm, "colour": look.colour, "symbol": symbol,
                          "symbols": [symbol + ("-open" if h else "") for h in hollow],
                          "error": [float(e["error"] or 0.0) for e in members]}  # fmt: skip
            elif what == "predicted":
                trace |= {
                    "name": f"{algorithm}, predicted",
                    "algorithm": algorithm,
                    "colour": look.colour,
                    "dash": "dash",
                }
            elif what == "reference":
                trace |= {"mode": "markers", "name": algorithm, "colour": "#888888", "symbol": "x-thin-open"}
            else:
                trace |= {"name": what, "dash": "dash" if what == UNINFORMED else "solid"}
            if what in ("predicted", "Bayes-optimal") and len(members) < FEWEST:
                trace |= {"mode": "markers", "symbol": "line-ew-open"}
            traces.append(trace)
        bayes = [float(e["value"]) for e in own if e["what"] == "Bayes-optimal"]
        zero = about.direction == "lower" and any(value <= ZERO * suite.run.target for value in bayes)
        head = problem + (f", component {component}" if component else "")
        charts.append(
            {**_chart_frame(suite, problem, head, "sample ratio alpha", about.label), "zero": zero, "traces": traces}
        )
        ends = [x for trace in traces for x in trace["x"]]
        charts[-1]["thresholds"] = [
            {"at": float(e["alpha"]), "name": e["algorithm"]}
            for e in marks
            if ends and min(ends) < float(e["alpha"]) < max(ends)
        ]
    return charts


def _seconds(suite: Suite, name: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return _charts_of_curves(suite, entries, "seconds", "seconds", "MSE", ylog=True)


def _learning_chart(suite: Suite, name: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    label = next(find_metric(one).label for one in suite.run.metrics if is_in_trajectory(find_metric(one)))
    return _charts_of_curves(suite, entries, "samples", "samples processed", label, ylog=False)


def _profile_chart(suite: Suite, name: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    charts = []
    looks = _looks(suite)
    for axis, own in grouped(entries, lambda e: e["axis"]).items():
        last = axis == "error over the best"
        traces = []
        for algorithm, members in grouped(own, lambda e: e["algorithm"]).items():
            look = looks.get(algorithm, PLAIN)
            chosen = [members[i] for i in _thinned_trace(len(members))]
            words = [_words_of_trace(algorithm, e, {"x": axis, "share": "share"}) for e in chosen]
            trace = _trace(chosen, "x", words, y="share")
            if last:  # what is best somewhere begins at 1, whatever its first step is
                trace["x"], trace["y"] = [*trace["x"], CUT], [*trace["y"], trace["y"][-1]]
                trace["text"] = [*words, words[-1]]
            traces.append(
                {
                    **trace,
                    "name": algorithm,
                    "algorithm": algorithm,
                    "colour": look.colour,
                    "dash": _dash(look),
                    "shape": "hv",
                }
            )
        title = "error over that of the best algorithm" if last else f"{axis} to come near Bayes"
        share = "share of instances" if last else "share of targets"
        # It is of all problems, so no choice of one hides it.
        charts.append(
            {
                **_chart_frame(suite, None, title, axis, share),
                "zero": False,
                "traces": traces,
                "xlog": not last,
                "ylog": False,
            }
        )
    return charts


def _thinned_trace(count: int) -> list[int]:
    """Places of so many points that a curve keeps, the first and the last among them."""
    return sorted({round(i * (count - 1) / (MOST - 1)) for i in range(MOST)}) if count > MOST else list(range(count))


def _charts_of_curves(
    suite: Suite, entries: Sequence[Entry], x: str, xlabel: str, ylabel: str, *, ylog: bool
) -> list[dict[str, Any]]:
    charts = []
    looks = _looks(suite)
    letters = {flat(plan.label): letter(plan.problem.model) for plan in suite.plans}
    for (problem, alpha, dimension), own in grouped(
        entries, lambda e: (e["problem"], e["alpha"], e["dimension"])
    ).items():
        traces = []
        places = [float(e[x]) for e in own if e[x]]
        for what, members in grouped(own, lambda e: e["what"]).items():
            if len(members) == 1 and not members[0][x]:  # a level
                members = [{**members[0], x: str(at)} for at in (min(places), max(places))]
            members = [members[i] for i in _thinned_trace(len(members))]
            owner = _owner(what, looks)
            look = looks.get(owner)
            words = [_words_of_trace(what, e, {x: xlabel, "value": ylabel}) for e in members]
            extra = {"algorithm": owner, "colour": look.colour, "dash": _dash(look)} if look else {"dash": "dash"}
            traces.append({**_trace(members, x, words), "name": what, **extra})
        zero = ylog and not any(trace["name"].startswith("Bayes") for trace in traces)
        head = f"{problem}, alpha = {float(alpha):.4g}, {letters[problem]} = {dimension}"
        frame = _chart_frame(suite, problem, head, xlabel, ylabel)
        charts.append({**frame, "zero": zero, "traces": traces, "xlog": True, "ylog": ylog})
    return charts


def _owner(what: str, labels: Iterable[str]) -> str:
    """The algorithm that a curve belongs to, from its name: the label, or the label and what more there is to say of it."""
    return max((one for one in labels if what == one or what.startswith(f"{one}, ")), key=len, default="")


def _trajectory_chart(suite: Suite, name: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One chart per problem, algorithm, sample ratio and dimension: error and overlap against the algorithm's own clock."""
    charts = []
    letters = {flat(plan.label): letter(plan.problem.model) for plan in suite.plans}
    for (problem, algorithm, alpha, dimension), own in grouped(
        entries, lambda e: (e["problem"], e["algorithm"], e["alpha"], e["dimension"])
    ).items():
        clock = "samples" if own[0].get("samples") else "iteration"
        d = letters[problem]
        xlabel = f"samples / {d}" if clock == "samples" else "iteration"
        traces = []
        curves = grouped(own, lambda e: (e["metric"], e["component"], e["what"]))
        colours = {key[:2]: COLOURS[i % len(COLOURS)] for i, key in enumerate(dict.fromkeys(k[:2] for k in curves))}
        for (metric, component, what), members in curves.items():
            label = find_metric(metric).label + (f" {component}" if component else "")
            words = [_words_of_trace(f"{label}, {what}", e, {clock: xlabel, "value": label}) for e in members]
            dash = {"predicted": "dash", "predicted as D grows": "dot"}.get(what, "solid")
            trace = {"name": f"{label}, {what}", "algorithm": algorithm, "dash": dash}
            traces.append({**_trace(members, clock, words), **trace, "colour": colours[metric, component]})
        head = f"{problem}: {algorithm}, alpha = {float(alpha):.4g}, {d} = {dimension}"
        frame = _chart_frame(suite, problem, head, xlabel, "")
        charts.append({**frame, "zero": False, "traces": traces})
    return charts


def _chart_frame(suite: Suite, problem: str | None, title: str, xlabel: str, ylabel: str) -> dict[str, Any]:
    return {
        "problem": problem,
        "title": title,
        "xlabel": xlabel,
        "ylabel": ylabel,
        "target": suite.run.target,
        "thresholds": [],
    }


def _trace(members: Sequence[Entry], x: str, words: list[str], y: str = "value") -> dict[str, Any]:
    return {"mode": "lines", "x": [_short(e[x]) for e in members], "y": [_short(e[y]) for e in members], "text": words}


def _dash(look: Look) -> str:
    """Plotly's word for the dashes of a figure."""
    lengths = look.dashes
    if isinstance(lengths, str):
        return {"-": "solid", "-.": "dashdot"}.get(lengths, "dot")
    return ",".join(f"{2 * length}px" for length in lengths[1])


def _short(value: str) -> float:
    """As many digits as a screen has."""
    return float(f"{float(value):.6g}")


def _words_of_trace(head: str, entry: Mapping[str, str], fields: Mapping[str, str]) -> str:
    """The lines that hovering shows."""
    lines = [head]
    lines += [f"{label}: {number(float(entry[key]), 5)}" for key, label in fields.items() if entry.get(key)]
    return "<br>".join(line.replace("&", "&amp;").replace("<", "&lt;").replace("$", "&#36;") for line in lines)
