"""Makes rows from records, with theory: one per problem, algorithm, backend, sample ratio, dimension, metric and component."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from smimbench.files import JsonObject, canonical_json, error_line
from smimbench.interfaces import (
    AlgorithmPrediction,
    Conditions,
    Overlaps,
    ParameterError,
)
from smimbench.problem.problem import Problem, ProblemError, without
from smimbench.registry.adapters import plan_of, sizes
from smimbench.registry.metrics import (
    find_metric,
    metrics_of_accounts,
    theory_of,
    trajectory_metrics,
)
from smimbench.registry.registry import RegistryError
from smimbench.report.labels import (
    component_word,
    distinguish,
    grouped,
    letter,
    reason_of,
)
from smimbench.report.optimum import LIMIT, Optimum, Reference, limit_of, optima
from smimbench.report.row import (
    Estimate,
    HalfOverlap,
    Identity,
    LearningOrder,
    OptimalValue,
    Place,
    PredictedNumber,
    Prediction,
    Row,
    Runs,
)
from smimbench.report.statistics import (
    against_theory,
    clock_remarks,
    instance_of,
    learning_order,
    mean_and_error,
    mean_diagnostics,
    near_threshold,
    ratio_to_bayes,
    runtime,
    still_moving,
    values_of,
)
from smimbench.run.answers import THEORY_ERRORS, Answers, NotStored, at_hand
from smimbench.run.campaign import made_by_other_code
from smimbench.run.choice import LOST
from smimbench.run.external import ELSEWHERE, Point, kept_scores
from smimbench.run.loop import Status
from smimbench.run.record import Record
from smimbench.run.store import Store
from smimbench.suite.cells import Cell, Suite, build_algorithm
from smimbench.theory.questions import NO_THEORY, PredictionQuestion
from smimbench.theory.types import TheoryPoint

Pair = tuple[Cell, Record]
"""A cell and its record."""

Optima = Mapping[tuple[str, float, int], Optimum]
"""The Bayes-optimal error at finite size by problem, sample ratio asked for and dimension."""


# -- records --------------------------------------------------------------------------------------------------------------


def paired(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Pair]:
    """Pairs of a cell and its record, by file stem; errors from any machine, trusted times preferred."""
    trusted_last = sorted(records.items(), key=lambda named: named[1].timing.trusted)
    by_key = {stem.partition(".")[0]: record for stem, record in trusted_last}
    labels = {
        (cell.key, cell.problem_label, cell.algorithm_label): cell
        for cell in cells
        if cell.key in by_key
    }
    return [(cell, by_key[cell.key]) for cell in labels.values()]


OF_CODE = ("problem", "algorithm", "tuning", "metrics")
"""Parts of a cell's identity that name versions and code."""


def paired_by_name(
    cells: Sequence[Cell], store: Store, records: Mapping[str, Record]
) -> list[Pair]:
    """Pairs for algorithms whose records were all made by other code of an item: each cell is then that of its record.

    Of several codes the one that wrote the newest record.
    """
    keys = {record.key for record in records.values()}
    current = {
        (cell.problem_label, cell.algorithm_label, cell.backend)
        for cell in cells
        if cell.key in keys
    }
    others = made_by_other_code(cells, records.values())
    pairs: list[Pair] = []
    for place, members in grouped(
        others, lambda p: (p[0].problem_label, p[0].algorithm_label, p[0].backend)
    ).items():
        if place in current:
            continue
        codes = grouped(
            members,
            lambda pair: canonical_json([pair[1].cell.get(key) for key in OF_CODE]),
        )
        newest = max(
            codes.values(),
            key=lambda same: max(store.written(record) for _, record in same),
        )
        by_cell = {
            cell.key: (cell, record)
            for cell, record in sorted(newest, key=lambda pair: pair[1].timing.trusted)
        }
        for cell, record in by_cell.values():
            items = {
                key: record.cell.get(key) for key in ("problem", "algorithm", "tuning")
            }
            pairs.append((replace(cell, **items), record))
    return pairs


def draws_fresh(algorithm: JsonObject) -> bool:
    """Whether an algorithm draws its own samples instead of the cell's; False if it is not installed here."""
    try:
        return bool(
            plan_of(build_algorithm(algorithm, None), sizes(1, 1, 1)).draws_fresh
        )
    except (RegistryError, ParameterError):
        return False


