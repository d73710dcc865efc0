"""Return types of the Python API (rows, loaded results, theory), with their display in notebooks and tidy tables."""

from __future__ import annotations

import html
import importlib
import importlib.util
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import JsonObject
from smimbench.interfaces import Array
from smimbench.registry.registry import find_metric, theory_of
from smimbench.report.columns import Column, as_text, column_of, html_table, number
from smimbench.report.figures import metric_chart
from smimbench.report.row import component_word, row_of
from smimbench.report.row_document import RowDocument
from smimbench.report.tables import CONTENDER as RANKING
from smimbench.report.text_files import flat_rows
from smimbench.report.theory_lines import chart_questions, named_thresholds
from smimbench.report.verdict import Verdict, verdicts
from smimbench.report.wording import contender_line, note, verdict_line
from smimbench.run.record import Record
from smimbench.run.store import scores_of, settings_under, why_no_runs
from smimbench.suite import SuiteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from smimbench.report.theory_document import ProblemTheory
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import Suite
    from smimbench.theory.types import Question

ROW: list[str | Column] = [
    "problem", "algorithm", "alpha", "D", "metric", "component", "runs", "mean ± s.e.m.", "predicted", "z score", "optimal",
    "error ÷ optimal error", "optimal error, this D ÷ infinite D", "time per run", "run status",
]  # fmt: skip
"""Columns of the HTML table of rows."""

CONTENDER: list[str | Column] = [
    *RANKING[:3],
    column_of("error ÷ lowest error", "compared.ratio"),
    column_of("95% interval of error ratio", "compared.interval"),
    *RANKING[3:],
]
"""Columns of the HTML table of algorithms on a problem."""

SCREEN = 20
"""Largest number of lines of all algorithms that the text of rows shows; doubled, it is longer than a screen."""


class Rows(list[RowDocument]):
    """List of rows, as in ``show --json``, that notebooks display as verdicts and a table.

    Attributes
    ----------
    remarks : list of str
        What the command line says in the note under a verdict: files and settings that are not used, algorithms not tuned.
    """

    def __init__(
        self, rows: Iterable[RowDocument] = (), remarks: Iterable[str] = ()
    ) -> None:
        """Keep the ``rows`` of a results table, with ``remarks`` on them."""
        super().__init__(rows)
        self.remarks = [*remarks]

    @property
    def table(self) -> Any:
        """Flat table of the rows (mean, standard error, prediction, optimum), as a pandas or polars data frame or a list of
        dicts.
        """
        return frame(flat_rows(self))

    def __repr__(self) -> str:
        """Return the verdicts on the algorithms of these rows as text."""
        best_lines, all_lines = [], []
        for verdict in self._verdicts():
            indent = "    "
            lines = textwrap.wrap(verdict_line(verdict), 80, subsequent_indent=indent)
            best_lines += lines
            all_lines += lines
            for contender in verdict.contenders[1:]:
                text = f"  {contender_line(contender)}"
                all_lines += textwrap.wrap(text, 80, subsequent_indent=indent)
        lines = all_lines if len(all_lines) <= SCREEN else best_lines
        lines += filter(None, [note(self.remarks)])
        return "\n".join(
            [*lines, f"{len(self)} rows in .table; smimbench.plot(suite) draws them"]
        )

    def _repr_html_(self) -> str | None:
        """Render verdicts and rankings, and the first rows folded in, with text from users escaped; None without jinja2."""
        if importlib.util.find_spec("jinja2") is None:
            return None
        sections = []
        for verdict in self._verdicts():
            line = html.escape(verdict_line(verdict))
            sections.append(
                f"<p>{line}</p>{_plain_table(CONTENDER, verdict.contenders)}"
            )
        if self.remarks:
            sections.append(f"<p>{html.escape(note(self.remarks))}</p>")
        rows = [row_of(row) for row in self[:40]]
        summary = f"{len(rows)} of {len(self)} rows"
        return (
            "".join(sections)
            + f"<details><summary>{summary}</summary>{_plain_table(ROW, rows)}</details>"
        )

    def _verdicts(self) -> list[Verdict]:
        """Return the verdict on every problem."""
        return verdicts([row_of(row) for row in self])


def _plain_table(columns: Iterable[str | Column], rows: Sequence[object]) -> str:
    """Make an HTML table for a notebook, which has no script that sorts it."""
    return html_table(columns, rows).replace(' class="sortable"', "")


AXES = ("iteration", "seconds", "samples", "damping")


