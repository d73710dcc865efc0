"""Questions to theory and their answers: predictions, points with all their numbers, thresholds, bifurcations, checks by draws.

Tables, verdicts and figures list the questions that they need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from smimbench.files import JsonObject
from smimbench.interfaces import Host
from smimbench.numerics.statistics import (
    DETECTED,
    FEWEST_EFFECTIVE,
    effective_sample_size,
)

if TYPE_CHECKING:
    from smimbench.interfaces import Conditions
    from smimbench.problem.problem import Problem, Specification

NEGLIGIBLE = 1e-9
"""Information, or an error of the signal, that counts as zero; doubled, channels of half that information are uninformative."""
LARGEST_Z = 4.0
"""Distance in standard errors that chance is allowed; doubled, errors twice as large pass."""


def per_component(values: Sequence[float] | Host) -> float | list[float]:
    """Convert numbers per component to JSON: a list, or a single number for one component."""
    numbers = [float(number) for number in values]
    return numbers[0] if len(numbers) == 1 else numbers


@dataclass(frozen=True)
class Prediction:
    """Prediction of state evolution at one sample ratio alpha: overlap Q and error V (P, P) of the Bayes-optimal estimate.
    ``error`` and ``alpha_error`` are the numerical errors of V's diagonal and of alpha, ``branch`` is the fixed point's
    (uninformed, informed, unique), ``method`` says how the information was obtained, and ``free_entropy`` is relative to the
    prior mean.

    Attributes
    ----------
    alpha : float
    Q, V : ndarray (P, P)
        Overlap and error, ``V = second_moment - Q``.
    error : ndarray (P,)
        Numerical error of the diagonal of Q (and of V) at this alpha.
    alpha_error : ndarray (P,)
        The other reading of the same curve: numerical error of the sample ratio of which Q is a fixed point, as each
        component tells it. It stays finite where V falls steeply.
    branch : str
        ``"unique"``, ``"uninformed"`` or ``"informed"``.
    method : str
        How the information of the channel was obtained.
    free_entropy : float or None
        Difference to the prior mean, in the normalization d(phi)/dQ = (Qhat(alpha, Q) - Qhat(Q)) / 2; given where
        branches compete.
    """

    alpha: float
    Q: Host
    V: Host
    error: Host
    branch: str
    method: str
    free_entropy: float | None = None
    alpha_error: Host | float = 0.0

    @property
    def mse(self) -> Host:
        """Mean squared error (P,) of every component."""
        return np.diagonal(self.V)


PER_COMPONENT = ("mse", "mse_error", "alpha_error")


@dataclass(frozen=True, eq=False)
class TheoryPoint:
    """Fixed point of state evolution at one sample ratio alpha with all reported numbers: ``mse`` (P,), ``overlap`` (P, P),
    generalization errors by kind of predictor, free entropy. Fields whose name ends in ``_error`` are numerical errors;
    ``method`` says how numbers were obtained.

    Attributes
    ----------
    alpha : float
    mse, mse_error, alpha_error : ndarray (P,)
        Mean squared error of every component, its numerical error, and that of the sample ratio, see ``Prediction``.
    overlap : ndarray (P, P)
    branch, method : str
        As of a ``Prediction``.
    generalization_error, generalization_error_error : dict or None
        Errors of prediction on fresh samples, and their errors, by kind; None where they were not asked for.
    generalization_error_method : str or None
    free_entropy : float or None
        As of a ``Prediction``; infinite (null in JSON) for perfect recovery of continuous signals.
    squared_cosine, squared_cosine_error : list of float or None
        What the overlap of a low-rank run estimates; None where the signal has length 1 and the overlap is the same.
    """

    alpha: float
    mse: Host
    mse_error: Host
    alpha_error: Host
    overlap: Host
    branch: str
    method: str
    generalization_error: dict[str, float] | None = None
    generalization_error_error: dict[str, float] | None = None
    generalization_error_method: str | None = None
    free_entropy: float | None = None
    squared_cosine: list[float] | None = None
    squared_cosine_error: list[float] | None = None

    @classmethod
    def read(cls, document: JsonObject) -> Self:
        """Read a theory point (a fixed point with its numbers) from its JSON object, ``document``."""
        field_values = {
            field.name: document[field.name]
            for field in fields(cls)
            if field.name in document
        }
        for name in PER_COMPONENT:
            field_values[name] = np.atleast_1d(
                np.asarray(field_values[name], dtype=float)
            )
        field_values["overlap"] = np.asarray(field_values["overlap"], dtype=float)
        if field_values.get("free_entropy", 0.0) is None:
            field_values["free_entropy"] = math.inf
        return cls(**field_values)

    def document(self) -> JsonObject:
        """Convert the theory point to JSON."""
        field_values = {field.name: getattr(self, field.name) for field in fields(self)}
        document = {
            name: value for name, value in field_values.items() if value is not None
        }
        for name in PER_COMPONENT:
            document[name] = per_component(document[name])
        document["overlap"] = self.overlap.tolist()
        if self.free_entropy is not None and not math.isfinite(self.free_entropy):
            document["free_entropy"] = None
        return document


@dataclass(frozen=True)
class Threshold:
    """Critical sample ratio, above or below which the solution changes, with its numerical error."""

    value: float
    error: float

    @classmethod
    def read(cls, document: JsonObject | None) -> Self | None:
        """Read a threshold from its JSON object; None for null."""
        return None if document is None else cls(document["value"], document["error"])

    def document(self) -> JsonObject:
        """Convert the threshold to JSON."""
        return {"value": self.value, "error": self.error}


HARD_PHASE = ("spinodal", "information_theoretic", "algorithmic")
"""Sample ratios of a hard phase, by their names in the JSON."""


@dataclass(frozen=True)
class HardPhase:
    """Hard phase: range of sample ratios in which an informed and an uninformed branch of fixed points compete. It starts at the
    spinodal; the informed branch is optimal from the information-theoretic threshold on, and algorithms without side information
    fail up to the algorithmic threshold.

    Attributes
    ----------
    spinodal : Threshold
        Where the informed branch begins to exist.
    information_theoretic : Threshold
        Where it becomes the Bayes-optimal one.
    algorithmic : Threshold
        Where the uninformed branch ends and joins it.
    """

    spinodal: Threshold
    information_theoretic: Threshold
    algorithmic: Threshold

    @property
    def ends(self) -> list[float]:
        """Ends of the hard phase, the information-theoretic and the algorithmic threshold, between which the Bayes-optimal
        error is not reached from an uninformed start.
        """
        return [self.information_theoretic.value, self.algorithmic.value]


@dataclass(frozen=True)
class Bifurcation:
    """Bifurcation: the sample ratio ``alpha``, with its error, at which a component (numbered from 0) starts to be learned (to
    overlap with its estimate).

    Components count from 0; alpha is 0 for components that are learned from the beginning.
    """

    component: int
    alpha: float
    error: float

    @property
    def threshold(self) -> Threshold:
        """Sample ratio of the bifurcation, with its error."""
        return Threshold(self.alpha, self.error)

    def document(self) -> JsonObject:
        """Convert the bifurcation to JSON, where components are called layers and count from 1."""
        return {"layer": self.component + 1, **self.threshold.document()}


@dataclass(frozen=True)
class Thresholds:
    """Thresholds (critical sample ratios) of a problem: weak recovery, perfect recovery, those at which components are learned
    one after the other (``sequential``), hard phase. ``reasons`` says why a threshold does not exist.

    Attributes
    ----------
    weak_recovery : Threshold or None
    perfect_recovery : Threshold or None
        Where zero error becomes stable; with a hard phase the uninformed branch may get there later.
    sequential : tuple of Bifurcation
        Components in the order in which they are learned.
    hard_phase : HardPhase or None
    reasons : dict
        Why a threshold does not exist, by its name in the JSON.
    """

    weak_recovery: Threshold | None = None
    perfect_recovery: Threshold | None = None
    sequential: tuple[Bifurcation, ...] = ()
    hard_phase: HardPhase | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def late_recovery(self) -> Threshold | None:
        """Sample ratio where the uninformed branch reaches zero error, if it is larger than the one where zero error becomes
        stable; else None.
        """
        hard_phase, perfect_recovery = self.hard_phase, self.perfect_recovery
        is_late = (
            hard_phase
            and perfect_recovery
            and hard_phase.algorithmic.value > perfect_recovery.value
        )
        return hard_phase.algorithmic if hard_phase and is_late else None

    def by_name(self) -> dict[str, Threshold | None]:
        """Thresholds by their names in the JSON; perfect recovery is the one of the uninformed branch."""
        hard_phase = self.hard_phase
        return {
            "weak_recovery": self.weak_recovery,
            "perfect_recovery": self.late_recovery or self.perfect_recovery,
            **{
                name: getattr(hard_phase, name) if hard_phase else None
                for name in HARD_PHASE
            },
        }

    @classmethod
    def read(cls, document: JsonObject) -> Self:
        """Read thresholds from their JSON object."""
        perfect_recovery = document["perfect_recovery"] or {}
        hard_phase_thresholds = [Threshold.read(document[name]) for name in HARD_PHASE]
        return cls(
            Threshold.read(document["weak_recovery"]),
            Threshold.read(
                perfect_recovery.get("informed") or perfect_recovery or None
            ),
            tuple(
                Bifurcation(
                    bifurcation["layer"] - 1, bifurcation["value"], bifurcation["error"]
                )
                for bifurcation in document["sequential"]
            ),
            HardPhase(*(threshold for threshold in hard_phase_thresholds if threshold))
            if all(hard_phase_thresholds)
            else None,
            document["reasons"],
        )

    def document(self) -> JsonObject:
        """Convert the thresholds to JSON. ``informed_threshold`` is the sample ratio where zero error becomes stable.

        ``weak_recovery``, ``perfect_recovery``, ``spinodal`` (the informed branch begins), ``information_theoretic`` (it becomes
        the Bayes-optimal one), ``algorithmic`` (the uninformed branch ends): ``{"value", "error"}`` or None; ``sequential``: a
        list of ``{"layer", "value", "error"}``; ``hard_phase``: ``[from, to]`` or None; ``reasons``.
        """
        thresholds = {
            name: threshold and threshold.document()
            for name, threshold in self.by_name().items()
        }
        weak_recovery = thresholds.pop("weak_recovery")
        perfect_recovery = thresholds.pop("perfect_recovery")
        if self.late_recovery and perfect_recovery and self.perfect_recovery:
            informed_threshold = self.perfect_recovery.document()
            perfect_recovery |= {"branch": "uninformed", "informed": informed_threshold}
        hard_phase = self.hard_phase
        return {
            "weak_recovery": weak_recovery,
            "perfect_recovery": perfect_recovery,
            "sequential": [bifurcation.document() for bifurcation in self.sequential],
            **thresholds,
            "hard_phase": hard_phase.ends if hard_phase else None,
            "reasons": self.reasons,
        }


NO_THEORY = "it brings no theory of its own"
"""Why nothing is predicted for an algorithm that has no ``theory``."""


@dataclass(frozen=True, eq=False)
class Question:
    """Base class of questions to theory about a problem."""

    problem: Problem


@dataclass(frozen=True, eq=False)
class PointsQuestion(Question):
    """Question for the fixed points of state evolution at several sample ratios ``alphas``, at each the Bayes-optimal one
    first.
    """

    alphas: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class LineQuestion(Question):
    """Question for the fixed points along a line of a figure (theory as a curve over alpha), at all sample ratios ``alphas``
    together.
    """

    alphas: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ThresholdsQuestion(Question):
    """Question for the critical sample ratios of a problem; with ``if_cheap`` it is answered only if that does not
    take minutes.
    """

    if_cheap: bool = False


@dataclass(frozen=True, eq=False)
class PredictionQuestion(Question):
    """Question for the prediction of an algorithm at a sample ratio alpha, under the conditions of its runs (such as their
    dimension).
    """

    algorithm: Specification
    alpha: float
    conditions: Conditions


@dataclass(frozen=True, eq=False)
class FloorQuestion(Question):
    """Question for the smallest error that a first-order method can have after every number of passes, at sample ratio alpha."""

    alpha: float


@dataclass(frozen=True, eq=False)
class Floor:
    """Smallest errors ``mse`` (k, P) that a first-order method can have after 0, 1, 2, ... passes over the data, as D grows, and
    the numerical error (P,) of the last ones; ``is_proven`` says whether this is a theorem, or a conjecture.
    """

    mse: Host
    mse_error: Host
    is_proven: bool

    @classmethod
    def read(cls, document: JsonObject) -> Self:
        """Read a floor from its JSON object."""
        mse, error = (
            np.asarray(document[name], dtype=float) for name in ("mse", "mse_error")
        )
        return cls(mse, error, document["is_proven"])

    def document(self) -> JsonObject:
        """Convert the floor to JSON."""
        return {
            "mse": self.mse.tolist(),
            "mse_error": np.ravel(self.mse_error).tolist(),
            "is_proven": self.is_proven,
        }

    def after(self, passes: float | Host, component: int = 0) -> Host:
        """Smallest errors of a component after some numbers of passes, interpolated in their logarithm; the last ones after more
        passes than are known.
        """
        log_errors = np.log(np.maximum(self.mse[:, component], 1e-300))
        return np.exp(np.interp(passes, np.arange(len(log_errors)), log_errors))


@dataclass(frozen=True)
class Check:
    """Check of one reported number (``printed``, with its ``error``) against its Monte Carlo value (``drawn``, with its
    ``standard_error``). ``bound`` marks a printed number that is an upper bound, ``effective`` is the effective number of draws,
    ``draws`` their number, ``stopped`` says that the time ran out before enough were made, and ``alpha`` and ``branch`` are those
    of the theory point.

    Attributes
    ----------
    quantity : str
        ``"Qhat (posterior)"`` and ``"Qhat (teacher)"``: the Qhat of the printed overlap against ``kappa alpha I`` from either
        mean, with the error of alpha; ``"MSE"``: error of the fixed point at the printed sample ratio, by one Newton step;
        ``"signal"``: error of the denoised signal; ``"unlearned"`` and ``"perfect recovery"``: a rate that must not be above 1
        for the point to be stable; ``"generalization bayes"`` etc.
    component : int or None
        From 0.
    printed, error, drawn, standard_error : float
    bound : bool
        Whether the printed number is an upper bound.
    effective : float
        How many draws carry the mean, ``(sum |x|)^2 / sum x^2``.
    draws : int
        How many were made at this point.
    stopped : bool
        Whether they were ended by the clock, or by ``MAX_DRAWS``, before the point excluded what it should.
    alpha, branch : float or None, str
        Of the point; for an algorithm with wrong assumptions the branch is its label.
    """

    quantity: str
    component: int | None
    printed: float
    error: float
    drawn: float
    standard_error: float
    bound: bool = False
    effective: float = math.inf
    draws: int = 0
    stopped: bool = False
    alpha: float | None = None
    branch: str = ""

    @property
    def combined_error(self) -> float:
        """Combined standard error of the printed number and of the Monte Carlo mean."""
        return math.hypot(
            self.error, self.standard_error, 1e-9 * max(abs(self.printed), 1e-3)
        )

    @property
    def excludes(self) -> float | None:
        """Smallest relative error of the printed number that this check detects with probability 0.9; None if too few draws."""
        return (
            DETECTED * self.combined_error / abs(self.printed)
            if self.has_enough_draws and self.printed
            else None
        )

    @property
    def has_enough_draws(self) -> bool:
        """Whether enough draws contribute to the mean for its standard error to be meaningful."""
        return (
            self.effective >= FEWEST_EFFECTIVE
            or self.printed == self.error == self.drawn == 0.0
        )

    @property
    def z(self) -> float:
        """Difference (z-score), drawn minus printed, in units of the standard errors of both combined; 0 if a bound holds or
        there are too few draws.
        """
        if not self.has_enough_draws:
            return 0.0
        difference = self.drawn - self.printed
        return (
            0.0 if self.bound and difference < 0 else difference / self.combined_error
        )

    @property
    def agrees(self) -> bool:
        """Whether the printed number is within ``LARGEST_Z`` combined errors of its Monte Carlo value."""
        return abs(self.z) <= LARGEST_Z

    def draws_factor(self, resolve: float) -> float:
        """Factor by which draws must grow for the check to detect a relative error ``resolve`` of the printed number; 1 if no
        more are needed.
        """
        if not self.has_enough_draws:
            return 1.5 * FEWEST_EFFECTIVE / max(self.effective, 1.0)
        allowed_error = resolve * abs(self.printed) / DETECTED
        # Draws cannot make the printed number's own error smaller: beyond half of it they are of no use.
        allowed_error = max(
            math.sqrt(max(allowed_error**2 - self.error**2, 0.0)), self.error / 2
        )
        is_bound_satisfied = (
            self.bound and self.printed - self.drawn > DETECTED * self.standard_error
        )
        return (
            1.0
            if is_bound_satisfied or self.standard_error <= allowed_error
            else (self.standard_error / allowed_error) ** 2
        )

    def document(self) -> JsonObject:
        """Convert the check to JSON; components count from 1."""
        check_fields = asdict(self)
        point_fields = {name: check_fields.pop(name) for name in ("alpha", "branch")}
        del check_fields["effective"]
        if self.component is not None:
            check_fields["component"] += 1
        z = self.z if self.has_enough_draws else None
        return {**point_fields, **check_fields, "z": z, "excludes": self.excludes}


def compare(
    quantity: str,
    component: int | None,
    printed: float,
    error: float,
    samples: Host,
    stated: float = 0.0,
    **check_options: Any,
) -> Check:
    """Check a ``printed`` number and its ``error``, named by its ``quantity`` and component, against the mean of independent
    samples (n,) of systematic error ``stated``; ``check_options`` are further fields of the ``Check``.
    """
    standard_error = math.hypot(samples.std(ddof=1) / math.sqrt(len(samples)), stated)
    check_options = {"effective": effective_sample_size(samples)} | check_options
    return Check(
        quantity,
        component,
        float(printed),
        float(error),
        float(samples.mean()),
        standard_error,
        **check_options,
    )
