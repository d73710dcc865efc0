"""Theory of a suite as ``smimbench theory`` shows it: points, thresholds, published values, predictions for algorithms."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from smimbench.files import JsonObject, error_line
from smimbench.interfaces import AlgorithmPrediction, ParameterError
from smimbench.problem.problem import Problem, ProblemError, Specification
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.registry.registry import RegistryError
from smimbench.report.labels import component_word, grouped, letter
from smimbench.report.rows import (
    draws_fresh,
    planned_ratio,
    prediction_of,
    prediction_question,
)
from smimbench.run.answers import THEORY_ERRORS, Answers, StoredCounts
from smimbench.suite.cells import Cell, ProblemPlan, Suite
from smimbench.suite.schema import ReferenceTable
from smimbench.theory.questions import PointsQuestion, Question, ThresholdsQuestion
from smimbench.theory.types import TheoryPoint, Thresholds
from smimbench.theory.verification import Check


@dataclass(frozen=True)
class PublishedValue:
    """A published value with a stated accuracy, and what theory says.

    Attributes
    ----------
    reference : ReferenceTable
        The table of the suite that it is from.
    alpha, value : float
        Sample ratio, and the published value.
    branch : str
        Of the point that it is compared with.
    theory, theory_error : float
    """

    reference: ReferenceTable
    alpha: float
    value: float
    branch: str
    theory: float
    theory_error: float

    @property
    def tolerance(self) -> float:
        """Accuracy of the published value."""
        return self.reference.tolerance or 0.0

    @property
    def within(self) -> bool:
        """Whether theory agrees with the published value."""
        gap = abs(self.theory - self.value)
        return gap <= self.tolerance + self.theory_error

    def document(self) -> JsonObject:
        """The values as JSON."""
        shown = {"label", "source", "metric", "component", "tolerance", "remark"}
        return {
            **self.reference.model_dump(include=shown),
            "entry": list(self.reference.entry) or None,
            "branch": self.branch,
            "alpha": self.alpha,
            "value": self.value,
            "theory": self.theory,
            "theory_error": self.theory_error,
            "within": self.within,
        }


@dataclass(frozen=True)
class AlgorithmTheory:
    """Prediction for an algorithm at a sample ratio.

    Attributes
    ----------
    algorithm : str
        Its label.
    alpha : float
    dimension : int
        What depends on sizes is given for this one.
    dimension_letter, component_word : str
        What they are called.
    fresh : bool
        Whether it draws fresh samples: it stands at the sample ratio of all of them then.
    prediction : AlgorithmPrediction or str
        Or the reason why there is none.
    overlap : list of float
        The metric of that name; the ``overlap`` of the prediction is the matrix of products of the estimate with the signal.
    """

    algorithm: str
    alpha: float
    dimension: int
    dimension_letter: str
    component_word: str
    fresh: bool
    prediction: AlgorithmPrediction | str
    overlap: list[float | None]

    def document(self) -> JsonObject:
        """The prediction as JSON."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        overlap, prediction = document.pop("overlap"), document.pop("prediction")
        if isinstance(prediction, str):
            return document | {"no_theory": prediction}
        return document | {"point": prediction.document(), "overlap": overlap}


