"""Solved theory for Python and notebooks: flat tables, thresholds, a figure, and a text of one screen."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.figures import (
    chart_questions,
    drawn_ratios,
    metric_chart,
    named_thresholds,
)
from smimbench.report.labels import component_word
from smimbench.report.notebook import frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from smimbench.files import JsonObject
    from smimbench.report.theory_document import ProblemTheory
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import Suite
    from smimbench.theory.questions import Question

POINTS = 12
"""Points that the text of an object shows, of all problems together; doubled, it is longer than a screen."""


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
    """

    suite: Suite
    problems: list[ProblemTheory]
    answer: Callable[[Iterable[Question]], Answers]
    alphas: Sequence[float] | None = None

    @property
    def documents(self) -> list[JsonObject]:
        """Documents of ``smimbench theory --json``, one for every problem, with ``points``, ``thresholds`` and their methods."""
        return [problem.document() for problem in self.problems]

    @cached_property
    def table(self) -> Any:
        """The ``rows`` as a frame of pandas or polars, or as they are."""
        return frame(self.rows)

    @cached_property
    def rows(self) -> list[JsonObject]:
        """One row per problem, sample ratio, branch and component.

        Columns: ``problem``, ``alpha``, ``branch``, ``component`` (from 1; None where there is one), each metric with its
        numerical error (``mse``, ``mse_error``, ``overlap``, ...), errors of prediction (``generalization_error_bayes``, ...)
        where they were asked for, ``free_entropy`` and ``method``. The first branch of a sample ratio is the Bayes-optimal one.
        """
        metrics = dict.fromkeys(("mse", "overlap", *self.suite.run.metrics))
        rows = []
        for plan, theory in zip(self.suite.chosen_plans, self.problems):
            count, model = plan.problem.components, plan.problem.model.name
            for point in theory.points:
                numbers = {
                    name: theory_of(
                        find_metric(name, model), plan.problem, point, count
                    )
                    for name in metrics
                }
                for k in range(count):
                    row: JsonObject = {"problem": plan.label, "alpha": point.alpha}
                    row["branch"] = point.branch
                    row["component"] = k + 1 if count > 1 else None
                    for name, (values, errors) in numbers.items():
                        if k < len(values):
                            row |= {name: values[k], f"{name}_error": errors[k]}
                    for kind, error in (point.generalization_error or {}).items():
                        row[f"generalization_error_{kind}"] = error
                    document = point.document()
                    row["free_entropy"] = document.get("free_entropy")
                    row["method"] = point.method
                    rows.append(row)
        return rows

    @cached_property
    def thresholds(self) -> Any:
        """One row per problem and threshold, as ``table``: ``problem``, ``threshold``, ``alpha`` with its ``error``, and the
        ``reason`` where there is none.
        """
        rows = []
        for plan, theory in zip(self.suite.chosen_plans, self.problems):
            thresholds = theory.thresholds
            if thresholds is None:
                continue
            for name, at in named_thresholds(thresholds, component_word(plan.problem)):
                key = name.replace(" ", "_").replace("-", "_")
                rows.append(
                    {
                        "problem": plan.label,
                        "threshold": name,
                        "alpha": at.value if at else None,
                        "error": at.error if at else None,
                        "reason": None if at else thresholds.reasons.get(key),
                    }
                )
        return frame(rows)

    def plot(self, metric: str = "mse", width: str | None = None) -> Any:
        """Draw a metric against the sample ratio, with thresholds and the hard phase.

        Parameters
        ----------
        width : str or None
            ``"column"`` (3.4 inches) or ``"page"`` (7 inches); default: a column for one panel, a page for several.

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
                f"{metric} was not computed; theory(..., predictions=True) does"
            )
        only = tuple(("problem", problem.label) for problem in solved)
        is_whole = len(solved) == len(self.problems)
        suite = self.suite if is_whole else replace(self.suite, only=only)
        if not solved:
            raise ValueError("no problem is solved: there is nothing to draw")
        answers = self.answer(())
        self.answer(
            chart_questions(
                suite, answers, drawn_ratios(suite, (), self.alphas), (metric,)
            )
        )
        chart = metric_chart(suite, [], answers, metric, self.alphas)
        assert chart is not None
        return show(chart, width)

    def __repr__(self) -> str:
        from smimbench.report.columns import plain_text
        from smimbench.report.theory_tables import theory_tables

        maximum = max(2, POINTS // max(1, len(self.problems)))
        shown = [
            replace(problem, points=problem.points[:maximum])
            for problem in self.problems
        ]
        count = sum(max(0, len(problem.points) - maximum) for problem in self.problems)
        remark = f"{count} more points in .table; " if count else ""
        return f"{self.suite.title}\n{plain_text(theory_tables(shown))}{remark}.table, .thresholds, .plot()"