@dataclass(frozen=True, repr=False)
class Loaded:
    """Metric values and trajectories of runs, as pandas or polars data frames or as lists of dicts."""

    values: Any
    trajectories: Any

    def __repr__(self) -> str:
        """Return the numbers of rows in both tables as text."""
        counts = len(self.values), len(self.trajectories)
        return "{} rows in .values, {} in .trajectories".format(*counts)

    def _repr_html_(self) -> str | None:
        """Render the first rows of values as an HTML table; return None without pandas, polars and jinja2."""
        first_rows = self.values[:12]
        if hasattr(first_rows, "_repr_html_"):
            table_html = first_rows._repr_html_()
        elif importlib.util.find_spec("jinja2") is None:
            return None
        else:
            columns = [
                Column(
                    name, number if name in ("value", "seconds") else as_text, "", name
                )
                for name in first_rows[0]
                if name not in ("reason", "versions", "key")
            ]
            table_html = _plain_table(columns, first_rows)
        return f"{table_html}<p>{len(first_rows)} of {len(self.values)} rows</p>"


def load_folder(folder: Path) -> Loaded:
    """Load the metric values and trajectories of all records under a folder; see ``smimbench.load``.

    Raises
    ------
    SuiteError
    """
    runs = settings_under(folder)
    if not runs:
        raise SuiteError(str(folder), "", why_no_runs(folder))
    value_rows: list[dict[str, object]] = []
    step_rows: list[dict[str, object]] = []
    stores = {run.store.folder: (run.suite, run.store) for run in runs}.values()
    scores = [(suite, scores_of(store)) for suite, store in stores]
    for suite, store in [*stores, *scores]:
        for key, record in store.load().items():
            value_rows += _value_rows(suite, key, record)
            step_rows += _step_rows(key, store.trajectory(record) or {})
    return Loaded(frame(value_rows), frame(step_rows))


def _value_rows(suite: str, key: str, record: Record) -> list[dict[str, object]]:
    """Make one table row per metric and component of the record of a cell (``key``); a single row without metric if it has
    none.
    """
    cell = record.cell
    sample_ratio = cell["alpha"] if record.sample_ratio is None else record.sample_ratio
    problem: dict[str, Any] = dict(cell["problem"])
    items = (*problem.values(), cell["algorithm"])
    versions = ", ".join(f"{item['name']} {item['version']}" for item in items)
    values: list[tuple[str | None, int | None, float | None]] = [
        (metric, component, value)
        for metric, component_values in record.metrics.items()
        for component, value in enumerate(component_values, 1)
    ]
    return [
        {
            "suite": suite, "problem": record.problem, "algorithm": record.algorithm, "backend": cell["backend"],
            "alpha": sample_ratio, "dimension": cell["dimension"], "seed": cell["seed"], "replicate": cell["replicate"],
            "status": record.status.value, "reason": record.reason, "versions": versions, "metric": metric,
            "component": component, "value": value, "seconds": record.timing.seconds, "iterations": record.iterations,
            "key": key,
        }
        for metric, component, value in values or [(None, None, None)]
    ]  # fmt: skip


def _step_rows(key: str, trajectory: Mapping[str, Array]) -> list[dict[str, object]]:
    """Make one table row per step, metric and component of the trajectory of a run, whose cell has this ``key``."""
    return [
        {
            "key": key,
            **{
                axis: float(trajectory[axis][step]) if axis in trajectory else None
                for axis in AXES
            },
            "metric": metric,
            "component": component + 1,
            "value": float(values[step, component]),
        }
        for metric, values in trajectory.items()
        if np.ndim(values) == 2
        for component, step in itertools.product(*map(range, values.shape[::-1]))
    ]


def frame(rows: Sequence[Mapping[str, object]]) -> Any:
    """Convert flat rows (dicts) to a pandas data frame, or a polars data frame without pandas; without either, return them
    unchanged.
    """
    for name in ("pandas", "polars"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name).DataFrame(rows)
    return rows


POINTS = 12
"""Largest number of theory points that the text of an object shows; doubled, it is longer than a screen."""


