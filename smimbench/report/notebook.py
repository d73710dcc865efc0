"""Notebook output: rows as HTML, and a results folder loaded as tidy tables."""

from __future__ import annotations

import html
import importlib
import importlib.util
import itertools
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smimbench.files import JsonObject
from smimbench.report.columns import Column, html_table
from smimbench.report.row import row_of
from smimbench.report.text_files import flat_rows
from smimbench.report.verdict import verdict_line, verdicts
from smimbench.run.external import scores_of
from smimbench.run.record import Record
from smimbench.run.store import settings_under, why_none
from smimbench.suite import SuiteError

ROW: list[str | Column] = [
    "problem", "algorithm", "alpha", "D", "metric", "component", "n", "mean ± s.e.m.", "predicted", "z", "optimal",
    "error / optimal", "per run", "status",
]  # fmt: skip
"""Columns of a row in HTML."""


class Rows(list[JsonObject]):
    """A list of rows, as ``show --json`` has them, that a notebook shows as a verdict and a table."""

    @property
    def table(self) -> Any:
        """Mean, standard error, prediction and optimum, one row per problem, algorithm, sample ratio, dimension, metric and
        component: a flat frame of pandas or polars, or a list of dicts.
        """
        return frame(flat_rows(self))

    def __repr__(self) -> str:
        lines = [
            textwrap.fill(line, 80, subsequent_indent="    ")
            for line in self._verdict_lines()
        ]
        return "\n".join([*lines, f"{len(self)} rows; .table is a frame of them"])

    def _repr_html_(self) -> str | None:
        """Verdicts and the first rows as HTML, with text from users escaped; None, which a notebook shows as text, without
        jinja2.
        """
        if importlib.util.find_spec("jinja2") is None:
            return None
        lines = "".join(
            f"<li>{html.escape(line)}</li>" for line in self._verdict_lines()
        )
        table = html_table(ROW, [row_of(row) for row in self[:40]])
        return f"<ul>{lines}</ul>{table}<p>{min(40, len(self))} of {len(self)} rows</p>"

    def _verdict_lines(self) -> list[str]:
        return [
            verdict_line(verdict) for verdict in verdicts([row_of(row) for row in self])
        ]


AXES = ("iteration", "seconds", "samples", "damping")


@dataclass(frozen=True)
class Loaded:
    """Values and trajectories of runs, as frames of pandas or polars, or as lists of dicts."""

    values: Any
    trajectories: Any

    def _repr_html_(self) -> str:
        shown = self.values[:12]
        table = (
            shown._repr_html_()
            if hasattr(shown, "_repr_html_")
            else f"<pre>{html.escape(str(shown))}</pre>"
        )
        return f"{table}<p>{len(shown)} of {len(self.values)} rows</p>"


def load_folder(folder: Path) -> Loaded:
    """Values and trajectories of all records under a folder; see ``smimbench.load``.

    Raises
    ------
    SuiteError
    """
    runs = settings_under(folder)
    if not runs:
        raise SuiteError(str(folder), "", why_none(folder))
    values: list[JsonObject] = []
    steps: list[JsonObject] = []
    stores = {run.store.folder: (run.suite, run.store) for run in runs}.values()
    scores = [(suite, scores_of(store)) for suite, store in stores]
    for suite, store in [*stores, *scores]:
        for key, record in store.load().items():
            values += _values(suite, key, record)
            steps += _steps(key, store.trajectory(record) or {})
    return Loaded(frame(values), frame(steps))


def _values(suite: str, key: str, record: Record) -> list[JsonObject]:
    """A row for each metric and component of a record, or one without."""
    cell = record.cell
    ratio = cell["alpha"] if record.sample_ratio is None else record.sample_ratio
    problem: dict[str, Any] = dict(cell["problem"])
    items = (*problem.values(), cell["algorithm"])
    versions = ", ".join(f"{item['name']} {item['version']}" for item in items)
    place = {name: cell[name] for name in ("dimension", "seed", "replicate")}
    about = {
        "suite": suite, "problem": record.problem, "algorithm": record.algorithm, "backend": cell["backend"],
        "alpha": ratio, **place, "status": record.status.value, "reason": record.reason, "versions": versions,
    }  # fmt: skip
    cost = {
        "seconds": record.timing.seconds,
        "iterations": record.iterations,
        "key": key,
    }
    rows: list[JsonObject] = []
    for metric, numbers in record.metrics.items():
        for component, number in enumerate(numbers, 1):
            measured = {"metric": metric, "component": component, "value": number}
            rows.append({**about, **measured, **cost})
    no_metric = {"metric": None, "component": None, "value": None}
    return rows or [{**about, **no_metric, **cost}]


def _steps(key: str, trajectory: JsonObject) -> list[JsonObject]:
    """A row for each step, metric and component of a trajectory."""
    rows = []
    for metric, course in trajectory.items():
        if getattr(course, "ndim", 0) != 2:
            continue
        for k, i in itertools.product(*map(range, course.shape[::-1])):
            row: JsonObject = {"key": key}
            for name in AXES:
                axis = trajectory.get(name)
                row[name] = None if axis is None else float(axis[i])
            number = float(course[i, k])
            rows.append(row | {"metric": metric, "component": k + 1, "value": number})
    return rows


def frame(rows: list[JsonObject]) -> Any:
    """Flat rows as a frame of pandas, of polars where there is no pandas, or as they are where there is neither."""
    for name in ("pandas", "polars"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name).DataFrame(rows)
    return rows
