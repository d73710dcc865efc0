"""Rows of the error table, made from records of runs and solved theory.

There is one row per problem, algorithm, backend, sample ratio, dimension, metric and component.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from smimbench.files import canonical_json, error_line
from smimbench.interfaces import (
    AlgorithmPrediction,
    Conditions,
    Overlaps,
    ParameterError,
)
from smimbench.interfaces.algorithm import plan_of
from smimbench.interfaces.problem import placeholder_data
from smimbench.problem.problem import Problem, ProblemError, Specification
from smimbench.registry.registry import (
    RegistryError,
    claimed_error_metrics,
    find_metric,
    theory_of,
    trajectory_metrics,
)
from smimbench.report.first_order import PassScale, pass_scale, with_worth
from smimbench.report.prediction import size_coefficients
from smimbench.report.row import (
    FITTED,
    LIMIT,
    HalfOverlap,
    LearningOrder,
    MeanOfRuns,
    Optima,
    OptimalValue,
    Optimum,
    Place,
    PredictedNumber,
    PredictedValue,
    Row,
    Runs,
    Setup,
    component_word,
    dimension_letter_of,
    grouped,
    optimum_at_limit,
)
from smimbench.report.statistics import (
    TracedRun,
    clock_remarks,
    compared_with_theory,
    errors_at,
    instance_of,
    learning_order,
    mean_and_error,
    mean_diagnostics,
    near_threshold,
    ratio_to_bayes,
    run_cost,
    runs_still_moving,
    values_of,
)
from smimbench.run.answers import THEORY_ERRORS, Answers, NotStored, stored_or_none
from smimbench.run.external import EXTERNAL, GridPoint, stored_scores
from smimbench.run.loop import FAILED_STATUSES, Status
from smimbench.run.record import Record, reason_of
from smimbench.run.store import Store, scores_of
from smimbench.suite.cells import Cell, Suite, build_algorithm
from smimbench.theory.types import NO_THEORY, PredictionQuestion, TheoryPoint

Pair = tuple[Cell, Record]
"""A cell of the suite and its stored record."""


# -- runs --------------------------------------------------------------------------------------------------------------


def draws_fresh_samples(algorithm: Specification) -> bool:
    """Return whether an algorithm draws fresh samples instead of using the cell's; False if it is not installed."""
    try:
        plan = plan_of(build_algorithm(algorithm, None), placeholder_data(1, 1, 1))
    except (RegistryError, ParameterError):
        return False
    return bool(plan.draws_fresh)


def used_fresh_samples(record: Record) -> bool:
    """Return whether a run used fresh samples."""
    return bool(record.fresh_samples)


def sample_ratio(problem: Problem, alpha: float, dimension: int) -> float:
    """Return the sample ratio of a problem nearest to ``alpha`` for which the number of samples at this dimension is whole."""
    model = problem.model
    sample_count = model.sample_count(alpha, dimension)
    return float(model.sample_ratio(sample_count, dimension))


def planned_ratio(problem: Problem, cell: Cell) -> float:
    """Return the sample ratio that the algorithm of a cell of this problem will use: of the data set, or of the fresh samples of
    all steps.
    """
    model = problem.model
    sample_count = model.sample_count(cell.alpha, cell.dimension)
    if draws_fresh_samples(cell.algorithm):
        algorithm = build_algorithm(cell.algorithm, problem)
        plan = plan_of(
            algorithm, placeholder_data(sample_count, model.tokens, cell.dimension)
        )
        sample_count = (
            int(plan.steps or 0) * int(plan.batch or sample_count) or sample_count
        )
    return float(model.sample_ratio(sample_count, cell.dimension))


def ratio_of_runs(problem: Problem, pairs: Sequence[Pair]) -> float:
    """Return the sample ratio actually used by runs of a problem (``pairs`` of cell and record), the largest of all runs; the
    planned ratio if the records lack it.
    """
    measured_ratios = [
        record.sample_ratio
        for _, record in pairs
        if record.sample_ratio is not None and record.fresh_samples is not None
    ]
    return (
        max(measured_ratios) if measured_ratios else planned_ratio(problem, pairs[0][0])
    )