@dataclass(frozen=True, repr=False)
class Theory:
    """Bayes-optimal curves and thresholds of the problems of a suite.

    Attributes
    ----------
    suite : Suite
    problems : list of ProblemTheory
        Theory of every problem.
    answer : callable
        Solves questions that a figure needs besides.
    alphas : sequence of float or None
        Sample ratios; None: those of the suite.
    remarks : sequence of str
        What is not solved, or less exactly than usual, and why.
    """

    suite: Suite
    problems: list[ProblemTheory]
    answer: Callable[[Iterable[Question]], Answers]
    alphas: Sequence[float] | None = None
    remarks: Sequence[str] = ()

    @property
    def documents(self) -> list[JsonObject]:
        """JSON objects of ``smimbench theory --json``, one per problem, with ``points``, ``thresholds`` and methods."""
        return [problem.document() for problem in self.problems]

    @cached_property
    def table(self) -> Any:
        """The ``rows`` as a pandas or polars data frame, or unchanged without either package."""
        return frame(self.rows)

    @cached_property
    def rows(self) -> list[dict[str, object]]:
        """Theory as dicts, one per problem, sample ratio, branch and component.

        Columns: ``problem``, ``alpha``, ``branch``, ``component`` (from 1; None where there is one), each metric with its
        numerical error (``mse``, ``mse_error``, ``overlap``, ...), errors of prediction (``generalization_error_bayes``, ...)
        where they were asked for, ``free_entropy`` and ``method``. The first branch of a sample ratio is the Bayes-optimal one.
        """
        metrics = dict.fromkeys(("mse", "overlap", *self.suite.run.metrics))
        rows = []
        for plan, theory in zip(self.suite.chosen_plans, self.problems):
            problem, components = plan.problem, plan.problem.components
            for point in theory.points:
                metric_values: dict[str, Sequence[float | None]] = {}
                for name in metrics:
                    metric = find_metric(name, problem.model.name)
                    values, errors = theory_of(metric, problem, point, components)
                    metric_values |= {name: values, f"{name}_error": errors}
                point_columns = {
                    f"generalization_error_{kind}": error
                    for kind, error in (point.generalization_error or {}).items()
                }
                rows += [
                    {
                        "problem": plan.label,
                        "alpha": point.alpha,
                        "branch": point.branch,
                        "component": component + 1 if components > 1 else None,
                        **{
                            name: values[component]
                            for name, values in metric_values.items()
                            if component < len(values)
                        },
                        **point_columns,
                        "free_entropy": point.document().get("free_entropy"),
                        "method": point.method,
                    }
                    for component in range(components)
                ]
        return rows

    @cached_property
    def thresholds(self) -> Any:
        """Table of thresholds: ``problem``, ``threshold``, ``alpha`` with its ``error``, or the ``reason`` why there is none."""
        rows = []
        for plan, theory in zip(self.suite.chosen_plans, self.problems):
            thresholds = theory.thresholds
            if thresholds is None:
                continue
            word = component_word(plan.problem)
            for name, threshold in named_thresholds(thresholds, word):
                key = name.replace(" ", "_").replace("-", "_")
                rows.append(
                    {
                        "problem": plan.label,
                        "threshold": name,
                        "alpha": threshold and threshold.value,
                        "error": threshold and threshold.error,
                        "reason": None if threshold else thresholds.reasons.get(key),
                    }
                )
        return frame(rows)

    def plot(
        self,
        metric: str = "mse",
        width: str | None = None,
        title: bool = True,
        output: str | Path | None = None,
    ) -> Any:
        """Draw a metric against the sample ratio, with thresholds and the hard phase.

        Parameters
        ----------
        width : str or None
            A length such as ``"3.3in"`` or ``"84mm"``, or ``"column"`` (3.4 inches) or ``"page"`` (7 inches); default: a column
            for one panel, a page for several.
        title : bool
            False leaves out the title and the note, which a caption replaces; several panels keep their titles.
        output : path or None
            File to write as well, ``.png``, ``.svg`` or ``.pdf``, with its data as ``.csv`` next to it.

        Returns
        -------
        matplotlib.axes.Axes
            Of the only panel, or an array with those of all problems and components. ``axes.figure`` is the figure.

        Raises
        ------
        ImportError
            If matplotlib is missing (extra ``plot``).
        RegistryError
            If there is no such metric.
        ValueError
            If there is nothing to draw: no problem is solved, or errors of prediction were not asked for.
        """
        from smimbench.report.charts import show

        solved = [problem for problem in self.problems if not problem.unsolved]
        points = itertools.chain(*(problem.points for problem in solved))
        if "generalization_error" in metric and not any(
            point.generalization_error for point in points
        ):
            raise ValueError(
                f"{metric} was not computed; use theory(..., predictions=True)"
            )
        only_solved = tuple(("problem", problem.label) for problem in solved)
        all_solved = len(solved) == len(self.problems)
        suite = self.suite if all_solved else replace(self.suite, only=only_solved)
        if not solved:
            raise ValueError(
                "no problem's theory was solved, so there is nothing to draw"
            )
        answers = self.answer(())
        self.answer(chart_questions(suite, answers, (metric,), (), self.alphas))
        chart = metric_chart(suite, [], answers, metric, self.alphas)
        assert chart is not None
        return show(chart, width, title, output)

    def __repr__(self) -> str:
        """Return the theory as text tables, with the first sample ratios of every problem."""
        from smimbench.report.columns import plain_text
        from smimbench.report.theory_tables import theory_tables

        points_per_problem = max(2, POINTS // max(1, len(self.problems)))
        shortened_problems = [
            replace(problem, points=problem.points[:points_per_problem])
            for problem in self.problems
        ]
        hidden_count = sum(
            max(0, len(problem.points) - points_per_problem)
            for problem in self.problems
        )
        points = f"{hidden_count} more points in .table; " if hidden_count else ""
        tables = plain_text(theory_tables(shortened_problems))
        note_lines = f"{note(self.remarks)}\n" if self.remarks else ""
        return f"{self.suite.title}\n{tables}{note_lines}{points}.table, .thresholds, .plot()"
