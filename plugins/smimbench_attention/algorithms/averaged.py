"""The average of several independent runs (students) of another algorithm on the same data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from smimbench.backend import namespace, read_together
from smimbench.files import missing, omit
from smimbench.interfaces import (
    Algorithm,
    AlgorithmPrediction,
    Array,
    Capabilities,
    Conditions,
    Data,
    Info,
    Overlaps,
    ParameterError,
    Plan,
    require,
    takes,
)
from smimbench.problem import Problem
from smimbench.registry import Entry, RegistryError, build, get_registry, parameters_of
from smimbench.theory import limit_point, own_theory, prior_moments


class AveragedState(NamedTuple):
    """States of all students (one state with a leading axis, or a tuple), and the problem, whose symmetry is removed before the
    students' signals are averaged.
    """

    students: Any
    problem: Problem


@dataclass(frozen=True)
class Averaged(Algorithm):
    r"""Average of independent runs of another algorithm on the same data.

    K students start independently. The mean of their signals is taken, ``S = (1/K) sum_a S_a`` with
    ``S_a = W_a W_a^T / sqrt(r D)``, never that of their factors, which are known up to a rotation only. Where labels
    leave a symmetry (signs, permutations), every student is first brought closest to the first one, then to the mean of
    all, until nothing changes: no teacher is needed.

    All students are one computation with one more leading axis where its ``init`` takes ``students`` (all gradient
    methods do). Any other algorithm steps one student after the other, which a warning says. With e_1
    the error of one student and ``e_K`` that of the mean, ``e_K = b + v / K`` and ``e_1 = b + v``: spread averages out, bias
    does not.

    Parameters
    ----------
    of : table or name
        The algorithm, ``{ name = "adam", ... }`` with its parameters, or only its name.
    students : int
        K >= 1.

    References
    ----------
    arXiv:2506.01582 (averaged gradient descent).
    """

    of: dict[str, Any] | str  # the algorithm that is averaged
    students: int = 32  # number K of independent runs
    _inner_algorithm: Algorithm = field(init=False, repr=False, compare=False)
    _registry_entry: Entry = field(init=False, repr=False, compare=False)

    name = "averaged"
    version = 1
    reference = "arXiv:2506.01582"
    capabilities = Capabilities()
    example: ClassVar[dict[str, Any]] = {
        "of": "adam",
        "students": 3,
    }  # parameters with which checks build it

    def __post_init__(self) -> None:
        """Build the inner algorithm that ``of`` names (a table or a name), and store its identity: name, distribution, version,
        parameters.
        """
        require(self, "students", self.students >= 1, "at least 1")
        table = {"name": self.of} if isinstance(self.of, str) else self.of
        parameters = omit(table, "name", "distribution", "version", "source")
        name, distribution = table.get("name"), table.get("distribution")
        if name is None:
            raise ParameterError(
                "of.name",
                f"{missing('name', parameters)}: name the algorithm to average",
            )
        if not isinstance(name, str):
            raise ParameterError(
                "of.name", f"must be the name of an algorithm, got {name!r}"
            )
        if name == self.name:
            raise ParameterError(
                "of.name",
                f"must name an algorithm other than {name!r}; to average more runs, increase students",
            )
        qualified_name = f"{distribution}:{name}" if distribution else name
        try:
            entry = get_registry().get("algorithm", qualified_name)
        except RegistryError as error:
            raise ParameterError(
                "of.name", f"must name an algorithm that is installed: {error}"
            ) from None
        try:
            inner_algorithm = build(entry.item, "algorithm", parameters)
        except ParameterError as error:
            raise ParameterError(
                f"of.{error.key}",
                f"{error.message} (a parameter of {name!r}, which is averaged)",
            ) from None
        # Includes defaults and version, so that a change of either makes a new cell.
        inner_identity = {
            "name": entry.name,
            "version": entry.item.version,
            **parameters_of("algorithm", inner_algorithm),
        }
        if entry.source is not None:
            inner_identity["distribution"] = entry.distribution
            inner_identity["source"] = entry.source
        object.__setattr__(self, "of", inner_identity)
        object.__setattr__(self, "_inner_algorithm", inner_algorithm)
        object.__setattr__(self, "_registry_entry", entry)

    @property
    def _is_batched(self) -> bool:
        """Whether the inner algorithm, the one that is averaged, runs all students together, as one batched state."""
        return takes(self._inner_algorithm.init, "students")

    def plan(self, data: Data) -> Plan:
        """Plan (steps, batch size, cost) of the inner algorithm for all students."""
        inner_plan = self._inner_algorithm.plan(data)
        return inner_plan._replace(
            students=inner_plan.students * self.students, cost=None
        )

    def refuses(self, problem: Problem) -> str | None:
        """Reason why the inner algorithm cannot solve a problem, or None."""
        if not self._registry_entry.supports_model(problem.model.name):
            return f"{self._registry_entry.name} does not work for model {problem.model.name!r}"
        return self._inner_algorithm.refuses(problem)

    def retry(self, problem: Problem, outcome: str) -> Averaged | None:
        """Average of the inner algorithm with other settings, for a second attempt after a run that ended with this ``outcome``
        (its status), or None if the inner algorithm offers none. ``parameters`` are those of the inner algorithm.
        """
        if outcome == "unsettled":
            return None
        retried_algorithm = self._inner_algorithm.retry(problem, outcome)
        if retried_algorithm is None:
            return None
        parameters = parameters_of("algorithm", retried_algorithm)
        return replace(self, of={"name": self._registry_entry.name, **parameters})

    def theory(
        self, problem: Problem, alpha: float, conditions: Conditions
    ) -> AlgorithmPrediction | str:
        r"""Predict the error of the mean of K students from the theory of a single student, under the conditions of the runs
        (start, dimension). ``between_students`` is the overlap of two students. alpha is the sample ratio.

        With M the overlap of a student with the signal, Q with itself and Q' with another student,

        .. math:: M_K = M, \qquad Q_K = Q' + (Q - Q') / K.

        Draws from the posterior have ``M = Q'`` and Q the second moment: ``mse_K = (1 + 1/K) mse_Bayes``. Where all starts
        end in one estimate, ``Q' = Q``. Online descent has none here: its students learn from the same samples, and its
        equations do not contain the overlap of two of them.
        """
        student_prediction = own_theory(
            self._inner_algorithm, problem, alpha, conditions
        )
        if isinstance(student_prediction, str) or self.students == 1:
            return student_prediction
        if student_prediction.between_students is None:
            return f"the theory of {self._registry_entry.name} does not predict the overlap between two independent students"
        signal_second_moment = prior_moments(problem)[0]
        signal_overlap = np.asarray(student_prediction.overlap)
        overlap_between_students = np.asarray(student_prediction.between_students)
        self_overlap = signal_overlap
        if student_prediction.own_overlap is not None:
            self_overlap = np.asarray(student_prediction.own_overlap)
        self_overlap_excess = (self_overlap - overlap_between_students) / self.students
        mean_self_overlap = overlap_between_students + self_overlap_excess
        mean_overlaps = Overlaps(
            signal_second_moment, signal_overlap, mean_self_overlap
        )
        mse_error = np.diag(np.atleast_1d(student_prediction.mse_error))
        return limit_point(
            problem,
            alpha,
            [[mean_overlaps]],
            method=f"mean of {self.students} students; {student_prediction.method}",
            branch=student_prediction.branch,
            uncertain=Overlaps(0 * mse_error, 0 * mse_error, mse_error),
        )

    def init(
        self, problem: Problem, data: Data, rng: np.random.Generator
    ) -> AveragedState:
        """Independent initial states of the students, each from a random stream of its own."""
        if self._is_batched:
            batched_init: Any = self._inner_algorithm.init
            students = batched_init(problem, data, rng, students=self.students)
        else:
            random_streams = rng.spawn(self.students)
            students = tuple(
                self._inner_algorithm.init(problem, data, rng) for rng in random_streams
            )
        return AveragedState(students, problem)

    def step(
        self, problem: Problem, data: Data, state: AveragedState
    ) -> tuple[AveragedState, Info]:
        """Take one step of every student; return their states and a report, ``Info``, on all of them."""
        if self._is_batched:
            students, info = self._inner_algorithm.step(problem, data, state.students)
            return AveragedState(students, problem), info
        states_and_infos = [
            self._inner_algorithm.step(problem, data, student)
            for student in state.students
        ]
        students, infos = zip(*states_and_infos)
        name = self._registry_entry.name
        remark = f"averaged: {name} runs one student at a time, so the time grows with their number"
        if self.students > 1:
            first_two_estimates = (
                self._inner_algorithm.estimate(student) for student in students[:2]
            )
            if _equal_up_to_sign(*first_two_estimates):
                remark += f"; {name} finds the same estimate from every start, so averaging its students changes nothing"
        return AveragedState(students, problem), _info_of_students(infos, remark)

    def estimate(self, state: AveragedState) -> Array:
        """Mean of the students' signals, each aligned by symmetry."""
        if self._is_batched:
            signals = self._inner_algorithm.estimate(state.students)
        else:
            estimates = [
                self._inner_algorithm.estimate(student) for student in state.students
            ]
            signals = namespace(estimates[0]).stack(estimates)
        return mean_signal(state.problem, signals)


