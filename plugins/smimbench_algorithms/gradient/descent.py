"""The base class of all gradient methods: batches, schedules, constraints, students; a method adds its rule for the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend import NarrowInputs, StreamedInputs, matching, namespace, to_host
from smimbench.derive import gives_probabilities, observable
from smimbench.interfaces import Algorithm, Array, Capabilities, Info, ParameterError, Plan
from smimbench.numerics import symmetric
from smimbench_algorithms.gradient.loss import LOSSES, fitting_loss, loss_gradient, surrogate
from smimbench_algorithms.nuclear.limit import wide_factor_point

if TYPE_CHECKING:
    from smimbench.interfaces import AlgorithmPrediction, Conditions, Data
    from smimbench.problem import Problem

SCHEDULES = ("constant", "step", "cosine", "1/t")

SURROGATE_BETA = (1.0, 20.0)
"""First and last inverse temperature of the softmax that replaces hardmax."""

DEFAULT_STEPS = 1000
"""Steps of a run that gives neither steps nor epochs."""

SEEN_AGAIN = "descent that sees samples again has no closed form: every step depends on all earlier ones"


class DescentState(NamedTuple):
    """What is iterated; with students, factor and signal have one more axis in front."""

    factor: Array
    signal: Array  # what the factor stands for
    memory: tuple[Array, ...]  # of the method: momentum, moments
    done: int  # steps made
    total: int  # steps that will be made
    samples: int  # processed so far, repeated ones counted each time
    targets: Array  # labels as a user would measure them
    order: np.ndarray[Any, Any]  # samples of this epoch that are still to be used
    rng: np.random.Generator  # order of the samples, or the stream of fresh ones
    loss: str
    norm: Array | None  # mean square of the estimate's entries, where labels do not determine their scale


@dataclass(frozen=True)
class Descent(Algorithm):
    """Base of the gradient methods; see its subclasses for the parameters' meaning.

    A method of one's own is a subclass with a rule for its step, ``move``, and where that remembers something ``first_memory``.
    """

    learning_rate: float = 0.1
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    online: bool = False
    loss: str | None = None
    schedule: str = "constant"
    decay_steps: int | None = None
    decay_factor: float | None = None
    spherical: bool = False
    width: int | None = None
    surrogate_beta: tuple[float, float] | None = None

    capabilities = Capabilities()

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ParameterError("learning_rate", f"must be > 0, got {self.learning_rate}")
        for key in ("steps", "epochs", "batch", "width", "decay_steps"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ParameterError(key, f"must be at least 1, got {value}")
        if self.steps is not None and self.epochs is not None:
            raise ParameterError("epochs", "must be left out where steps are given")
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", DEFAULT_STEPS)
        if self.online and self.batch is None:
            raise ParameterError("batch", "is missing: how many fresh samples a step takes")
        if self.online and self.epochs is not None:
            raise ParameterError("epochs", "must be left out with online = true: no sample is seen twice; give steps")
        if self.loss is not None and self.loss not in LOSSES:
            raise ParameterError("loss", f"must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        self._check_schedule()
        low, high = self.surrogate_beta or SURROGATE_BETA
        if not 0 < low <= high < math.inf:
            raise ParameterError(
                "surrogate_beta", f"must be two numbers > 0, the second not below the first, got {[low, high]}"
            )

    def _check_schedule(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ParameterError("schedule", f"must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        needs = {"step": ("decay_steps", "decay_factor"), "1/t": ("decay_steps",)}.get(self.schedule, ())
        for key in ("decay_steps", "decay_factor"):
            given = getattr(self, key) is not None
            if key in needs and not given:
                raise ParameterError(key, f"is missing, schedule = {self.schedule!r} needs it")
            if given and key not in needs:
                raise ParameterError(key, f"has no effect with schedule = {self.schedule!r} and must be left out")
        if self.decay_factor is not None and not 0 < self.decay_factor <= 1:
            raise ParameterError("decay_factor", f"must be in (0, 1], got {self.decay_factor}")

    # -- contract --------------------------------------------------------------------------------------------------

    def refuses(self, problem: Problem) -> str | None:
        """Why this problem cannot be learned by gradients, or None."""
        differentiable = problem.channel.vjp is not None
        if not differentiable and surrogate(problem, 1.0) is None:
            return f"channel {problem.channel.name!r} has no derivative"
        if differentiable and self.surrogate_beta is not None:
            return "surrogate_beta applies to channels without a derivative only; remove it"
        if problem.prior.factor is None:
            return f"prior {problem.prior.name!r} has no factor to descend on"
        if self.width is not None and problem.model.rank == "low":
            return "width applies to attention-indexed models only; remove it"
        if self.loss == "cross-entropy" and not gives_probabilities(problem):
            return (
                f"cross-entropy needs labels that are probabilities, those of channel {problem.channel.name!r} are not"
            )
        return None

    def theory(self, problem: Problem, alpha: float, conditions: Conditions) -> AlgorithmPrediction | str:
        """None in closed form: a step that sees samples again, or whose size adapts, depends on all earlier ones."""
        return "steps of adaptive size have no closed form" if self.online else SEEN_AGAIN

    def _minimum(
        self, problem: Problem, alpha: float, conditions: Conditions, decay: float
    ) -> AlgorithmPrediction | str:
        """The minimum of ``[sum_mu l + (decay/2) |W|^2] / D``, for descent with all samples in every step; or why no theory."""
        whole = not self.online and self.batch is None and not self.spherical
        if not (decay and whole and problem.model.rank == "extensive"):
            return SEEN_AGAIN
        if (self.loss or fitting_loss(problem)) != "squared":
            return "the minimum of its loss has no theory here: it is not the squared error"
        return wide_factor_point(problem, alpha, decay, conditions.dimension, self.width)

    def plan(self, data: Data) -> Plan:
        """Steps of a run on this data, and what a step reads."""
        n = data.inputs.shape[0]
        size = n if self.batch is None else self.batch if self.online else min(self.batch, n)
        steps = int(self.epochs or 0) * math.ceil(n / size) if self.steps is None else self.steps
        # Products with the factor are small in comparison.
        return Plan(steps, size, draws_fresh=self.online, cost=lambda problem, data: problem.pass_cost(data, size))

    def init(self, problem: Problem, data: Data, rng: np.random.Generator, students: int | None = None) -> DescentState:
        """Iid N(0, 1) factor; with ``students`` as many, on one leading axis, which see the same samples."""
        if self.online and data.fresh is None:
            raise ValueError("online learning needs fresh samples, and this data has no source of them")
        xp = namespace(data.inputs)
        place, axes, prior = matching(data.inputs), _component_axes(problem, data), _prior(problem)
        shape = (problem.components, data.dimension, self.width)
        draws = [prior.factor.draw(rng, *shape) for _ in range(students or 1)]
        factor = xp.asarray(draws[0] if students is None else np.stack(draws), **place)
        if self.spherical:
            factor = _on_sphere(factor, axes)
        targets = xp.astype(observable(problem.channel, data.labels), data.inputs.dtype)
        norm = None
        if problem.channel.vjp is None:
            second = np.diagonal(prior.second_moment(problem.components))
            spread = math.prod(problem.model.signal_shape(1, data.dimension)) / data.dimension
            norm = xp.reshape(xp.asarray(second / spread, **place), (-1, *[1] * len(axes)))
        return DescentState(
            factor=factor,
            signal=prior.factor.compose(factor),
            memory=self.first_memory(factor),
            done=0,
            total=int(self.plan(data).steps or 0),
            samples=0,
            targets=targets,
            order=np.empty(0, dtype=np.int64),
            rng=rng,
            loss=self.loss or fitting_loss(problem),
            norm=norm,
        )

    def step(self, problem: Problem, data: Data, state: DescentState) -> tuple[DescentState, Info]:
        """One step; the residual is the relative change of the factor (of the student that moves most)."""
        xp = namespace(state.factor)
        inputs, targets, order = self._take(problem, data, state)
        channel, notes = self._channel(problem, state)
        found = loss_gradient(
            problem, inputs, targets, state.factor, channel=channel, loss=state.loss, signal=state.signal
        )
        size = inputs.shape[0]
        gradient = found.gradient * self.normalisation(problem, data, size)
        if penalty := self.penalty(data):
            gradient = gradient + penalty * state.factor
        rate = self._rate(state.done, state.total)
        factor, memory = self.move(state.factor, gradient, state.memory, rate, state.done + 1)
        axes = _component_axes(problem, data)
        if self.spherical:
            factor = _on_sphere(factor, axes)
        residual = _relative_change(factor, state.factor, axes)
        new = state._replace(
            factor=factor,
            signal=_prior(problem).factor.compose(factor),
            memory=memory,
            done=state.done + 1,
            samples=state.samples + size,
            order=order,
        )
        estimate = self.estimate(new)  # where labels leave the scale open, that of the factor means nothing
        overlap = xp.linalg.diagonal(problem.model.inner(estimate, estimate))
        overlap = xp.max(overlap, axis=0) if overlap.ndim > 1 else overlap
        if data.start is not None:
            notes.append("the given start is not used: gradient methods begin with a random factor")
        warning = "; ".join(notes) or None
        return new, Info(residual=residual, self_overlap=overlap, warning=warning, samples=new.samples)

    def estimate(self, state: DescentState) -> Array:
        """The signal of the factor; at the prior's norm where labels do not determine it."""
        if state.norm is None:
            return state.signal
        xp = namespace(state.signal)
        axes = tuple(range(-state.norm.ndim + 1, 0))
        size = xp.mean(state.signal * state.signal, axis=axes, keepdims=True)
        return state.signal * xp.sqrt(state.norm / xp.where(size > 0, size, xp.ones_like(size)))

    def _spectrum(self, state: DescentState, decay: float) -> dict[str, Any]:
        """Eigenvalues of a matrix under weight decay, for which there may be a theory (see ``_minimum``); otherwise nothing."""
        shape = state.signal.shape
        if not decay or len(shape) < 3 or shape[-1] != shape[-2]:
            return {}
        values = namespace(state.signal).linalg.eigvalsh(symmetric(state.signal))
        return {"spectrum": to_host(values).reshape(-1).tolist()}

    # -- what a method adds: only ``move`` has to be given ----------------------------------------------------------------

    def first_memory(self, factor: Array) -> tuple[Array, ...]:
        """Memory of the method at the first step; empty unless a method overrides it."""
        return ()

    def move(
        self, factor: Array, gradient: Array, memory: tuple[Array, ...], rate: float, count: int
    ) -> tuple[Array, tuple[Array, ...]]:
        """The rule of a method for its step.

        Parameters
        ----------
        factor, gradient : array
            What is descended on, and the gradient there times ``normalisation``; with students, one more axis in front.
        memory : tuple of array
            What this rule returned at the last step; ``first_memory`` at the first.
        rate : float
            Learning rate of this step, by the schedule.
        count : int
            1 at the first step.

        Returns
        -------
        factor, memory
            After the step.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rule for its step: no method 'move'")

    def normalisation(self, problem: Problem, data: Data, size: int) -> float:
        """Factor of the gradient of the loss summed over a batch of ``size`` samples: 1 over its sample ratio."""
        return 1 / problem.model.sample_ratio(size, data.dimension)

    def penalty(self, data: Data) -> float:
        """Factor of ``|W|^2 / 2`` in the objective."""
        return 0.0

    # -- the parts of a step ---------------------------------------------------------------------------------------

    def _take(self, problem: Problem, data: Data, state: DescentState) -> tuple[Array, Array, np.ndarray[Any, Any]]:
        """Inputs and targets of this step, and the rest of the epoch."""
        n = data.inputs.shape[0]
        if self.online:
            assert data.fresh is not None
            inputs, labels = data.fresh(state.rng, int(self.batch or 1))
            target = namespace(inputs).astype(observable(problem.channel, labels), inputs.dtype)
            return inputs, target, state.order
        size = int(self.plan(data).batch or n)
        if size == n:
            return data.inputs, state.targets, state.order
        if isinstance(data.inputs, StreamedInputs) and not isinstance(data.inputs, NarrowInputs):
            raise ValueError(
                "shuffled minibatches need inputs that fit the device; use the full batch, or online = true"
            )
        order = state.order if len(state.order) else state.rng.permutation(n)
        xp = namespace(data.inputs)
        chosen = xp.asarray(order[:size], **matching(data.inputs, xp.int64))
        stored = data.inputs.stored if isinstance(data.inputs, NarrowInputs) else data.inputs
        inputs = xp.astype(xp.take(stored, chosen, axis=0), data.inputs.dtype, copy=False)
        return inputs, xp.take(state.targets, chosen, axis=0), order[size:]

    def _channel(self, problem: Problem, state: DescentState) -> tuple[Any, list[str]]:
        """The channel to differentiate, and warnings."""
        notes = []
        if self.online:
            notes = ["online: every step drew fresh samples; the row is at the sample ratio of all of them"]
        if problem.channel.vjp is not None:
            return problem.channel, notes
        low, high = self.surrogate_beta or SURROGATE_BETA
        beta = low * (high / low) ** (state.done / max(state.total - 1, 1))
        note = (
            f"surrogate: hardmax has no derivative, so softmax with beta annealed from {low:g} to {high:g} was "
            f"descended on; its scale is the prior's"
        )
        return surrogate(problem, beta), [note, *notes]

    def _rate(self, count: int, total: int) -> float:
        if self.schedule == "step":
            return self.learning_rate * float(self.decay_factor or 1) ** (count // int(self.decay_steps or 1))
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * count / total)) / 2
        if self.schedule == "1/t":
            return self.learning_rate / (1 + count / int(self.decay_steps or 1))
        return self.learning_rate


def _prior(problem: Problem) -> Any:
    """The prior, which has the optional methods that ``refuses`` asks for."""
    return problem.prior


def _component_axes(problem: Problem, data: Data) -> tuple[int, ...]:
    """Axes of one component, of the signal, (D,) or (D, D), as of the factor, (D,) or (D, width)."""
    return tuple(range(1 - len(problem.model.signal_shape(1, data.dimension)), 0))


def _on_sphere(factor: Array, axes: tuple[int, ...]) -> Array:
    """Every component scaled to the norm of iid N(0, 1) entries."""
    xp = namespace(factor)
    return factor / xp.sqrt(xp.mean(factor * factor, axis=axes, keepdims=True))


def _relative_change(new: Array, old: Array, axes: tuple[int, ...]) -> Array:
    xp = namespace(new)
    change = new - old
    axes = (axes[0] - 1, *axes)  # all components of a student
    return xp.max(xp.sqrt(xp.mean(change * change, axis=axes) / xp.mean(new * new, axis=axes)))