def used_fresh(record: Record) -> bool:
    """Whether a run used fresh samples."""
    return bool(record.fresh_samples)


def planned_ratio(problem: Problem, cell: Cell) -> float:
    """Sample ratio that the algorithm of a cell will use: of the data set, or of all fresh samples of its steps."""
    model = problem.model
    n = model.sample_count(cell.alpha, cell.dimension)
    if draws_fresh(cell.algorithm):
        plan = plan_of(
            build_algorithm(cell.algorithm, problem),
            sizes(n, model.tokens, cell.dimension),
        )
        n = int(plan.steps or 0) * int(plan.batch or n) or n
    return float(model.sample_ratio(n, cell.dimension))


def ratio_of_runs(problem: Problem, members: Sequence[Pair]) -> float:
    """Sample ratio actually used, the largest among the runs; the planned ratio if the records do not contain it."""
    metered = [
        record.sample_ratio
        for _, record in members
        if record.sample_ratio is not None and record.fresh_samples is not None
    ]
    return max(metered) if metered else planned_ratio(problem, members[0][0])


# -- theory ---------------------------------------------------------------------------------------------------------------


def bayes_point(answers: Answers, problem: Problem, ratio: float) -> TheoryPoint | None:
    """The Bayes-optimal theory point at a sample ratio; None if it is not stored."""
    branches = at_hand(answers.points, problem, [ratio])
    return branches[0][0] if branches else None


def prediction_question(
    problem: Problem, cell: Cell, ratio: float, records: Sequence[Record] = ()
) -> PredictionQuestion:
    """What theory predicts for the algorithm of a cell under the conditions of its runs, with its trajectory.

    Raises
    ------
    RegistryError, ParameterError
        If the algorithm is not installed here.
    """
    build_algorithm(cell.algorithm, problem)
    starts = [
        Overlaps(*map(record.start.get, Overlaps._fields))
        for record in records
        if record.start
    ]
    complete = tuple(
        start for start in starts if _is_complete(start, problem.components)
    )
    conditions = Conditions(
        cell.dimension,
        cell.run.start,
        complete,
        cell.run.max_iterations,
        trajectory=True,
    )
    return PredictionQuestion(problem, cell.algorithm, ratio, conditions)


def own_point(
    answers: Answers,
    problem: Problem,
    cell: Cell,
    ratio: float,
    records: Sequence[Record] = (),
) -> AlgorithmPrediction | str:
    """Answer to ``prediction_question``; or why there is none."""
    try:
        return answers.prediction(prediction_question(problem, cell, ratio, records))
    except (RegistryError, ParameterError) as error:
        return f"it is not installed here: {error}"
    except NotStored:
        return "not stored"
    except THEORY_ERRORS as error:  # the rows of others stay
        return f"its theory raised {error_line(error)}"


def _is_complete(start: Overlaps, components: int) -> bool:
    """Whether overlap matrices are those of so many components, without a missing number."""
    matrices = [np.asarray(matrix, dtype=float) for matrix in start]
    return all(
        matrix.shape == (components, components) and np.isfinite(matrix).all()
        for matrix in matrices
    )


def _near(
    answers: Answers,
    problem: Problem,
    records: Sequence[Record],
    ratio: float,
    dimension: int,
) -> str | None:
    """Name of the threshold near which runs did not converge; asked for only where one did not."""
    if all(record.status != Status.NOT_CONVERGED for record in records):
        return None
    try:
        found = answers.thresholds(problem)
    except THEORY_ERRORS:  # the reason of the run is shown without
        return None
    count = (
        dimension
        if problem.model.rank == "low"
        else problem.model.sample_count(ratio, dimension)
    )
    return near_threshold(found, ratio, count, component_word(problem))


# -- rows -----------------------------------------------------------------------------------------------------------------


