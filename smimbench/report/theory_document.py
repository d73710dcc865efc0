"""The JSON of ``smimbench theory``: predictions, thresholds, published values, algorithms' own theory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from smimbench.files import JsonObject, error_line
from smimbench.interfaces import ParameterError
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.registry.registry import RegistryError
from smimbench.report.labels import component_word, grouped, letter
from smimbench.report.rows import (
    draws_fresh,
    own_point,
    planned_ratio,
    prediction_question,
)
from smimbench.run.answers import THEORY_ERRORS, Answers, StoredCounts
from smimbench.suite.cells import Cell, ProblemPlan, Suite
from smimbench.theory.questions import PointsQuestion, Question, ThresholdsQuestion


def theory_questions(
    suite: Suite, alphas: Sequence[float] | None = None, *, thresholds: bool = True
) -> Iterator[Question]:
    """What ``theory_document`` needs, at these sample ratios (default: those of the suite)."""
    for plan in suite.chosen_plans:
        yield PointsQuestion(plan.problem, tuple(_ratios(plan, alphas)))
        if thresholds:
            yield ThresholdsQuestion(plan.problem)
        for reference in plan.references:
            if reference.tolerance is not None:
                yield PointsQuestion(plan.problem, tuple(reference.alpha))


def algorithm_questions(
    suite: Suite, alphas: Sequence[float] | None = None
) -> Iterator[Question]:
    """What ``add_own_theory`` needs, at these sample ratios (default: those of the suite)."""
    problems = suite.problems
    for cell in _cells_asked_for(suite, alphas):
        problem = problems[cell.problem_label]
        if problem.no_theory is None:
            with contextlib.suppress(RegistryError, ParameterError):  # its row says so
                yield prediction_question(problem, cell, _ratio_of(problem, cell))


def theory_document(
    suite: Suite,
    answers: Answers,
    alphas: Sequence[float] | None = None,
    *,
    thresholds: bool = True,
) -> list[JsonObject]:
    """Theory of a suite: one object per problem, with the reason under ``unsolved`` if it cannot be solved, under
    ``no_theory`` if none is known.

    Parameters
    ----------
    answers : Answers
        Those to ``theory_questions``.
    alphas : sequence of float or None
        Sample ratios; default: those of the suite.
    thresholds : bool
        Whether there are thresholds; without, they are None.
    """
    documents = []
    for plan in suite.chosen_plans:
        problem = {"label": plan.label, **plan.problem.spec}
        document: JsonObject = {"problem": problem, "points": [], "thresholds": None}
        documents.append(document)
        if plan.problem.no_theory is not None:
            document["no_theory"] = plan.problem.no_theory
            continue
        try:
            branches = answers.points(plan.problem, _ratios(plan, alphas))
            document["points"] = [p.document() for points in branches for p in points]
            if thresholds:
                found = answers.thresholds(plan.problem).document()
                hard_phase = found.pop("hard_phase")
                document["thresholds"] = found
                if hard_phase:
                    document["hard_phase"] = hard_phase
            if published := _published_values(plan, answers):
                document["published"] = published
        except THEORY_ERRORS as error:
            if len(suite.chosen_plans) == 1:
                raise
            document["unsolved"] = (
                str(error) if isinstance(error, ProblemError) else error_line(error)
            )
    for unmade in suite.unmade:
        problem = {"label": unmade.label, **unmade.tables}
        documents.append(
            {
                "problem": problem,
                "points": [],
                "thresholds": None,
                "unsolved": unmade.reason,
            }
        )
    return documents


def _published_values(plan: ProblemPlan, answers: Answers) -> list[JsonObject]:
    """Published values with a stated accuracy, each with its theoretical value."""
    rows = []
    for reference in plan.references:
        if reference.tolerance is None:
            continue
        metric = find_metric(reference.metric, plan.problem.model.name)
        for alpha, value, branches in zip(
            reference.alpha,
            reference.value,
            answers.points(plan.problem, reference.alpha),
        ):
            point = next(
                (p for p in branches if p.branch == reference.branch), branches[0]
            )
            values, errors = theory_of(metric, plan.problem, point, len(point.overlap))
            k = (reference.component or 1) - 1
            found, error = values[k], errors[k]
            if reference.entry:
                a, b = (i - 1 for i in reference.entry)
                found, error = float(point.overlap[a, b]), max(e or 0.0 for e in errors)
            if found is None:
                continue
            rows.append(
                {
                    **reference.model_dump(
                        include={
                            "label",
                            "source",
                            "metric",
                            "component",
                            "tolerance",
                            "remark",
                        }
                    ),
                    "entry": list(reference.entry) or None,
                    "branch": point.branch,
                    "alpha": alpha,
                    "value": value,
                    "theory": found,
                    "theory_error": error or 0.0,
                    "within": abs(found - value)
                    <= reference.tolerance + (error or 0.0),
                }
            )
    return rows


def kept_of(
    suite: Suite, alphas: Sequence[float] | None, answers: Answers
) -> StoredCounts:
    """How much of a suite's theory is stored."""
    return answers.count_stored(
        (plan.problem, _ratios(plan, alphas)) for plan in suite.chosen_plans
    )


