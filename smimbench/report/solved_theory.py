"""Solved theory for Python and notebooks: flat tables, thresholds, a figure, and a text of one screen."""

from __future__ import annotations

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
from smimbench.theory.types import TheoryPoint, Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from smimbench.files import JsonObject
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
    documents : list of dict
        What ``smimbench theory --json`` prints: one for every problem, with ``points``, ``thresholds`` and their methods.
    answer : callable
        Solves questions that a figure needs besides.
    alphas : sequence of float or None
        Sample ratios; None: those of the suite.
    """

    suite: Suite
    documents: list[JsonObject]
    answer: Callable[[Iterable[Question]], Answers]
    alphas: Sequence[float] | None = None

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
        for plan, document in zip(self.suite.chosen_plans, self.documents):
            count, model = plan.problem.components, plan.problem.model.name
            for point in document["points"]:
                found = {
                    name: theory_of(
                        find_metric(name, model),
                        plan.problem,
                        TheoryPoint.read(point),
                        count,
                    )
                    for name in metrics
                }
                for k in range(count):
                    row = {
                        "problem": plan.label,
                        "alpha": point["alpha"],
                        "branch": point["branch"],
                    }
                    row["component"] = k + 1 if count > 1 else None
                    for name, (values, errors) in found.items():
                        row |= (
                            {name: values[k], f"{name}_error": errors[k]}
                            if k < len(values)
                            else {}
                        )
                    row |= {
                        f"generalization_error_{kind}": value
                        for kind, value in point.get("generalization_error", {}).items()
                    }
                    rows.append(
                        {
                            **row,
                            "free_entropy": point.get("free_entropy"),
                            "method": point["method"],
                        }
                    )
        return rows

    @cached_property
    def thresholds(self) -> Any:
        """One row per problem and threshold, as ``table``: ``problem``, ``threshold``, ``alpha`` with its ``error``, and the
        ``reason`` where there is none.
        """
        rows = []
        for plan, document in zip(self.suite.chosen_plans, self.documents):
            if document["thresholds"] is None:
                continue
            thresholds = Thresholds.read(document["thresholds"])
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

        solved = [one for one in self.documents if "unsolved" not in one]
        if "generalization_error" in metric and not any(
            "generalization_error" in p for d in solved for p in d["points"]
        ):
            raise ValueError(
                f"{metric} was not computed; theory(..., predictions=True) does"
            )
        only = tuple(("problem", one["problem"]["label"]) for one in solved)
        suite = (
            self.suite
            if len(solved) == len(self.documents)
            else replace(self.suite, only=only)
        )
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

        each = max(2, POINTS // max(1, len(self.documents)))
        shown = [{**one, "points": one["points"][:each]} for one in self.documents]
        left = sum(
            len(one["points"]) - len(short["points"])
            for one, short in zip(self.documents, shown)
        )
        more = f"{left} more points in .table; " if left else ""
        return f"{self.suite.title}\n{plain_text(theory_tables(shown))}{more}.table, .thresholds, .plot()"