def find_optima(pairs: Sequence[Pair], suite: Suite, answers: Answers) -> Optima:
    """The Bayes-optimal error at finite size by problem, sample ratio asked for and dimension, where it is known.

    It comes from the ``ok`` runs of the first shipped algorithm that is predicted to reach the Bayes-optimal point.
    """
    problems = suite.problems
    known: dict[tuple[str, float], list[Reference]] = {}
    shipped = [
        pair
        for pair in pairs
        if "source" not in pair[0].algorithm and not used_fresh(pair[1])
    ]
    for (label, algorithm, alpha, dimension), members in grouped(
        shipped, lambda pair: pair[0].place
    ).items():
        problem, references = problems[label], known.setdefault((label, alpha), [])
        if any(
            one.algorithm != algorithm or one.dimension == dimension
            for one in references
        ):
            continue
        ratio, records = (
            sample_ratio(problem, alpha, dimension),
            [record for _, record in members],
        )
        try:
            point = bayes_point(answers, problem, ratio)
        except THEORY_ERRORS:  # the rows say so
            continue
        own = (
            own_point(answers, problem, members[0][0], ratio, records) if point else ""
        )
        if (
            point is None
            or isinstance(own, str)
            or not np.allclose(own.mse, point.mse, rtol=1e-9, atol=0)
        ):
            continue
        done = [
            record
            for record in records
            if record.status == Status.OK and "mse" in record.metrics
        ]
        runs = {
            instance_of(record): np.asarray(record.metrics["mse"], dtype=float)
            for record in done
        }
        coefficient = (own.finite_size or {}).get("mse")
        references.append(Reference(dimension, algorithm, point.mse, runs, coefficient))
    return {
        (*key, size): one
        for key, members in known.items()
        for size, one in optima(members).items()
    }


def sample_ratio(problem: Problem, alpha: float, dimension: int) -> float:
    """Sample ratio of the whole number of samples that is nearest to ``alpha``."""
    return float(
        problem.model.sample_ratio(
            problem.model.sample_count(alpha, dimension), dimension
        )
    )


@dataclass(frozen=True)
class PlaceRuns:
    """All runs of an algorithm on a problem at one sample ratio, dimension and backend.

    Attributes
    ----------
    problem : Problem
    pairs : sequence of (Cell, dict)
    ratio : float
        Sample ratio really used.
    """

    problem: Problem
    pairs: Sequence[Pair]
    ratio: float

    @property
    def cell(self) -> Cell:
        """A cell of these runs; they differ in their replicates alone."""
        return self.pairs[0][0]

    @property
    def records(self) -> list[Record]:
        """Their records."""
        return [record for _, record in self.pairs]


def places_of(pairs: Sequence[Pair], suite: Suite) -> list[PlaceRuns]:
    """Runs by what was run, never by its label."""

    def identity(pair: Pair) -> tuple[Any, ...]:
        cell = pair[0]
        return (
            canonical_json(cell.problem),
            canonical_json(cell.algorithm),
            cell.backend,
            *cell.place,
        )

    problems = {canonical_json(plan.problem.spec): plan.problem for plan in suite.plans}
    by_label = suite.problems
    places = []
    for (spec, *_), members in grouped(pairs, identity).items():
        problem = (
            problems.get(spec) or by_label[members[0][0].problem_label]
        )  # the second: cells of other code
        places.append(PlaceRuns(problem, members, ratio_of_runs(problem, members)))
    return places