@dataclass(frozen=True)
class PlaceRuns:
    """All runs of an algorithm on a problem at one place: sample ratio actually used, dimension and backend; with their
    ``records`` and the items' parameters (``identity``).
    """

    place: Place
    problem: Problem
    identity: Setup
    records: list[Record]

    @property
    def runs_with_estimate(self) -> list[Record]:
        """Records of runs that have an estimate and did not diverge."""
        return [
            record
            for record in self.records
            if record.metrics and record.status != Status.DIVERGED
        ]

    @property
    def use_fresh_samples(self) -> bool:
        """Whether any of the runs used fresh samples."""
        return any(map(used_fresh_samples, self.records))


def places_of(pairs: Sequence[Pair], suite: Suite) -> list[tuple[Cell, PlaceRuns]]:
    """Group runs (``pairs`` of cell and record) by place: problem, algorithm, backend, sample ratio and dimension, whatever their
    labels; each group comes with one of its cells.

    The cells of a group differ only in seed and replicate.
    """

    def group_key(pair: Pair) -> tuple[str, tuple[object, ...]]:
        """Key of runs that differ only in seed and replicate."""
        cell = pair[0]
        place = canonical_json(cell.algorithm), cell.backend, *cell.place
        return canonical_json(cell.problem), place

    problems = {canonical_json(plan.problem.spec): plan.problem for plan in suite.plans}
    places = []
    for (problem_key, _), group_pairs in grouped(pairs, group_key).items():
        cell = group_pairs[0][0]
        records = [record for _, record in group_pairs]
        # Cells of other code have the problem of their label.
        problem = problems.get(problem_key) or suite.problems[cell.problem_label]
        problem_label, algorithm, alpha, dimension = cell.place
        ratio = ratio_of_runs(problem, group_pairs)
        place = Place(
            problem_label, algorithm, cell.backend, ratio, alpha, dimension, cell.origin
        )
        setup = Setup(cell.problem, cell.untuned_spec).without("version")
        places.append((cell, PlaceRuns(place, problem, setup, records)))
    return places


# -- theory ---------------------------------------------------------------------------------------------------------------


def bayes_point(answers: Answers, problem: Problem, ratio: float) -> TheoryPoint | None:
    """Return the Bayes-optimal fixed point of state evolution for a problem at the sample ratio ``ratio``, from the stored
    ``answers``; None if it is not stored.
    """
    branches = stored_or_none(answers.points, problem, [ratio])
    return branches[0][0] if branches else None


def prediction_question(
    problem: Problem, cell: Cell, ratio: float, records: Sequence[Record] = ()
) -> PredictionQuestion:
    """Ask for the theory of a cell's algorithm at the sample ratio ``ratio``, including its trajectory, under the conditions of
    its runs, whose ``records`` hold the overlaps at their starts.

    Raises
    ------
    RegistryError, ParameterError
        If the algorithm is not installed here.
    """
    build_algorithm(cell.algorithm, problem)
    starts_of_runs = []
    for record in records:
        start_overlaps = Overlaps(*map(record.start.get, Overlaps._fields))
        if _is_complete(start_overlaps, problem.components):
            starts_of_runs.append(start_overlaps)
    conditions = Conditions(
        cell.dimension,
        cell.run.start,
        tuple(starts_of_runs),
        cell.run.max_iterations,
        trajectory=True,
    )
    return PredictionQuestion(problem, cell.algorithm, ratio, conditions)


def _is_complete(overlaps: Overlaps, components: int) -> bool:
    """Return whether the overlap matrices (P, P) of teacher and estimate at a run's start are there for P = ``components``, and
    all their numbers finite.
    """
    if {np.shape(matrix) for matrix in overlaps} != {(components, components)}:
        return False
    return bool(np.isfinite(np.array(overlaps, dtype=float)).all())


def prediction_of(
    answers: Answers,
    problem: Problem,
    cell: Cell,
    ratio: float,
    records: Sequence[Record] = (),
) -> AlgorithmPrediction | str:
    """Look up in ``answers`` the theory of a cell's algorithm at the sample ratio ``ratio`` and at the starts of the runs in
    ``records``; return the reason if there is none.
    """
    try:
        return answers.prediction(prediction_question(problem, cell, ratio, records))
    except (RegistryError, ParameterError) as error:
        return f"the algorithm is not installed: {error}"
    except NotStored:
        return "not stored"
    except THEORY_ERRORS as error:  # rows of other problems stay
        return f"its theory raised {error_line(error)}"


