"""Base classes of gradient methods: batches, schedules, constraints, students and momentum; subclasses add the update rule."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from smimbench.backend import NarrowInputs, StreamedInputs, matching, namespace, to_host
from smimbench.derive import gives_probabilities, observable
from smimbench.interfaces import (
    Algorithm,
    AlgorithmPrediction,
    Array,
    Capabilities,
    Channel,
    Conditions,
    Data,
    Host,
    Info,
    Plan,
    require,
)
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient.loss import (
    LOSSES,
    LossGradient,
    factor_of,
    fitting_loss,
    loss_gradient,
    surrogate,
)
from smimbench_attention.algorithms.gradient.online.matrix_theory import matrix_theory
from smimbench_attention.algorithms.gradient.online.schedule import (
    optimal_rates,
    why_no_optimal_rates,
)
from smimbench_attention.algorithms.gradient.state import (
    DescentState,
    axes_of_component,
    entry_by_entry,
    project_to_sphere,
    with_mean_square,
)
from smimbench_attention.algorithms.nuclear.limit import wide_factor_point
from smimbench_attention.algorithms.nuclear.shrinkage import spectrum

SCHEDULES = {
    "constant": (),
    "step": ("decay_steps", "decay_factor"),
    "cosine": (),
    "1/t": ("decay_steps",),
    "optimal": (),
}
"""Learning-rate schedules, with the parameters that each requires."""

SURROGATE_BETA = (1.0, 20.0)
"""First and last inverse temperature of the softmax that replaces hardmax."""

DEFAULT_STEPS = 1000
"""Default number of steps, when neither steps nor epochs are given."""

NO_REUSE_THEORY = (
    "where samples are reused, theory exists for sgd and muon only, and for low-rank "
    "signals"
)


@dataclass(frozen=True)
class Descent(Algorithm):
    """Base class of gradient methods, whose fields are their common parameters: length of the run, batches, loss,
    learning-rate schedule and constraints; subclasses document them.

    A method of one's own is a subclass with a rule for its step, ``move``, and where that remembers something ``first_memory``.
    One whose rule treats students apart, in the same bits as alone, says ``steps_jointly = True`` itself; it is not inherited.
    """

    learning_rate: float = 0.1
    steps: int | None = None  # steps of the whole run
    epochs: int | None = None  # epochs of the whole run
    batch: int | None = None  # samples of a step
    online: bool = False  # draw fresh samples in every step
    loss: str | None = None  # name of the loss
    schedule: str = "constant"  # how the learning rate falls
    decay_steps: int | None = None  # steps over which the schedule decays
    decay_factor: float | None = None  # factor of one decay of the schedule
    spherical: bool = False  # keep the norm of every component
    width: int | None = None  # columns of the factor
    surrogate_beta: tuple[float, float] | None = (
        None  # inverse temperatures of softmax in place of hardmax
    )

    capabilities = Capabilities()

    def __post_init__(self) -> None:
        """Check that every parameter is in its range and fits the others; set the default number of steps."""
        require_parameter = functools.partial(require, self)
        require_parameter("learning_rate", self.learning_rate > 0, "> 0")
        for key in ("steps", "epochs", "batch", "width", "decay_steps"):
            length = getattr(self, key)
            require_parameter(key, length is None or length >= 1, "at least 1")
        has_one_length = self.steps is None or self.epochs is None
        require_parameter("epochs", has_one_length, "left out where steps are given")
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", DEFAULT_STEPS)
        if self.online:
            require_parameter(
                "batch",
                bool(self.batch),
                "given with online = true: fresh samples of a step",
            )
            require_parameter(
                "epochs", not self.epochs, "left out with online = true; give steps"
            )
        require_parameter(
            "loss", self.loss in (None, *LOSSES), f"one of {', '.join(LOSSES)}"
        )
        require_parameter(
            "schedule", self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}"
        )
        if self.schedule == "optimal":
            require_parameter(
                "schedule",
                self.online and self.name == "sgd",
                "another than 'optimal', which is known for sgd with online = true only",
            )
            for key in ("learning_rate", "momentum", "weight_decay", "spherical"):
                require_parameter(
                    key,
                    getattr(self, key) == getattr(type(self), key),
                    "left out with schedule = 'optimal', which computes the rates of plain sgd",
                )
        for key in ("decay_steps", "decay_factor"):
            is_required = key in SCHEDULES[self.schedule]
            requirement = f"{'given' if is_required else 'left out'} with schedule = {self.schedule!r}"
            require_parameter(
                key, is_required == (getattr(self, key) is not None), requirement
            )
        decay_factor = self.decay_factor
        require_parameter(
            "decay_factor", decay_factor is None or 0 < decay_factor <= 1, "in (0, 1]"
        )
        lowest_beta, highest_beta = self.surrogate_beta or SURROGATE_BETA
        require_parameter(
            "surrogate_beta",
            0 < lowest_beta <= highest_beta < math.inf,
            "two numbers > 0, the second not below the first",
        )

    # -- contract --------------------------------------------------------------------------------------------------

    def refuses(self, problem: Problem) -> str | None:
        """Reason why gradient descent cannot learn this problem, or None."""
        is_differentiable = problem.channel.vjp is not None
        if not is_differentiable and surrogate(problem, 1.0) is None:
            return f"channel {problem.channel.name!r} has no derivative"
        if is_differentiable and self.surrogate_beta is not None:
            return "surrogate_beta applies to channels without a derivative only; remove it"
        if problem.prior.factor is None:
            return f"prior {problem.prior.name!r} has no factor to descend on"
        if self.width is not None and problem.model.rank == "low":
            return "width applies to attention-indexed models only; remove it"
        if self.loss == "cross-entropy" and not gives_probabilities(problem):
            return f"cross-entropy needs labels that are probabilities, unlike those of channel {problem.channel.name!r}"
        if self.schedule == "optimal":
            return why_no_optimal_rates(problem, self.loss or fitting_loss(problem))
        return None

    def theory(
        self, problem: Problem, alpha: float, conditions: Conditions
    ) -> AlgorithmPrediction | str:
        """Predict descent on fresh samples of matrices, under the conditions of the runs (dimension); otherwise return the reason
        why there is no theory: with adaptive step sizes the equations of ``sgd`` do not apply. alpha is the sample ratio.
        """
        has_one_gradient = type(self).advance is Descent.advance
        if self.online and problem.model.rank == "extensive" and has_one_gradient:
            return matrix_theory(self, problem, alpha, conditions)
        if self.online:
            return "gradient descent with adaptive step sizes has no closed equations"
        return NO_REUSE_THEORY

    def _minimum(
        self, problem: Problem, alpha: float, conditions: Conditions, decay: float
    ) -> AlgorithmPrediction | str:
        """Predict the minimum of the loss at sample ratio alpha with weight-decay penalty ``decay``, which full-batch descent
        reaches, under the conditions of the runs (dimension), or return why there is no theory.
        """
        uses_full_batch = not self.online and self.batch is None and not self.spherical
        if not (decay and uses_full_batch and problem.model.rank == "extensive"):
            return NO_REUSE_THEORY
        if (self.loss or fitting_loss(problem)) != "squared":
            return (
                "theory for the minimum of the loss exists for the squared error only"
            )
        return wide_factor_point(
            problem, alpha, decay, conditions.dimension, self.width
        )

    def plan(self, data: Data) -> Plan:
        """Plan the number of steps of a run on this data, the batch size and the cost of a step."""
        sample_count = data.inputs.shape[0]
        batch_size = self.batch or sample_count
        if not self.online:
            batch_size = min(batch_size, sample_count)
        steps = self.steps
        if steps is None:
            steps = (self.epochs or 0) * math.ceil(sample_count / batch_size)
        # Products with the factor are small in comparison.
        return Plan(
            steps,
            batch_size,
            draws_fresh=self.online,
            cost=lambda problem, data: problem.pass_cost(data, batch_size),
        )

    def init(
        self,
        problem: Problem,
        data: Data,
        rng: np.random.Generator,
        students: int | None = None,
    ) -> DescentState:
        """Initial state with an iid N(0, 1) factor of P components; ``students`` adds a leading axis of independent factors.
        ``mean_square`` is that of the prior's signal entries, to rescale estimates where labels do not determine it.
        """
        if self.online and data.fresh is None:
            raise ValueError(
                "online = true needs fresh samples, but this data set is fixed; set online = false"
            )
        xp = namespace(data.inputs)
        device_and_dtype = matching(data.inputs)
        P = problem.components
        factorization = factor_of(problem)
        initial_factors = [
            factorization.draw(rng, P, data.dimension, self.width)
            for _ in range(students or 1)
        ]
        component_axes = axes_of_component(problem, data)
        factor = xp.asarray(
            initial_factors[0] if students is None else np.stack(initial_factors),
            **device_and_dtype,
        )
        if self.spherical:
            factor = project_to_sphere(factor, component_axes)
        mean_square = None
        if problem.channel.vjp is None:
            second_moments = np.diagonal(problem.prior.second_moment(P))
            entry_count = math.prod(problem.model.signal_shape(1, data.dimension))
            mean_square = xp.asarray(
                second_moments / (entry_count / data.dimension), **device_and_dtype
            )
            mean_square = xp.reshape(mean_square, (-1, *[1] * len(component_axes)))
        targets = observable(problem.channel, data.labels)
        return DescentState(
            factor,
            factorization.compose(factor),
            self.first_memory(factor),
            targets=xp.astype(targets, data.inputs.dtype),
            remaining_samples=np.empty(0, dtype=np.int64),
            rng=rng,
            mean_square=mean_square,
            loss=self.loss or fitting_loss(problem),
            total_steps=int(self.plan(data).steps or 0),
            rates=self.computed_rates(problem, data.dimension),
        )

    def step(
        self, problem: Problem, data: Data, state: DescentState
    ) -> tuple[DescentState, Info]:
        """Take one gradient step; the residual in the returned ``Info`` is the relative change of the factor (largest over
        students).
        """
        xp = namespace(state.factor)
        *batch, remaining_samples = self._batch(problem, data, state)
        next_state, info = self._descend(problem, data, state, *batch)
        self_overlap = info.self_overlap
        if self_overlap.ndim > 1:
            self_overlap = xp.max(self_overlap, axis=0)
        return next_state._replace(remaining_samples=remaining_samples), info._replace(
            residual=xp.max(info.residual), self_overlap=self_overlap
        )

    def joint_step(
        self, problem: Problem
    ) -> (
        Callable[[list[Data], list[DescentState]], list[tuple[DescentState, Info]]]
        | None
    ):
        """Function that makes one step of several runs with all samples, each on its own, with the runs on the axis of the
        students; None for minibatches and fresh samples, and for methods that do not say ``steps_jointly``.
        """
        if not vars(type(self)).get("steps_jointly") or self.online or self.batch:
            return None
        latest_states: list[DescentState] = []
        joint_state: Any = None  # those states as one
        joint_inputs: Array = None

        def step(
            data_of_runs: list[Data], states: list[DescentState]
        ) -> list[tuple[DescentState, Info]]:
            """Make one step of several runs."""
            nonlocal joint_state, joint_inputs
            if [*map(id, states)] != [*map(id, latest_states)]:
                xp = namespace(states[0].factor)
                joint_inputs = xp.stack([data.inputs for data in data_of_runs])
                arrays_of_runs = zip(*(state.arrays for state in states))
                joint_state = states[0].with_arrays(*map(xp.stack, arrays_of_runs))
                if problem.model.forward_gram is not None:
                    targets = entry_by_entry(joint_state.targets)
                    joint_state = joint_state._replace(targets=targets)
            joint_state, info = self._descend(
                problem, data_of_runs[0], joint_state, joint_inputs, joint_state.targets
            )
            # The generator is that of the first run: where all samples are used, none draws any more.
            latest_states[:] = [
                joint_state.with_arrays(*arrays) for arrays in zip(*joint_state.arrays)
            ]
            reports = zip(info.residual, info.self_overlap)
            infos = [
                info._replace(residual=residual, self_overlap=self_overlap)
                for residual, self_overlap in reports
            ]
            return list(zip(latest_states, infos))

        return step

    def _descend(
        self,
        problem: Problem,
        data: Data,
        state: DescentState,
        batch_inputs: Array,
        batch_targets: Array,
    ) -> tuple[DescentState, Any]:
        """Take one gradient step on a batch and return the state after it and a report, with one residual and one self-overlap
        for every student. Inputs and targets of a batch may have the axis of the students in front; ``data`` are then those of
        one of them.
        """
        xp = namespace(state.factor)
        factorization = factor_of(problem)
        component_axes = axes_of_component(problem, data)
        run_fraction = state.steps_made / max(state.total_steps - 1, 1)
        differentiated_channel, warnings = self._channel(problem, run_fraction)
        batch_size = batch_inputs.shape[-3]
        processed_samples = state.processed_samples
        gradient_normalization = self.normalisation(problem, data, batch_size)
        penalty = self.penalty(data)
        # Only a method with an ``advance`` of its own sees the loss.
        with_loss = type(self).advance is not Descent.advance

        def objective(factor: Array) -> LossGradient:
            """Loss of the batch at a factor, normalized and with the weight-decay penalty added, and its gradient with respect to
            the factor.
            """
            nonlocal processed_samples
            processed_samples += batch_size
            summed_loss = loss_gradient(
                problem,
                batch_inputs,
                batch_targets,
                factor,
                channel=differentiated_channel,
                loss=state.loss,
                signal=state.signal if factor is state.factor else None,
                with_loss=with_loss,
            )
            loss = gradient_normalization * summed_loss.loss
            gradient = gradient_normalization * summed_loss.gradient
            if penalty:
                gradient = gradient + penalty * factor
            if penalty and with_loss:
                factor_axes = tuple(range(loss.ndim, factor.ndim))
                loss = loss + penalty / 2 * xp.sum(factor * factor, axis=factor_axes)
            return LossGradient(loss, gradient)

        learning_rate = (
            self.learning_rate_at(state.steps_made, state.total_steps)
            if state.rates is None
            else float(state.rates[state.steps_made])
        )
        factor, memory = self.advance(
            objective, state.factor, state.memory, learning_rate, state.steps_made + 1
        )
        if self.spherical:
            factor = project_to_sphere(factor, component_axes)
        next_state = state._replace(
            factor=factor,
            signal=factorization.compose(factor),
            memory=memory,
            steps_made=state.steps_made + 1,
            processed_samples=processed_samples,
        )
        factor_change = factor - state.factor
        student_axes = (component_axes[0] - 1, *component_axes)
        squared_change = xp.sum(factor_change * factor_change, axis=student_axes)
        relative_change = xp.sqrt(
            squared_change / xp.sum(factor * factor, axis=student_axes)
        )
        # Where labels do not determine the scale, that of the factor is meaningless.
        estimate = self.estimate(next_state)
        self_overlap = xp.linalg.diagonal(problem.model.inner(estimate, estimate))
        if data.start is not None:
            warnings.append(
                "the given start is not used: gradient methods begin with a random factor"
            )
        return next_state, Info(
            relative_change,
            self_overlap=self_overlap,
            warning="; ".join(warnings) or None,
            samples=next_state.processed_samples,
        )

    def estimate(self, state: DescentState) -> Array:
        """Signal formed from the factor, rescaled to the prior's norm where labels do not determine the norm."""
        return with_mean_square(state.signal, state.mean_square)

    def findings(self, state: DescentState) -> dict[str, object]:
        """Findings of a run that its record keeps: the eigenvalue spectrum of the estimated matrix, if there is weight decay
        (theory may predict it).
        """
        signal_shape = state.signal.shape
        is_matrix = len(signal_shape) >= 3 and signal_shape[-1] == signal_shape[-2]
        if not is_matrix or not getattr(self, "weight_decay", 0):
            return {}
        is_symmetric = (
            state.factor.shape[-2] == signal_shape[-2]
        )  # else it is Q above K
        eigenvalues = spectrum(state.signal, is_symmetric)
        return {"spectrum": to_host(eigenvalues).reshape(-1).tolist()}

    # -- what subclasses override: only ``move`` is required ----------------------------------------------------------------

    def first_memory(self, factor: Array) -> tuple[Array, ...]:
        """Initial memory of the optimizer, shaped like the factor (e.g. a velocity); empty unless a subclass overrides it."""
        return ()

    def advance(
        self,
        objective: Callable[[Array], LossGradient],
        factor: Array,
        memory: tuple[Array, ...],
        rate: float,
        count: int,
    ) -> tuple[Array, tuple[Array, ...]]:
        """Evaluate the gradient of ``objective`` (loss and gradient of the batch) at the factor and take step number ``count``
        with ``move`` at learning rate ``rate``, from the optimizer's ``memory``; methods with several gradients override it.
        """
        return self.move(factor, objective(factor).gradient, memory, rate, count)

    def move(
        self,
        factor: Array,
        gradient: Array,
        memory: tuple[Array, ...],
        rate: float,
        count: int,
    ) -> tuple[Array, tuple[Array, ...]]:
        """Apply the update rule of the method once to a factor with this gradient, at learning rate ``rate`` in step number
        ``count`` (from 1), with the method's ``memory``; return the new factor and memory. Each subclass defines it.

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
        raise NotImplementedError(
            f"{type(self).__name__} does not define 'move', the update rule of a gradient method"
        )

    def normalisation(self, problem: Problem, data: Data, batch_size: int) -> float:
        """Factor that normalizes the gradient summed over a batch of ``batch_size`` samples: 1 over the sample ratio of the
        batch.
        """
        return 1 / problem.model.sample_ratio(batch_size, data.dimension)

    def penalty(self, data: Data) -> float:
        """Coefficient of the penalty ``|W|^2 / 2`` of the factor W in the objective."""
        return 0.0

    # -- the parts of a step ---------------------------------------------------------------------------------------

    def _batch(
        self, problem: Problem, data: Data, state: DescentState
    ) -> tuple[Array, Array, Host]:
        """Inputs and targets of the batch of this step, and the indices of the samples that remain in this epoch."""
        xp = namespace(data.inputs)
        sample_count = data.inputs.shape[0]
        if self.online:
            assert data.fresh is not None
            inputs, labels = data.fresh(state.rng, int(self.batch or 1))
            targets = observable(problem.channel, labels)
            return inputs, xp.astype(targets, inputs.dtype), state.remaining_samples
        batch_size = min(self.batch or sample_count, sample_count)
        if batch_size == sample_count:
            return data.inputs, state.targets, state.remaining_samples
        stored_inputs = data.inputs
        if isinstance(stored_inputs, NarrowInputs):
            stored_inputs = stored_inputs.stored
        elif isinstance(stored_inputs, StreamedInputs):
            raise ValueError(
                "shuffled minibatches need inputs that fit in the memory of the device; leave out batch, or set online = true"
            )
        remaining_samples = state.remaining_samples
        if not len(remaining_samples):
            remaining_samples = state.rng.permutation(sample_count)
        batch_indices = xp.asarray(
            remaining_samples[:batch_size], **matching(data.inputs, xp.int64)
        )
        inputs = xp.take(stored_inputs, batch_indices, axis=0)
        inputs = xp.astype(inputs, data.inputs.dtype, copy=False)
        return (
            inputs,
            xp.take(state.targets, batch_indices, axis=0),
            remaining_samples[batch_size:],
        )

    def _channel(
        self, problem: Problem, run_fraction: float
    ) -> tuple[Channel | None, list[str]]:
        """Channel to differentiate at the fraction ``run_fraction`` of the run, between 0 and 1, and warnings about it. In place
        of hardmax it is softmax, whose inverse temperature beta rises during the run.
        """
        channel_warnings = []
        if self.online:
            channel_warnings.append(
                "online: every step drew fresh samples; the row is at the sample ratio of all of them"
            )
        if problem.channel.vjp is not None:
            return problem.channel, channel_warnings
        lowest_beta, highest_beta = self.surrogate_beta or SURROGATE_BETA
        surrogate_warning = (
            f"surrogate: hardmax has no derivative, so softmax with beta annealed from {lowest_beta:g} to {highest_beta:g} was "
            f"descended on; its scale is the prior's"
        )
        beta = lowest_beta * (highest_beta / lowest_beta) ** run_fraction
        return surrogate(problem, beta), [surrogate_warning, *channel_warnings]

    def computed_rates(self, problem: Problem, dimension: int) -> Host | None:
        """Learning rates of all steps in ``dimension`` D where they are computed before a run, None where ``learning_rate_at``
        has them.
        """
        if self.schedule != "optimal":
            return None
        loss = self.loss or fitting_loss(problem)
        return optimal_rates(problem, loss, self.steps or 0, self.batch or 0, dimension)

    def learning_rate_at(self, step: float, total_steps: int) -> float:
        """Learning rate of a step (0, 1, ...) of a run of ``total_steps`` according to the schedule."""
        initial_rate = self.learning_rate
        if self.schedule == "step":
            decay_count = step // int(self.decay_steps or 1)
            return float(initial_rate * (self.decay_factor or 1.0) ** decay_count)
        if self.schedule == "cosine":
            return initial_rate * (1 + math.cos(math.pi * step / total_steps)) / 2
        if self.schedule == "1/t":
            return initial_rate / (1 + step / int(self.decay_steps or 1))
        return initial_rate


@dataclass(frozen=True)
class MomentumDescent(Descent):
    """Gradient descent along a velocity (momentum); the parameters are those of ``sgd``. ``direction_kind`` says what a step
    follows: the velocity, its signs or its polar factor.
    """

    momentum: float = 0.0
    nesterov: bool = False  # step along the next velocity
    weight_decay: float = 0.0  # coefficient of |W|^2 / 2

    # Of a step: along the velocity ("gradient"), its signs ("sign") or its polar factor ("polar").
    direction_kind: ClassVar[str] = "gradient"

    def __post_init__(self) -> None:
        """Check that momentum and weight decay are in their ranges."""
        super().__post_init__()
        require(self, "momentum", 0 <= self.momentum < 1, "in [0, 1)")
        require(
            self,
            "nesterov",
            not self.nesterov or self.momentum > 0,
            "false without momentum",
        )
        require(self, "weight_decay", self.weight_decay >= 0, ">= 0")

    def first_memory(self, factor: Array) -> tuple[Array, ...]:
        """Initial memory of the optimizer: a velocity of zero if there is momentum, else nothing."""
        return (namespace(factor).zeros_like(factor),) if self.momentum else ()

    def penalty(self, data: Data) -> float:
        """Coefficient of the weight-decay penalty ``|W|^2 / 2`` of the factor W in the loss."""
        return self.weight_decay

    def move(
        self,
        factor: Array,
        gradient: Array,
        memory: tuple[Array, ...],
        rate: float,
        count: int,
    ) -> tuple[Array, tuple[Array, ...]]:
        """Update the velocity kept in ``memory`` by the gradient and take step number ``count`` along it, at learning rate
        ``rate``.
        """
        if not self.momentum:
            return factor - rate * self.direction(gradient), ()
        velocity = self.momentum * memory[0] + gradient
        search_direction = velocity
        if self.nesterov:
            search_direction = gradient + self.momentum * velocity
        return factor - rate * self.direction(search_direction), (velocity,)

    def direction(self, velocity: Array) -> Array:
        """Direction of a step for a given velocity; the velocity itself unless a subclass overrides it."""
        return velocity