def error_rows(
    pairs: Sequence[Pair],
    suite: Suite,
    store: Store,
    answers: Answers,
    find: Callable[[], Optima],
) -> list[Row]:
    """Rows of the error table, in the order of the suite.

    A row stands for one problem, algorithm, backend, sample ratio, dimension, metric and component. Its estimate is over all
    cells that ended with a finite one, whatever their status. Its theory is the prediction for the algorithm where there is one,
    else the Bayes-optimal value at the sample ratio really used. Runs are pooled by what was run, never by its label. Theory that
    is not stored is None.

    Parameters
    ----------
    find : callable
        The optima at finite size, asked for when all points have been solved together.
    """
    places = places_of(pairs, suite)
    ratios: dict[Problem, set[float]] = {}
    for runs in places:
        ratios.setdefault(runs.problem, set()).add(runs.ratio)
    unsolved: dict[Problem, Exception] = {}
    for problem, alphas in ratios.items():
        try:
            at_hand(answers.points, problem, sorted(alphas))
        except THEORY_ERRORS as error:  # its rows say so, the others stay
            unsolved[problem] = error
    example = next(iter(unsolved.values()), None)
    is_none_solved = {plan.problem for plan in suite.plans} <= unsolved.keys()
    if is_none_solved and isinstance(example, ProblemError) and example.key != "theory":
        # With that key its process ended, or had to: rows say so, the runs may be good. Otherwise nothing else is hidden.
        raise example
    rows: list[Row] = []
    sized = find()
    for runs in places:
        problem, cell, records = runs.problem, runs.cell, runs.records
        point, near = None, None
        own: AlgorithmPrediction | str = ""
        if problem in unsolved:
            own = f"theory raised {error_line(unsolved[problem])}"
        elif problem.no_theory is not None:
            own = problem.no_theory
        elif point := bayes_point(answers, problem, runs.ratio):
            own = own_point(answers, problem, cell, runs.ratio, records)
            if (
                not isinstance(own, str)
                and own.of_ok_runs
                and any(r.status != Status.OK for r in records)
            ):
                own = "its prediction holds only if every run ends ok, and not all did"
            near = _near(answers, problem, records, runs.ratio, cell.dimension)
        problem_label, algorithm_label, alpha, dimension = cell.place
        place = Place(
            problem_label,
            algorithm_label,
            cell.backend,
            runs.ratio,
            alpha,
            dimension,
            cell.origin,
        )
        theory = Theory(
            point,
            own,
            None if any(map(used_fresh, records)) else _sized(sized, place),
            near,
        )
        items = Identity(
            without("version", cell.problem), without("version", cell.described)
        )
        rows += _rows_of_place(place, problem, items, records, theory, suite, store)
    return distinguish(rows)


def rows_of_points(
    suite: Suite,
    points: Sequence[Point],
    records: Sequence[Record],
    answers: Answers,
    sized: Optima,
) -> list[Row]:
    """Rows for externally computed estimates (see ``smimbench.run.external``); replicates of one point share a row.

    They have all metrics that can be measured of an estimate alone.
    """
    groups = grouped(
        zip(points, records, strict=True),
        lambda one: (
            one[0].plan.label,
            one[1].algorithm,
            one[0].alpha,
            one[0].dimension,
        ),
    )
    rows: list[Row] = []
    for (label, algorithm, alpha, dimension), members in groups.items():
        problem = members[0][0].plan.problem
        ratio = sample_ratio(problem, alpha, dimension)
        place = Place(label, algorithm, ELSEWHERE, ratio, alpha, dimension)
        point = bayes_point(answers, problem, ratio)
        theory = Theory(point, NO_THEORY if point else "", _sized(sized, place), None)
        metrics = list(trajectory_metrics(problem.model.name))
        items = Identity(without("version", problem.spec), {"name": algorithm})
        rows += _rows_of_place(
            place,
            problem,
            items,
            [record for _, record in members],
            theory,
            suite,
            Store(""),
            metrics,
        )
    return rows


def scored_rows(
    suite: Suite, store: Store, answers: Answers, sized: Optima
) -> list[Row]:
    """Rows of externally computed estimates stored by ``smimbench score``, for the metrics of the suite."""
    rows = rows_of_points(suite, *kept_scores(suite, store), answers, sized)
    return [row for row in rows if row.metric in suite.run.metrics]


def _sized(sized: Optima, place: Place) -> Optimum | None:
    return sized.get((place.problem, place.nominal_alpha, place.dimension))


class Theory(NamedTuple):
    """What is known of a place: the Bayes-optimal point, the algorithm's own (or why there is none), the optimal error at this
    size (None: only its limit), and the threshold that runs which did not converge are near, in words.
    """

    bayes: TheoryPoint | None
    own: AlgorithmPrediction | str
    optimum: Optimum | None
    near: str | None