class TheoryOfPlace(NamedTuple):
    """Solved theory of a place: the Bayes-optimal fixed point ``bayes``, the prediction for the algorithm or the ``reason``
    why there is none, a remark on a near threshold, and the optimum at the place's dimension.

    Attributes
    ----------
    bayes : TheoryPoint or None
        The Bayes-optimal point.
    prediction : AlgorithmPrediction or None
    reason : str
        Why there is no prediction.
    threshold_remark : str or None
        The threshold that runs which did not converge are near, in words.
    optimum : Optimum or None
        The optimal error at this size; None: only its limit is known.
    scale : PassScale or str
        Errors of the best first-order method, or why runs cannot be compared with it.
    """

    bayes: TheoryPoint | None = None
    prediction: AlgorithmPrediction | None = None
    reason: str = ""
    threshold_remark: str | None = None
    optimum: Optimum | None = None
    scale: PassScale | str = "no theory"


def _theory_of_runs(cell: Cell, runs: PlaceRuns, answers: Answers) -> TheoryOfPlace:
    """Look up in ``answers`` the stored theory of the ``runs`` of a cell's algorithm at one place."""
    problem, ratio = runs.problem, runs.place.alpha
    if problem.no_theory is not None:
        return TheoryOfPlace(reason=problem.no_theory)
    bayes = bayes_point(answers, problem, ratio)
    if bayes is None:
        return TheoryOfPlace()
    threshold_remark = _threshold_remark(runs, answers)
    prediction = prediction_of(answers, problem, cell, ratio, runs.records)
    if isinstance(prediction, str):
        return TheoryOfPlace(bayes, None, prediction, threshold_remark)
    if prediction.of_ok_runs and any(
        record.status != Status.OK for record in runs.records
    ):
        reason = "the theory assumes that every run ends ok, but some did not"
        return TheoryOfPlace(bayes, None, reason, threshold_remark)
    return TheoryOfPlace(
        bayes, prediction, "its theory does not predict this metric", threshold_remark
    )


def _threshold_remark(runs: PlaceRuns, answers: Answers) -> str | None:
    """Describe the threshold near whose sample ratio runs did not converge; None if all converged or none is near."""
    problem, ratio, directions = runs.problem, runs.place.alpha, runs.place.dimension
    if all(record.status != Status.NOT_CONVERGED for record in runs.records):
        return None
    try:
        thresholds = answers.thresholds(problem)
    except THEORY_ERRORS:  # the reason is then shown without a threshold
        return None
    if problem.model.rank != "low":
        directions = problem.model.sample_count(ratio, directions)
    return near_threshold(thresholds, ratio, directions, component_word(problem))


# -- rows -----------------------------------------------------------------------------------------------------------------


def error_rows(
    pairs: Sequence[Pair],
    suite: Suite,
    store: Store,
    answers: Answers,
    optima_at_size: Optima,
) -> list[Row]:
    """Make the rows of the error table from runs (pairs of cell and record), in the order of the suite; ``optima_at_size``
    are the Bayes-optimal errors at finite dimension.

    A row stands for one problem, algorithm, backend, sample ratio, dimension, metric and component. Its estimate is over all
    cells that ended with a finite one, whatever their status. Its theory is the prediction for the algorithm where there is one,
    else the Bayes-optimal value at the sample ratio really used. Runs are pooled by what was run, never by its label. Theory that
    is not stored is None.
    """
    places = places_of(pairs, suite)
    theory_errors: dict[Problem, Exception] = {}
    for _, runs in places:
        try:
            stored_or_none(answers.points, runs.problem, [runs.place.alpha])
        except THEORY_ERRORS as error:  # the rows of this problem state it
            theory_errors.setdefault(runs.problem, error)
    first_error = next(iter(theory_errors.values()), None)
    is_none_solved = {plan.problem for plan in suite.plans} <= theory_errors.keys()
    if (
        is_none_solved
        and isinstance(first_error, ProblemError)
        and first_error.key != "theory"
    ):
        # With that key its process ended, or had to: rows say so, the runs may be good. Otherwise nothing else is hidden.
        raise first_error
    rows: list[Row] = []
    for cell, runs in places:
        if runs.problem in theory_errors:
            error_text = error_line(theory_errors[runs.problem])
            theory = TheoryOfPlace(reason=f"theory raised {error_text}")
        else:
            theory = _theory_of_runs(cell, runs, answers)._replace(
                scale=pass_scale(cell, runs.problem, runs.place.alpha, answers)
            )
        if not runs.use_fresh_samples:
            theory = theory._replace(
                optimum=_optimum_at_size(optima_at_size, runs.place)
            )
        rows += _rows_of_place(runs, theory, suite, store)
    return rows