@dataclass(frozen=True)
class ProblemTheory:
    """Theory of a problem of a suite.

    Attributes
    ----------
    label : str
    spec : dict
        Specification of the problem.
    points : list of TheoryPoint
        At every sample ratio, the Bayes-optimal point first.
    thresholds : Thresholds or None
        None where they were not asked for.
    no_theory : str
        Why no theory is known; empty where one is.
    published : list of PublishedValue
    unsolved : str
        Why it could not be solved.
    algorithms : list of AlgorithmTheory or None
        Predictions for algorithms; None where they were not asked for.
    checks : list of Check or None
        Numbers against plain draws; None where they were not asked for.
    """

    label: str
    spec: dict[str, Specification]
    points: Sequence[TheoryPoint] = ()
    thresholds: Thresholds | None = None
    no_theory: str = ""
    published: Sequence[PublishedValue] = ()
    unsolved: str = ""
    algorithms: Sequence[AlgorithmTheory] | None = None
    checks: Sequence[Check] | None = None

    @property
    def predicted(self) -> list[tuple[str, float]]:
        """Labels of algorithms with a prediction, each with its sample ratio."""
        return [
            (entry.algorithm, entry.alpha)
            for entry in self.algorithms or ()
            if not isinstance(entry.prediction, str)
        ]

    @property
    def agrees(self) -> bool:
        """Whether all checked numbers agree with plain draws."""
        return all(check.agrees for check in self.checks or ())

    def document(self) -> JsonObject:
        """An element of the JSON of ``smimbench theory``."""
        document: JsonObject = {
            "problem": {"label": self.label, **self.spec},
            "points": [point.document() for point in self.points],
            "thresholds": None,
        }
        if self.no_theory:
            document["no_theory"] = self.no_theory
        if self.thresholds is not None:
            document["thresholds"] = self.thresholds.document()
            if hard_phase := document["thresholds"].pop("hard_phase"):
                document["hard_phase"] = hard_phase
        if self.published:
            document["published"] = [value.document() for value in self.published]
        if self.unsolved:
            document["unsolved"] = self.unsolved
        if self.algorithms is not None:
            document["algorithms"] = [entry.document() for entry in self.algorithms]
        if self.checks is not None:
            document["verification"] = [check.document() for check in self.checks]
        return document


def theory_questions(
    suite: Suite, alphas: Sequence[float] | None = None, *, thresholds: bool = True
) -> Iterator[Question]:
    """Questions of ``theory_of_suite``, at these sample ratios (default: those of the suite)."""
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
    """Questions of ``with_predictions``, at these sample ratios (default: those of the suite)."""
    problems = suite.problems
    for cell in _cells_asked_for(suite, alphas):
        problem = problems[cell.problem_label]
        if problem.no_theory is None:
            with contextlib.suppress(RegistryError, ParameterError):  # its row says so
                yield prediction_question(problem, cell, _ratio_of(problem, cell))


def theory_of_suite(
    suite: Suite,
    answers: Answers,
    alphas: Sequence[float] | None = None,
    *,
    thresholds: bool = True,
) -> list[ProblemTheory]:
    """Theory of every problem of a suite.

    Parameters
    ----------
    answers : Answers
        Those to ``theory_questions``.
    alphas : sequence of float or None
        Sample ratios; default: those of the suite.
    thresholds : bool
        Whether there are thresholds.
    """
    theories = [
        _theory_of_plan(suite, plan, answers, alphas, thresholds)
        for plan in suite.chosen_plans
    ]
    return theories + [
        ProblemTheory(unmade.label, unmade.tables, unsolved=unmade.reason)
        for unmade in suite.unmade
    ]


def _theory_of_plan(
    suite: Suite,
    plan: ProblemPlan,
    answers: Answers,
    alphas: Sequence[float] | None,
    thresholds: bool,
) -> ProblemTheory:
    """Theory of one problem, as far as it can be solved; the error of the only problem of a suite is raised."""
    theory = ProblemTheory(plan.label, plan.problem.spec)
    if plan.problem.no_theory is not None:
        return replace(theory, no_theory=plan.problem.no_theory)
    try:
        branches = answers.points(plan.problem, _ratios(plan, alphas))
        theory = replace(theory, points=list(itertools.chain(*branches)))
        if thresholds:
            theory = replace(theory, thresholds=answers.thresholds(plan.problem))
        return replace(theory, published=_published_values(plan, answers))
    except THEORY_ERRORS as error:
        if len(suite.chosen_plans) == 1:
            raise
        is_own = isinstance(error, ProblemError)
        return replace(theory, unsolved=str(error) if is_own else error_line(error))