def _rows_of_place(
    place: Place,
    problem: Problem,
    identity: Identity,
    records: Sequence[Record],
    theory: Theory,
    suite: Suite,
    store: Store,
    metrics: Sequence[str] = (),
) -> list[Row]:
    """One row per metric (those of the suite, or others) and component for the runs of one place."""
    fresh, target, components = (
        any(map(used_fresh, records)),
        suite.run.target,
        problem.components,
    )
    usable = [r for r in records if r.metrics and r.status != Status.DIVERGED]
    courses = [None if r.status in LOST else store.trajectory(r) for r in records]
    bayes, own, optimum, near = theory
    reason = "its theory says nothing of this metric"
    predicted = None if isinstance(own, str) else own
    if isinstance(own, str):
        reason = own

    complaints: list[str] = []

    def expected(
        name: str, point: TheoryPoint | AlgorithmPrediction | None
    ) -> tuple[Sequence[float | None], Sequence[float | None]]:
        metric = find_metric(name, problem.model.name)
        return (
            theory_of(metric, problem, point, components, complaints)
            if point
            else ([None] * components,) * 2
        )

    layers: list[HalfOverlap] = []
    order: LearningOrder | None = None
    if bayes is not None and components > 1:
        # What draws its own samples has no epochs.
        samples = (
            math.nan
            if fresh
            else next(
                (float(r.samples) for r in records if r.samples is not None), math.nan
            )
        )
        layers, order = learning_order(
            courses,
            [float(value or 0.0) for value in expected("overlap", bayes)[0]],
            samples,
        )
    unsolved = {reason} if bayes is None and reason else set()
    best = optimum if optimum is not None or bayes is None else limit_of(bayes)
    goals = (
        None if best is None else [best.goal(instance_of(record)) for record in records]
    )
    cost = runtime(records, courses, goals, target)
    runs = Runs(
        status_counts=dict(Counter(r.status.value for r in records)),
        reasons=sorted({reason_of(r, near) for r in records if r.status != Status.OK}),
        warnings=sorted(
            {w for r in records for w in r.warnings}
            | unsolved
            | set(clock_remarks(records))
        ),
        blank=[],
        restarts=sum(r.restarts for r in records),
        still_moving=None if fresh else still_moving(records, courses, target),
        learning_order=order,
        half_overlap=None,
        findings=mean_diagnostics(records, predicted.document() if predicted else {}),
    )
    rows = []
    for name in metrics or suite.run.metrics:
        metric = find_metric(name, problem.model.name)
        complaints.clear()
        (optimal, optimal_errors), (values, errors) = (
            expected(name, point) for point in (bayes, predicted)
        )
        count = components if metric.per_component else 1
        # A prediction for the starts of these runs is one for their size.
        at_size = predicted is not None and predicted.at_size
        known_coefficients = (predicted and predicted.finite_size) or {}
        coefficients: Sequence[float | None] = (
            known_coefficients.get(name) or [0.0 if at_size else None] * count
        )
        blank = sorted({r.blank[name] for r in records if name in r.blank})
        for k in range(count):
            least = optimal[k], optimal_errors[k], LIMIT
            if best is not None and name == "mse":
                least = float(best.value[k]), float(best.error[k]), best.source
            known = values[k] is not None
            point = predicted if known else bayes
            missing = None if known else next(iter(complaints), reason) or None
            source = (point.branch, point.method) if point else (None, None)
            runs_of_row = replace(
                runs,
                blank=blank,
                half_overlap=layers[k] if layers and metric.per_component else None,
            )
            prediction = Prediction(
                values[k], errors[k], coefficients[k], missing, *source
            )
            optimal_value = OptimalValue(optimal[k], optimal_errors[k], *least)
            numbers = values_of(usable, name, k)
            with np.errstate(over="ignore"):  # values may be as large as numbers go
                array = np.array(list(numbers.values()))
                estimate = mean_and_error(array)
                own_distance = against_theory(
                    estimate, prediction.value, prediction.error
                )
                distance = (
                    own_distance
                    if known
                    else against_theory(
                        estimate, optimal_value.limit, optimal_value.limit_error
                    )
                )
                if metric.direction == "lower":
                    ratio = ratio_to_bayes(
                        array, optimal_value.limit, target, optimal_value.value
                    )
                    optimal_value = replace(optimal_value, ratio=ratio)
            rows.append(
                Row(
                    place=place,
                    metric=name,
                    component=k + 1 if count > 1 else None,
                    target=target,
                    estimate=Estimate(numbers, len(numbers), *estimate),
                    prediction=replace(prediction, z=own_distance.z),
                    optimum=optimal_value,
                    theory=distance,
                    cost=cost,
                    runs=runs_of_row,
                    identity=identity,
                    component_word=component_word(problem),
                    dimension_letter=letter(problem.model),
                )
            )
    if predicted:  # once for a place
        others = _also_predicted(
            usable, records, courses, predicted, problem, metrics or suite.run.metrics
        )
        teachers = _teachers(usable, problem, predicted)
        prediction = replace(
            rows[0].prediction, also_predicted=others, teachers=teachers
        )
        rows[0] = replace(rows[0], prediction=prediction)
    return rows