def _optimum_at_size(optima_at_size: Optima, place: Place) -> Optimum | None:
    """Look up the Bayes-optimal error at the dimension of a place in ``optima_at_size`` (by problem, nominal sample ratio and
    dimension); None if it is unknown.
    """
    return optima_at_size.get((place.problem, place.nominal_alpha, place.dimension))


def rows_of_points(
    suite: Suite,
    points: Sequence[GridPoint],
    records: Sequence[Record],
    answers: Answers,
    optima_at_size: Optima,
) -> list[Row]:
    """Make the rows of external estimates (``points``, see ``smimbench.run.external``) from their records; replicates of one
    point share a row.

    They have all metrics that can be computed from an estimate alone.
    """
    problems: dict[Place, Problem] = {}
    records_by_place: dict[Place, list[Record]] = {}
    for point, record in zip(points, records, strict=True):
        problem, alpha, dimension = point.plan.problem, point.alpha, point.dimension
        ratio = sample_ratio(problem, alpha, dimension)
        place = Place(
            point.plan.label, record.algorithm, EXTERNAL, ratio, alpha, dimension
        )
        problems[place] = problem
        records_by_place.setdefault(place, []).append(record)
    rows: list[Row] = []
    for place, problem in problems.items():
        identity = Setup(problem.spec, {"name": place.algorithm}).without("version")
        bayes = bayes_point(answers, problem, place.alpha)
        theory = TheoryOfPlace(
            bayes,
            reason=NO_THEORY if bayes else "",
            optimum=_optimum_at_size(optima_at_size, place),
        )
        runs = PlaceRuns(place, problem, identity, records_by_place[place])
        metrics = [*trajectory_metrics(problem.model.name)]
        rows += _rows_of_place(runs, theory, suite, Store(""), metrics)
    return rows


def scored_rows(
    suite: Suite, store: Store, answers: Answers, optima_at_size: Optima
) -> list[Row]:
    """Make the rows of external estimates stored by ``smimbench score``, for the metrics of the suite."""
    if not scores_of(store).folder.exists():
        return []
    rows = rows_of_points(suite, *stored_scores(suite, store), answers, optima_at_size)
    return [row for row in rows if row.metric in suite.run.metrics]