def _published_values(plan: ProblemPlan, answers: Answers) -> list[PublishedValue]:
    """Published values with a stated accuracy, each with its theoretical value."""
    published = []
    for reference in plan.references:
        if reference.tolerance is None:
            continue
        metric = find_metric(reference.metric, plan.problem.model.name)
        every = answers.points(plan.problem, reference.alpha)
        for alpha, value, branches in zip(reference.alpha, reference.value, every):
            point = next(
                (p for p in branches if p.branch == reference.branch), branches[0]
            )
            values, errors = theory_of(metric, plan.problem, point, len(point.overlap))
            k = (reference.component or 1) - 1
            theory, error = values[k], errors[k]
            if reference.entry:
                a, b = (i - 1 for i in reference.entry)
                theory, error = (
                    float(point.overlap[a, b]),
                    max(e or 0.0 for e in errors),
                )
            if theory is not None:
                published.append(
                    PublishedValue(
                        reference, alpha, value, point.branch, theory, error or 0.0
                    )
                )
    return published


def kept_of(
    suite: Suite, alphas: Sequence[float] | None, answers: Answers
) -> StoredCounts:
    """How much of a suite's theory is stored."""
    return answers.count_stored(
        (plan.problem, _ratios(plan, alphas)) for plan in suite.chosen_plans
    )


def _ratios(plan: ProblemPlan, alphas: Sequence[float] | None) -> Sequence[float]:
    return alphas if alphas is not None else plan.alphas


def with_predictions(
    suite: Suite,
    theories: Sequence[ProblemTheory],
    answers: Answers,
    alphas: Sequence[float] | None = None,
) -> list[ProblemTheory]:
    """Theories with predictions for all algorithms.

    Sample ratios are those of the suite, or ``alphas`` in their place, not the nearest ones of whole samples. What depends on
    sizes is given for every dimension of the suite; algorithms that draw fresh samples stand at the sample ratio of all of them.
    ``answers`` are those to ``algorithm_questions``.
    """
    problems = suite.problems
    cells = grouped(_cells_asked_for(suite, alphas), lambda cell: cell.problem_label)
    predicted = []
    for theory in theories:
        entries: dict[str, AlgorithmTheory] = {}
        for cell in cells.get(theory.label, ()):
            if theory.unsolved or theory.no_theory:
                break
            entry = _algorithm_theory(problems[theory.label], cell, answers)
            # Sizes are told apart where the prediction depends on them.
            key = repr({**entry.document(), "dimension": None})
            entries.setdefault(key, entry)
        predicted.append(replace(theory, algorithms=list(entries.values())))
    return predicted


def with_checks(
    theories: Sequence[ProblemTheory], checks: Sequence[Sequence[Check]]
) -> list[ProblemTheory]:
    """Theories with their checks by plain draws, as far as these were drawn."""
    drawn = [replace(t, checks=of_problem) for t, of_problem in zip(theories, checks)]
    return [*drawn, *theories[len(drawn) :]]


def _ratio_of(problem: Problem, cell: Cell) -> float:
    """Sample ratio of a prediction: of all fresh samples, or the requested one."""
    return planned_ratio(problem, cell) if draws_fresh(cell.algorithm) else cell.alpha


def _algorithm_theory(
    problem: Problem, cell: Cell, answers: Answers
) -> AlgorithmTheory:
    """Prediction for the algorithm of a cell."""
    ratio = _ratio_of(problem, cell)
    prediction = prediction_of(answers, problem, cell, ratio)
    overlap: list[float | None] = []
    if not isinstance(prediction, str):
        metric = find_metric("overlap")
        overlap, _ = theory_of(metric, problem, prediction, problem.components)
    return AlgorithmTheory(
        cell.algorithm_label,
        ratio,
        cell.dimension,
        letter(problem.model),
        component_word(problem),
        draws_fresh(cell.algorithm),
        prediction,
        overlap,
    )


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
