"""Adam and AdamW: gradient descent on the factor of the signal, with all samples, minibatches or fresh samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from smimbench.backend import namespace
from smimbench.interfaces import AlgorithmPrediction, Array, Conditions, Data, require
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient import Descent


@dataclass(frozen=True)
class Adam(Descent):
    r"""Adam on all samples, minibatches or a stream of fresh samples.

    On the loss ``L = [sum_mu l(f(z_mu), t_mu) + (lambda / 2) |W|^2] / D``,

    .. math::

        m &\leftarrow \beta_1 m + (1-\beta_1) \nabla L, \quad
        v \leftarrow \beta_2 v + (1-\beta_2) (\nabla L)^2 \\
        W &\leftarrow W - \eta\, \hat m / (\sqrt{\hat v} + \epsilon)

    with bias-corrected moments. With ``loss = "squared"`` the default is the recipe of arXiv:2506.01582: full batch, learning
    rate 0.1, 1000 steps, iid N(0, 1) start, student as wide as the teacher. It is not converged after 1000 steps: quote
    the schedule with any number. On probabilities cross-entropy is ahead: its gradient does not fade where the student is
    sure of the wrong answer, short of a probability that underflows (below 1e-308 in float64, 1e-38 in float32). In
    minibatches the gradient is that of the batch times n over its size.

    Parameters
    ----------
    learning_rate : float
        eta > 0.
    steps, epochs : int
        Length of the run, one or the other; default: 1000 steps.
    batch : int or None
        Samples of a step, reshuffled in every epoch by the run's own seed; default: all.
    online : bool
        Every step draws ``batch`` fresh samples instead.
    loss : {"squared", "cross-entropy"} or None
        Of the output that a user would measure; default: cross-entropy where that is made of probabilities, else squared.
    schedule : {"constant", "step", "cosine", "1/t"}
        Learning rate over the steps t = 0, 1, ...: eta; ``eta decay_factor^(t // decay_steps)``;
        ``eta (1 + cos(pi t / steps)) / 2``; ``eta / (1 + t / decay_steps)``.
    decay_steps : int
        For "step" and "1/t".
    decay_factor : float
        For "step", in (0, 1].
    spherical : bool
        Scale every component of the factor to the norm of iid N(0, 1) entries, at the start and after every step.
    width : int or None
        Columns of the student's factor W (attention-indexed); default: those of the teacher.
    surrogate_beta : [float, float]
        Hardmax channels have no derivative: softmax is descended on instead, with an inverse temperature that rises
        geometrically between these two numbers; default: 1 to 20. The labels then do not determine the scale of
        the signal, and the estimate is given the prior's.
    beta1, beta2, epsilon : float
        Decay of the moments and the guard of the division.
    weight_decay : float
        lambda >= 0, a penalty within the loss (``adamw``: apart from it). For labels linear in the matrix of an attention-indexed
        model, full batch and a factor that is wide enough, the minimum is one of ``nuclear``, with ``tau = lambda sqrt(width / D)
        / 2`` and the weights of the label's squared error, and has its theory.

    References
    ----------
    Kingma and Ba, arXiv:1412.6980, algorithm 1.
    """

    beta1: float = 0.9  # decay of the first moment
    beta2: float = 0.999  # decay of the second moment
    epsilon: float = 1e-8  # guard of the division
    weight_decay: float = 0.0  # lambda

    name = "adam"
    steps_jointly = True
    version = 2
    reference = "arXiv:1412.6980, arXiv:2506.01582"

    def __post_init__(self) -> None:
        """Check that epsilon, beta1, beta2 and weight decay are in their ranges."""
        super().__post_init__()
        require(self, "epsilon", self.epsilon > 0, "> 0")
        require(self, "beta1", 0 <= self.beta1 < 1, "in [0, 1)")
        require(self, "beta2", 0 <= self.beta2 < 1, "in [0, 1)")
        require(
            self,
            "weight_decay",
            0 <= self.weight_decay < math.inf,
            "a finite number >= 0",
        )

    def theory(
        self, problem: Problem, alpha: float, conditions: Conditions
    ) -> AlgorithmPrediction | str:
        """Predict the minimum of the penalized loss under the conditions of the runs (start, dimension), or return the reason
        why there is no theory. alpha is the sample ratio.

        Theory exists for full batches, weight decay and a wide matrix factor. Labels have to be linear in the matrix, and the
        steps enough to reach the minimum. There is none for minibatches, for streams,
        without weight decay or for ``adamw``, nor of the way: every step depends on all earlier ones. Tables then stay blank and
        say why.
        """
        if self.online or not self._penalizes_in_loss:
            return super().theory(problem, alpha, conditions)
        return self._minimum(problem, alpha, conditions, self.weight_decay)

    _penalizes_in_loss = True  # whether weight decay is part of the loss

    def penalty(self, data: Data) -> float:
        """Coefficient of the weight-decay penalty ``|W|^2 / 2`` in the loss of all samples of ``data``."""
        return self.weight_decay / data.dimension if self._penalizes_in_loss else 0.0

    def first_memory(self, factor: Array) -> tuple[Array, ...]:
        """Initial memory of the method: first and second moments of the gradient, two zero arrays shaped like the factor."""
        zero_moment = namespace(factor).zeros_like(factor)
        return zero_moment, zero_moment

    def normalisation(self, problem: Problem, data: Data, batch_size: int) -> float:
        """Factor that scales the gradient summed over a batch of ``batch_size`` samples up to all samples of the data and divides
        it by the dimension.
        """
        batches_per_epoch = 1.0 if self.online else data.inputs.shape[0] / batch_size
        return batches_per_epoch / data.dimension

    def move(
        self,
        factor: Array,
        gradient: Array,
        memory: tuple[Array, ...],
        rate: float,
        count: int,
    ) -> tuple[Array, tuple[Array, ...]]:
        """Take Adam's step number ``count`` at learning rate ``rate``: along the first moment m of the gradient over the root of
        its second moment v, both from ``memory`` and corrected for bias. ``rms_gradient`` is that root plus epsilon.
        """
        xp = namespace(factor)
        m = self.beta1 * memory[0] + (1 - self.beta1) * gradient
        v = self.beta2 * memory[1] + ((1 - self.beta2) * gradient) * gradient
        rms_gradient = xp.sqrt(v) * (1 - self.beta2**count) ** -0.5 + self.epsilon
        step = (rate / (1 - self.beta1**count)) * (m / rms_gradient)
        return factor - step, (m, v)


@dataclass(frozen=True)
class AdamW(Adam):
    r"""Adam with decoupled weight decay.

    ``W <- (1 - eta lambda) W`` before every step of Adam.

    Parameters
    ----------
    weight_decay : float
        lambda >= 0. All other parameters are those of ``adam``.

    References
    ----------
    Loshchilov and Hutter, arXiv:1711.05101, algorithm 2.
    """

    weight_decay: float = 0.01

    name = "adamw"
    steps_jointly = True
    reference = "arXiv:1711.05101"

    _penalizes_in_loss = False  # the weights decay apart from the loss

    def move(
        self,
        factor: Array,
        gradient: Array,
        memory: tuple[Array, ...],
        rate: float,
        count: int,
    ) -> tuple[Array, tuple[Array, ...]]:
        """Take AdamW's step number ``count`` at learning rate ``rate`` from a factor with this gradient: apply the weight decay,
        then a step of Adam with its moments in ``memory``.
        """
        return super().move(
            (1 - rate * self.weight_decay) * factor, gradient, memory, rate, count
        )