def _rows_of_place(
    runs: PlaceRuns,
    theory: TheoryOfPlace,
    suite: Suite,
    store: Store,
    metrics: Sequence[str] = (),
) -> list[Row]:
    """Make one row per metric (by default those of the suite) and component for the runs at one place (algorithm, problem,
    sample ratio, dimension), with the theory that was solved for it.
    """
    problem, records = runs.problem, runs.records
    bayes, prediction, no_prediction, _, optimum, scale = theory
    metrics = metrics or suite.run.metrics
    target, components = suite.run.target, problem.components
    traced_runs = [
        TracedRun(
            record,
            None if record.status in FAILED_STATUSES else store.trajectory(record),
        )
        for record in records
    ]
    if optimum is None and bayes is not None:
        optimum = optimum_at_limit(bayes)
    reachable_errors = optimum and [
        optimum.reachable_errors(instance_of(record)) for record in records
    ]
    cost = run_cost(traced_runs, reachable_errors, target)
    half_overlaps, order = _learning_order(runs, traced_runs, bayes)
    outcomes = replace(_run_outcomes(runs, theory), learning_order=order)
    if not runs.use_fresh_samples:
        moving = runs_still_moving(traced_runs, target)
        outcomes = replace(outcomes, still_moving=moving)
    also_predicted = teachers = None  # only the first row of a place holds these
    if prediction:
        teachers = _teacher_excesses(runs, prediction)
        also_predicted = [
            *_unlisted_metrics(runs, prediction, metrics),
            *_checkpoints(problem, traced_runs, prediction),
        ]
    rows: list[Row] = []
    for metric_name in metrics:
        metric = find_metric(metric_name, problem.model.name)
        complaints: list[str] = []
        optimal_values, predicted_values = (
            [*zip(*theory_of(metric, problem, point, components, complaints))]
            for point in (bayes, prediction)
        )
        coefficients = size_coefficients(prediction, metric_name, len(predicted_values))
        blank = {
            record.blank[metric_name]
            for record in records
            if metric_name in record.blank
        }
        for component, (optimal_value, predicted_value) in enumerate(
            zip(optimal_values, predicted_values)
        ):
            values_by_instance = values_of(
                runs.runs_with_estimate, metric_name, component
            )
            mean = mean_and_error(np.array([*values_by_instance.values()]))
            difference = compared_with_theory(mean, *predicted_value)
            solution: TheoryPoint | AlgorithmPrediction | None = prediction
            reason: str | None = None
            if predicted_value[0] is None:
                solution = bayes
                reason = next(iter(complaints), no_prediction) or None
            optimal = OptimalValue(*optimal_value, *optimal_value, LIMIT)
            is_mean_of_runs = False
            if optimum is not None and metric_name == "mse":
                value = optimum.value[component]
                error = optimum.error[component]
                optimal = OptimalValue(
                    *optimal_value, float(value), float(error), optimum.source
                )
                fitted_source = f"{FITTED}{runs.place.algorithm}"
                is_mean_of_runs = (
                    optimum.is_mean_of_runs and optimum.source == fitted_source
                )
            if metric.direction == "lower" and not is_mean_of_runs:
                ratio = ratio_to_bayes(mean.mean, optimal.limit, target, optimal.value)
                optimal = replace(optimal, ratio=ratio)
            rows.append(
                Row(
                    place=runs.place,
                    metric=metric_name,
                    component=component + 1 if len(predicted_values) > 1 else None,
                    target=target,
                    estimate=MeanOfRuns(
                        values_by_instance, len(values_by_instance), *mean
                    ),
                    prediction=PredictedValue(
                        *predicted_value,
                        coefficients[component],
                        reason,
                        solution.branch if solution else None,
                        solution.method if solution else None,
                        difference.z,
                        None if rows else also_predicted,
                        None if rows else teachers,
                    ),
                    optimum=optimal,
                    theory=compared_with_theory(mean, *optimal_value)
                    if predicted_value[0] is None
                    else difference,
                    cost=cost,
                    runs=replace(
                        outcomes,
                        blank=sorted(blank),
                        half_overlap=half_overlaps[component]
                        if half_overlaps and metric.per_component
                        else None,
                    ),
                    identity=runs.identity,
                    component_word=component_word(problem),
                    dimension_letter=dimension_letter_of(problem.model),
                )
            )
    return with_worth(rows, scale, traced_runs, optimum)


def _run_outcomes(runs: PlaceRuns, theory: TheoryOfPlace) -> Runs:
    """Summarize the runs at one place: numbers by status, reasons of failures, warnings and diagnostics; what trajectories show
    is added elsewhere.
    """
    records, prediction = runs.records, theory.prediction
    reasons = {
        reason_of(record, theory.threshold_remark)
        for record in records
        if record.status != Status.OK
    }
    warnings = {warning for record in records for warning in record.warnings}
    warnings.update(clock_remarks(records))
    if theory.reason and theory.bayes is None:
        warnings.add(theory.reason)
    return Runs(
        status_counts=dict(Counter(record.status.value for record in records)),
        reasons=sorted(reasons),
        warnings=sorted(warnings),
        blank=[],
        restarts=sum(record.restarts for record in records),
        still_moving=None,
        learning_order=None,
        half_overlap=None,
        findings=mean_diagnostics(records, prediction.document() if prediction else {}),
    )