def _equal_up_to_sign(estimate: Array, other_estimate: Array) -> bool:
    """Whether an estimate equals ``other_estimate`` up to rounding and one common sign."""
    xp = namespace(estimate)
    largest_difference, largest_sum = (
        xp.max(xp.abs(estimate + sign * other_estimate)) for sign in (-1, 1)
    )
    largest_entry = xp.max(xp.abs(estimate))
    return bool(xp.minimum(largest_difference, largest_sum) < 1e-6 * largest_entry)


def _info_of_students(infos: Sequence[Info], remark: str) -> Info:
    """Combine the step reports (``infos``) of several students: the mean of their overlaps, the maximum of every other number,
    and all warnings, with the ``remark`` in front.
    """
    combined_fields: dict[str, Any] = {}
    for field_name, students_values in zip(Info._fields, zip(*infos)):
        if field_name == "warning" or any(value is None for value in students_values):
            continue
        is_overlap = field_name in ("predicted_overlap", "self_overlap")
        students_numbers = np.stack(read_together(*students_values))
        mean_or_maximum = np.mean if is_overlap else np.max
        combined_fields[field_name] = mean_or_maximum(students_numbers, axis=0)
    warnings = [remark, *(info.warning for info in infos if info.warning)]
    return Info(**combined_fields, warning="; ".join(dict.fromkeys(warnings)))


def mean_signal(problem: Problem, signals: Array) -> Array:
    """Mean over the first axis of signals (K, P, ...), each aligned by the symmetry of the channel."""
    return namespace(signals).mean(aligned_signals(problem, signals), axis=0)


def aligned_signals(problem: Problem, signals: Array) -> Array:
    """Align the signals (K, P, ...) of K students by the symmetry of the channel: to the first one, then to their mean until
    nothing changes.
    """
    xp = namespace(signals)
    symmetry = problem.channel.symmetry
    if symmetry == "none" or signals.shape[0] == 1:
        return signals
    align = problem.model.align

    def align_to(target: Array) -> Array:
        """Signals of all students k, each transformed to be closest to the target."""
        student_signals = (signals[k, ...] for k in range(signals.shape[0]))
        return xp.stack(
            [align(target, student, symmetry) for student in student_signals]
        )

    aligned_students = align_to(signals[0, ...])
    for _ in range(20):
        previously_aligned = aligned_students
        aligned_students = align_to(xp.mean(aligned_students, axis=0))
        if bool(xp.all(previously_aligned == aligned_students)):
            break
    return aligned_students
