"""Theory of a suite: the JSON document of ``smimbench theory``, and the questions that its stored results ask.

The document has points, thresholds, published values and predictions for algorithms; questions are those of tables, verdicts
and figures.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from smimbench.files import JsonObject, error_line
from smimbench.interfaces import AlgorithmPrediction, ParameterError
from smimbench.problem.problem import Problem, ProblemError, Specification
from smimbench.registry.registry import RegistryError, find_metric, theory_of
from smimbench.report.results import Results
from smimbench.report.row import Number, component_word, dimension_letter_of, grouped
from smimbench.report.rows import (
    draws_fresh_samples,
    places_of,
    planned_ratio,
    prediction_of,
    prediction_question,
    sample_ratio,
)
from smimbench.report.run_figures import learning_curve_questions
from smimbench.report.theory_lines import chart_questions
from smimbench.run.answers import THEORY_ERRORS, Answers, StoredCounts
from smimbench.run.external import GridPoint, stored_scores
from smimbench.run.loop import Status
from smimbench.suite.cells import Cell, ProblemPlan, Suite
from smimbench.suite.schema import ReferenceTable
from smimbench.theory.types import (
    Check,
    FloorQuestion,
    PointsQuestion,
    Question,
    TheoryPoint,
    Thresholds,
    ThresholdsQuestion,
)


@dataclass(frozen=True)
class PublishedValue:
    """Value that a paper published for a sample ratio ``alpha`` (``reference`` is its table, with source and accuracy), and the
    value that our ``theory`` gives there, with its numerical error.

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
        """The accuracy that is stated for the published value."""
        return self.reference.tolerance or 0.0

    @property
    def within(self) -> bool:
        """Whether theory agrees with the published value within its accuracy."""
        difference = abs(self.theory - self.value)
        return difference <= self.tolerance + self.theory_error

    def document(self) -> JsonObject:
        """Return the published value and that of our theory as a JSON object."""
        reference_fields = {
            "label",
            "source",
            "metric",
            "component",
            "tolerance",
            "remark",
        }
        return {
            **self.reference.model_dump(include=reference_fields),
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
    """Theoretical prediction for an ``algorithm`` at the sample ratio ``alpha`` and a dimension, or the reason why there is none;
    ``fresh`` says whether alpha counts fresh samples, ``overlap`` (P,) holds the predicted overlaps.

    Attributes
    ----------
    algorithm : str
        Label of the algorithm.
    alpha : float
    dimension : int
        Dimension at which quantities that depend on it are predicted.
    dimension_letter, component_word : str
        Letter for the dimension and word for a component.
    fresh : bool
        Whether the algorithm draws fresh samples; ``alpha`` then counts all of them.
    prediction : AlgorithmPrediction or str
        The prediction, or the reason why there is none.
    overlap : list of float
        Values (P,) of the metric overlap; ``prediction.overlap`` is the overlap matrix of estimate and signal instead.
    """

    algorithm: str
    alpha: float
    dimension: int
    dimension_letter: str
    component_word: str
    fresh: bool
    prediction: AlgorithmPrediction | str
    overlap: list[Number]

    def document(self) -> JsonObject:
        """Return the prediction as a JSON object."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        overlap = document.pop("overlap")
        prediction = document.pop("prediction")
        if isinstance(prediction, str):
            return document | {"no_theory": prediction}
        return document | {"point": prediction.document(), "overlap": overlap}


@dataclass(frozen=True)
class ProblemTheory:
    """Theory of one problem of a suite: fixed points of state evolution at several sample ratios (``points``), thresholds,
    published values, predictions for algorithms and Monte Carlo checks; ``unsolved`` says why it could not be solved.

    Attributes
    ----------
    label : str
    spec : dict
        Specification of the problem.
    points : list of TheoryPoint
        Fixed points at every sample ratio, the Bayes-optimal one first.
    thresholds : Thresholds or None
        Thresholds; None if they were not requested.
    no_theory : str
        Why there is no theory for this problem; empty if there is.
    published : list of PublishedValue
    unsolved : str
        Why the theory could not be solved; empty if it was.
    algorithms : list of AlgorithmTheory or None
        Predictions for algorithms; None if they were not requested.
    checks : list of Check or None
        Monte Carlo checks; None if they were not requested.
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
        """Whether theory passed all Monte Carlo checks."""
        return all(check.agrees for check in self.checks or ())

    def document(self) -> JsonObject:
        """Return the theory as a JSON object, an element of the JSON of ``smimbench theory``."""
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
    """Yield the theory questions whose answers ``theory_of_suite`` needs, at the sample ratios ``alphas`` (default: the suite's)
    and, unless ``thresholds`` is false, for thresholds.
    """
    for plan in suite.chosen_plans:
        yield PointsQuestion(plan.problem, tuple(_sample_ratios(plan, alphas)))
        if thresholds:
            yield ThresholdsQuestion(plan.problem)
        for reference in plan.references:
            if reference.tolerance is not None:
                yield PointsQuestion(plan.problem, tuple(reference.alpha))


def algorithm_questions(
    suite: Suite, alphas: Sequence[float] | None = None
) -> Iterator[Question]:
    """Yield the questions that ``with_predictions`` needs answered at the sample ratios ``alphas`` (default: the suite's)."""
    problems = suite.problems
    for cell in _requested_cells(suite, alphas):
        problem = problems[cell.problem_label]
        if problem.no_theory is None:
            with contextlib.suppress(RegistryError, ParameterError):  # its row says so
                yield prediction_question(
                    problem, cell, _prediction_ratio(problem, cell)
                )


def theory_of_suite(
    suite: Suite,
    answers: Answers,
    alphas: Sequence[float] | None = None,
    *,
    thresholds: bool = True,
) -> list[ProblemTheory]:
    """Collect the theory of every problem of a suite from ``answers``, at the sample ratios ``alphas`` (default: the suite's),
    with ``thresholds`` unless they are not wanted.

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
        ProblemTheory(
            failed_problem.label, failed_problem.tables, unsolved=failed_problem.reason
        )
        for failed_problem in suite.failed_problems
    ]


def _theory_of_plan(
    suite: Suite,
    plan: ProblemPlan,
    answers: Answers,
    alphas: Sequence[float] | None,
    thresholds: bool,
) -> ProblemTheory:
    """Collect the theory of one problem; an error is noted as ``unsolved``, but raised if it is the suite's only problem."""
    theory = ProblemTheory(plan.label, plan.problem.spec)
    if plan.problem.no_theory is not None:
        return replace(theory, no_theory=plan.problem.no_theory)
    try:
        branches = answers.points(plan.problem, _sample_ratios(plan, alphas))
        theory = replace(theory, points=list(itertools.chain(*branches)))
        if thresholds:
            theory = replace(theory, thresholds=answers.thresholds(plan.problem))
        return replace(theory, published=_published_values(plan, answers))
    except THEORY_ERRORS as error:
        if len(suite.chosen_plans) == 1:
            raise
        is_problem_error = isinstance(error, ProblemError)
        return replace(
            theory, unsolved=str(error) if is_problem_error else error_line(error)
        )


def _published_values(plan: ProblemPlan, answers: Answers) -> list[PublishedValue]:
    """List the published values of a problem (``plan``) that state their accuracy, each with its theoretical value from
    ``answers``.
    """
    published = []
    for reference in plan.references:
        if reference.tolerance is None:
            continue
        metric = find_metric(reference.metric, plan.problem.model.name)
        branches_by_alpha = answers.points(plan.problem, reference.alpha)
        for alpha, value, branches in zip(
            reference.alpha, reference.value, branches_by_alpha
        ):
            point = next(
                (
                    candidate
                    for candidate in branches
                    if candidate.branch == reference.branch
                ),
                branches[0],
            )
            values, errors = theory_of(metric, plan.problem, point, len(point.overlap))
            component_index = (reference.component or 1) - 1
            theory = values[component_index]
            error = errors[component_index]
            if reference.entry:
                row_index, column_index = (number - 1 for number in reference.entry)
                theory = float(point.overlap[row_index, column_index])
                error = max(entry_error or 0.0 for entry_error in errors)
            if theory is not None:
                published.append(
                    PublishedValue(
                        reference, alpha, value, point.branch, theory, error or 0.0
                    )
                )
    return published


def stored_counts(
    suite: Suite, alphas: Sequence[float] | None, answers: Answers
) -> StoredCounts:
    """Count how much of a suite's theory at the sample ratios ``alphas`` is stored in ``answers``."""
    return answers.count_stored(
        (plan.problem, _sample_ratios(plan, alphas)) for plan in suite.chosen_plans
    )


def _sample_ratios(
    plan: ProblemPlan, alphas: Sequence[float] | None
) -> Sequence[float]:
    """Return the requested sample ratios ``alphas``, or those of the suite for this problem if None."""
    return alphas if alphas is not None else plan.alphas


def with_predictions(
    suite: Suite,
    theories: Sequence[ProblemTheory],
    answers: Answers,
    alphas: Sequence[float] | None = None,
) -> list[ProblemTheory]:
    """Add the predictions for all algorithms to theories of problems.

    Sample ratios are those of the suite, or ``alphas`` in their place, not the nearest ones of whole samples. What depends on
    sizes is given for every dimension of the suite; algorithms that draw fresh samples stand at the sample ratio of all of them.
    ``answers`` are those to ``algorithm_questions``.
    """
    problems = suite.problems
    cells = grouped(_requested_cells(suite, alphas), lambda cell: cell.problem_label)
    predicted = []
    for theory in theories:
        entries: dict[str, AlgorithmTheory] = {}
        for cell in cells.get(theory.label, ()):
            if theory.unsolved or theory.no_theory:
                break
            entry = _algorithm_theory(problems[theory.label], cell, answers)
            # Sizes are told apart where the prediction depends on them.
            identity = repr({**entry.document(), "dimension": None})
            entries.setdefault(identity, entry)
        predicted.append(replace(theory, algorithms=list(entries.values())))
    return predicted


def with_checks(
    theories: Sequence[ProblemTheory], checks: Sequence[Sequence[Check]]
) -> list[ProblemTheory]:
    """Add Monte Carlo ``checks`` to the theories of problems, where checks were made."""
    checked_theories = [
        replace(theory, checks=problem_checks)
        for theory, problem_checks in zip(theories, checks)
    ]
    return [*checked_theories, *theories[len(checked_theories) :]]


def _prediction_ratio(problem: Problem, cell: Cell) -> float:
    """Return the sample ratio at which theory predicts the algorithm of a cell: that of all fresh samples of its run, or the
    cell's nominal one.
    """
    return (
        planned_ratio(problem, cell)
        if draws_fresh_samples(cell.algorithm)
        else cell.alpha
    )


def _algorithm_theory(
    problem: Problem, cell: Cell, answers: Answers
) -> AlgorithmTheory:
    """Look up in ``answers`` the theory of the algorithm of a cell, at the sample ratio that it uses."""
    ratio = _prediction_ratio(problem, cell)
    prediction = prediction_of(answers, problem, cell, ratio)
    overlap: list[Number] = []
    if not isinstance(prediction, str):
        metric = find_metric("overlap")
        overlap, _ = theory_of(metric, problem, prediction, problem.components)
    return AlgorithmTheory(
        cell.algorithm_label,
        ratio,
        cell.dimension,
        dimension_letter_of(problem.model),
        component_word(problem),
        draws_fresh_samples(cell.algorithm),
        prediction,
        overlap,
    )


def _requested_cells(suite: Suite, alphas: Sequence[float] | None) -> list[Cell]:
    """List one cell of a suite for every algorithm, dimension and sample ratio; ``alphas`` replace the suite's sample ratios."""
    cells = (
        []
        if suite.theory_only
        else [cell for cell in suite.cells() if not cell.replicate]
    )
    if alphas is None:
        return cells
    shifted_cells = [replace(cell, alpha=alpha) for cell in cells for alpha in alphas]
    return list({cell.key: cell for cell in shifted_cells}.values())


# -- questions whose answers the tables, verdicts and figures of results need -------------------------------------------


def table_questions(results: Results) -> Iterator[Question]:
    """Yield the theory questions of tables and verdicts: Bayes-optimal errors, predictions for the algorithms, and thresholds.

    Points are asked for at the sample ratios that the runs used, thresholds only where a run did not converge.
    """
    places = places_of(results.pairs, results.suite)
    alphas: dict[str, set[float]] = {plan.label: set() for plan in results.suite.plans}
    for cell, runs in places:
        alphas[cell.problem_label].add(runs.place.alpha)
    for problem_label, ratios in alphas.items():
        if ratios:
            problem = results.suite.problems[problem_label]
            yield PointsQuestion(problem, tuple(sorted(ratios)))
    yield from point_questions(stored_scores(results.suite, results.store)[0])
    for cell, runs in places:
        problem, records = runs.problem, runs.records
        if problem.no_theory is not None:
            continue
        with contextlib.suppress(RegistryError, ParameterError):  # the row says so
            yield prediction_question(problem, cell, runs.place.alpha, records)
        if not runs.use_fresh_samples:
            yield FloorQuestion(problem, runs.place.alpha)
        if any(record.status == Status.NOT_CONVERGED for record in records):
            yield ThresholdsQuestion(problem)


def point_questions(points: Iterable[GridPoint]) -> Iterator[Question]:
    """Yield the questions for the Bayes-optimal errors that external estimates (``points``) are compared with."""
    for point in points:
        problem = point.plan.problem
        ratio = sample_ratio(problem, point.alpha, point.dimension)
        yield PointsQuestion(problem, (ratio,))


def figure_questions(results: Results) -> Iterator[Question]:
    """Yield the theory questions that figures need answered besides those of tables; later questions may depend on the answers to
    earlier ones.
    """
    suite, metrics = results.suite, results.suite.run.metrics
    yield from chart_questions(suite, results.answers, metrics, results.rows)
    yield from learning_curve_questions(results)