def _learning_order(
    runs: PlaceRuns, traced: Sequence[TracedRun], bayes: TheoryPoint | None
) -> tuple[list[HalfOverlap], LearningOrder | None]:
    """Determine from the trajectories ``traced`` when and in which order components were learned, that is, reached half of their
    optimal overlap (that of the Bayes-optimal fixed point ``bayes``); None if there is a single component.
    """
    problem = runs.problem
    if bayes is None or problem.components == 1:
        return [], None
    optimal_overlaps = theory_of(
        find_metric("overlap"), problem, bayes, problem.components
    )[0]
    # What draws its own samples has no epochs.
    counts = [run.samples for run in runs.records if run.samples is not None]
    samples_per_epoch = None if runs.use_fresh_samples or not counts else counts[0]
    trajectories = [run.trajectory for run in traced]
    return learning_order(
        trajectories,
        [overlap or 0.0 for overlap in optimal_overlaps],
        samples_per_epoch,
    )


CHECKPOINTS = (0.125, 0.25, 0.5)
"""Fractions of the steps at which runs are compared with a predicted trajectory, besides the end."""


def _unlisted_metrics(
    runs: PlaceRuns, prediction: AlgorithmPrediction, listed: Sequence[str]
) -> Iterator[PredictedNumber]:
    """Yield the predicted quantities whose metrics the suite does not list (not in ``listed``): estimates that algorithms make of
    their own error. ``coefficient`` is that of the 1/D correction, 0 for a prediction at the runs' dimension.
    """
    problem = runs.problem
    coefficient = 0.0 if prediction.at_size else None
    for name in claimed_error_metrics(problem.model.name):
        if name in listed:
            continue
        metric = find_metric(name, problem.model.name)
        has_components = metric.per_component and problem.components > 1
        predicted = theory_of(metric, problem, prediction, problem.components)
        for index, (value, error) in enumerate(zip(*predicted)):
            values = values_of(runs.runs_with_estimate, name, index)
            component = index + 1 if has_components else None
            if value is not None and values:
                yield PredictedNumber(
                    name, component, None, values, coefficient, value, error
                )


def _checkpoints(
    problem: Problem, runs: Sequence[TracedRun], prediction: AlgorithmPrediction
) -> Iterator[PredictedNumber]:
    """Yield the errors of runs after the fractions ``CHECKPOINTS`` of their steps, each with the error that theory predicts there
    and its numerical error; ``path`` is the predicted trajectory.
    """
    path, components = prediction.trajectory, problem.components
    runs = [
        run
        for run in runs
        if "mse" in (run.trajectory or ()) and run.record.status != Status.DIVERGED
    ]
    if not isinstance(path, dict) or "mse" not in path or not runs:
        return
    clock = "samples" if "samples" in path else "iteration"
    times = np.asarray(path[clock], dtype=float)
    coefficient = 0.0 if prediction.at_size else None
    for fraction in CHECKPOINTS:
        index = int(np.argmin(np.abs(times - fraction * times[-1])))
        if not 0 < index < len(times) - 1:
            continue
        errors = {
            instance_of(run.record): errors_at(run, clock, times[index]) for run in runs
        }
        predicted = np.ravel(path["mse"][index])
        numerical_errors = (
            np.ravel(path["mse_error"][index]) if "mse_error" in path else 0 * predicted
        )
        for component in range(components):
            yield PredictedNumber(
                "mse",
                component + 1 if components > 1 else None,
                fraction,
                {
                    instance: run_errors[component]
                    for instance, run_errors in errors.items()
                    if math.isfinite(run_errors[component])
                },
                coefficient,
                float(predicted[component]),
                float(numerical_errors[component]),
            )


def _teacher_excesses(
    runs: PlaceRuns, prediction: AlgorithmPrediction
) -> dict[str, list[float]]:
    """Compute by how much the squared norm of each instance's teacher exceeds its mean under the prior, relative to that
    mean, per component.

    A prediction for the starts of these very runs has their teachers in it: only differences between them count then.
    """
    components = runs.problem.components
    second_moment = runs.problem.prior.second_moment(components)
    mean_squared_norms = np.diagonal(np.asarray(second_moment, dtype=float))
    excesses = {}
    for record in runs.runs_with_estimate:
        teacher_overlap = np.asarray(record.start.get("truth") or [], dtype=float)
        if teacher_overlap.shape == (components, components):
            squared_norms = np.diagonal(teacher_overlap)
            excesses[instance_of(record)] = squared_norms / mean_squared_norms - 1
    mean = 0.0
    if excesses and prediction.at_size:
        mean = np.mean([*excesses.values()], axis=0)
    return {instance: (excess - mean).tolist() for instance, excess in excesses.items()}