CHECKPOINTS = (0.125, 0.25, 0.5)
"""Shares of the steps at which runs are compared with a predicted trajectory, besides their end."""


def _also_predicted(
    usable: Sequence[Record], records: Sequence[Record], courses: Sequence[Any], own: AlgorithmPrediction,
    problem: Problem,
    listed: Sequence[str],
) -> list[PredictedNumber]:  # fmt: skip
    """Predicted quantities without a row: metrics from the algorithm's own theory, and points on its trajectory."""
    numbers: list[PredictedNumber] = []
    of_size = 0.0 if own.at_size else None

    def add(
        name: str,
        at: float | None,
        expected: Sequence[Any],
        errors: Sequence[Any],
        values: Callable[[int], Any],
    ) -> None:
        for k, value in enumerate(expected):
            known = {} if value is None else values(k)
            if known or at is not None:
                component = k + 1 if len(expected) > 1 else None
                numbers.append(
                    PredictedNumber(
                        name, component, at, known, of_size, value, errors[k]
                    )
                )

    for name in metrics_of_accounts(problem.model.name):
        if name not in listed:
            expected, errors = theory_of(
                find_metric(name, problem.model.name), problem, own, problem.components
            )
            add(name, None, expected, errors, partial(values_of, usable, name))
    course = {"iteration": []} if isinstance(own.trajectory, str) else own.trajectory
    course = course or {"iteration": []}
    clock = "samples" if "samples" in course else "iteration"
    times = np.asarray(course[clock], dtype=float)
    runs = {
        instance_of(record): (run, record.status == Status.OK)
        for record, run in zip(records, courses)
        if run is not None and "mse" in run and record.status != Status.DIVERGED
    }
    for share in CHECKPOINTS if len(times) > 2 and runs else ():
        i = int(np.argmin(np.abs(times - share * times[-1])))
        if 0 < i < len(times) - 1:
            blank = np.zeros((len(times), problem.components))
            middles, spreads = (
                np.ravel(course.get(key, blank)[i]).tolist()
                for key in ("mse", "mse_error")
            )
            add(
                "mse",
                share,
                middles,
                spreads,
                partial(_values_at, runs, clock, float(times[i])),
            )
    return numbers


def _values_at(
    runs: Mapping[str, tuple[JsonObject, bool]], clock: str, time: float, component: int
) -> dict[str, float]:
    values = {
        name: _at(run, clock, time, component, ended=ended)
        for name, (run, ended) in runs.items()
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _at(
    run: JsonObject, clock: str, time: float, component: int, *, ended: bool
) -> float:
    """Error of a run at a time on its clock. After its end: the last one if it ``ended`` as it should, else NaN.

    Leaving out runs that converged earlier would keep the slow ones.
    """
    ticks = np.where(
        run["iteration"] == 0, 0.0, run[clock]
    )  # before the first step nothing has been counted
    errors = np.asarray(run["mse"], dtype=float)[:, component]
    return float(np.interp(time, ticks, errors, right=None if ended else math.nan))


def _teachers(
    records: Sequence[Record], problem: Problem, own: AlgorithmPrediction
) -> dict[str, list[float]]:
    """Relative excess of the squared length of every instance's teacher over its mean, per component.

    A prediction for the starts of these very runs has their teachers in it: only differences between them count then.
    """
    second = np.diagonal(
        np.asarray(problem.prior.second_moment(problem.components), dtype=float)
    )
    known = {}
    for record in records:
        truth = np.asarray(record.start.get("truth") or [], dtype=float)
        if truth.shape == (problem.components, problem.components):
            known[instance_of(record)] = np.diagonal(truth) / second - 1
    middle = np.mean([*known.values()], axis=0) if known and own.at_size else 0.0
    return {name: (excess - middle).tolist() for name, excess in known.items()}