def _ratios(plan: ProblemPlan, alphas: Sequence[float] | None) -> Sequence[float]:
    return alphas if alphas is not None else plan.alphas


def add_own_theory(
    suite: Suite,
    documents: Sequence[JsonObject],
    answers: Answers,
    alphas: Sequence[float] | None = None,
) -> None:
    """Add ``algorithms`` to every problem's document: ``algorithm``, ``dimension`` and ``point``, or ``no_theory`` in words.

    Next to a point, ``overlap`` is the metric of that name as in the tables of runs; the point's own entry is
    the matrix of products of the estimate with the signal.

    Sample ratios are those of the suite, or ``alphas`` in their place, not the nearest ones of whole samples. What depends on
    sizes is given for every dimension of the suite; algorithms that draw fresh samples stand at the sample ratio of all of them.
    ``answers`` are those to ``algorithm_questions``.
    """
    problems = suite.problems
    by_problem = grouped(
        _cells_asked_for(suite, alphas), lambda cell: cell.problem_label
    )
    for document in documents:
        label = document["problem"]["label"]
        entries: dict[str, JsonObject] = {}
        cells = (
            []
            if {"unsolved", "no_theory"} & document.keys()
            else by_problem.get(label, [])
        )
        for cell in cells:
            entry = _own_entry(problems[label], cell, answers)
            entries.setdefault(repr({**entry, "dimension": None}), entry)
        document["algorithms"] = list(entries.values())


def _ratio_of(problem: Problem, cell: Cell) -> float:
    """Sample ratio of a prediction: of all fresh samples, or as asked for."""
    return planned_ratio(problem, cell) if draws_fresh(cell.algorithm) else cell.alpha


def _own_entry(problem: Problem, cell: Cell, answers: Answers) -> JsonObject:
    ratio = _ratio_of(problem, cell)
    prediction = own_point(answers, problem, cell, ratio)
    entry: JsonObject = {
        "algorithm": cell.algorithm_label, "alpha": ratio, "dimension": cell.dimension,
        "dimension_letter": letter(problem.model), "component_word": component_word(problem),
        "fresh": draws_fresh(cell.algorithm),
    }  # fmt: skip
    if isinstance(prediction, str):
        return entry | {"no_theory": prediction}
    overlap = theory_of(
        find_metric("overlap"), problem, prediction, problem.components
    )[0]
    return entry | {"point": prediction.document(), "overlap": overlap}


def _cells_asked_for(suite: Suite, alphas: Sequence[float] | None) -> list[Cell]:
    """One cell for every algorithm, dimension and sample ratio."""
    cells = (
        []
        if suite.theory_only
        else [cell for cell in suite.cells() if not cell.replicate]
    )
    if alphas is None:
        return cells
    moved = [replace(cell, alpha=alpha) for cell in cells for alpha in alphas]
    return list({cell.key: cell for cell in moved}.values())
