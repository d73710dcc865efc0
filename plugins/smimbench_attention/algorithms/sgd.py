"""Stochastic gradient descent on the factor of the signal, with minibatches, fresh samples or all samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from smimbench.backend import namespace
from smimbench.interfaces import AlgorithmPrediction, Array, Conditions
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient import NO_REUSE_THEORY, MomentumDescent
from smimbench_attention.algorithms.gradient.mean_field import mean_field_theory
from smimbench_attention.algorithms.gradient.online.matrix_theory import (
    flow_theory,
    matrix_theory,
    with_flow_limit,
)
from smimbench_attention.algorithms.gradient.online.theory import online_theory


@dataclass(frozen=True)
class Sgd(MomentumDescent):
    r"""Stochastic gradient descent with momentum, on batches or on a stream.

    For a batch B of samples,

    .. math::

        L_B = \frac{1}{\alpha_B} \sum_{\mu \in B} l(f(z_\mu), t_\mu) + \frac{\lambda}{2} |W|^2, \qquad
        v \leftarrow m v + \nabla L_B, \qquad W \leftarrow W - \eta v

    with ``alpha_B`` the sample ratio of the batch, ``|B| / D`` or ``|B| / D^2``. So the mean step is the same for every
    size of the batch and of the problem: eta times the number of steps is the time of the gradient flow. The step is
    stable for eta up to about the sample ratio of the batch (times a number of order 1), as the usual rule says: learning
    rate proportional to batch size.

    Parameters
    ----------
    learning_rate : float
        eta > 0.
    momentum : float
        m in [0, 1).
    nesterov : bool
        Step along ``m v + grad L_B`` instead of v.
    weight_decay : float
        lambda >= 0.
    schedule : {"constant", "step", "cosine", "1/t", "optimal"}
        As for ``adam``; "optimal": the rates that minimize the mean squared error after the last step by the equations of the
        overlaps, for fresh samples of low-rank signals (one direction, or linear labels). They are computed before the run from
        the problem, ``steps``, ``batch`` and D; ``learning_rate``, ``momentum``, ``weight_decay`` and ``spherical`` are left out.
    steps, epochs, batch, online, loss, decay_steps, decay_factor, spherical, width, surrogate_beta
        As for ``adam``.

    References
    ----------
    Sutskever, Martens, Dahl and Hinton (2013), On the importance of initialization and momentum in deep learning.
    """

    example: ClassVar[dict[str, Any]] = {
        "learning_rate": 0.03,
        "steps": 100,
    }  # parameters with which checks build it, stable at their small sizes
    name = "sgd"
    steps_jointly = True
    version = 2
    reference = "Sutskever et al. (2013), Proc. ICML"

    def theory(
        self, problem: Problem, alpha: float, conditions: Conditions
    ) -> AlgorithmPrediction | str:
        """Predict descent on low-rank signals: overlaps at finite dimension, from those of the initial states, or in the
        limit. The conditions of the runs are their starts and dimension. alpha is the sample ratio.

        Online: the mean over the starts of all runs; without runs over 16 random starts, as runs have them. Fluctuations of order
        ``1/sqrt(D)`` are drawn where that takes seconds. For linear labels the mean squared error follows closed equations at
        every D; for long runs the equations of the limit are solved (``gradient/online/equations.py``). Of matrices the runs are
        drawn, and the limit is exact (``gradient/online/riccati.py``), all that is known without a dimension. The trajectory is
        against ``samples`` and ``iteration``.

        Where samples are reused: mean-field dynamics of low-rank signals (``gradient/mean_field.py``),
        against ``iteration``, with ``train_error`` and ``test_error``, the mean loss of a sample, in the trajectory. For
        matrices, all samples in every step, weight decay and a wide factor: the minimum, as for ``adam``. Else tables stay
        blank and say why.
        """
        if self.online and problem.model.rank == "low":
            return online_theory(self, problem, alpha, conditions)
        if self.online and conditions.dimension is None:
            return flow_theory(self, problem, alpha)
        if self.online:
            prediction = matrix_theory(self, problem, alpha, conditions)
            if isinstance(prediction, str):
                return prediction
            return with_flow_limit(prediction, self, problem, conditions)
        if problem.model.rank != "low":
            return self._minimum(problem, alpha, conditions, self.weight_decay * alpha)
        return mean_field_theory(self, problem, alpha, conditions)


class _FixedStepLength(Sgd):
    """Base class of methods whose step length does not depend on the length of the gradient, because they use its signs or its
    polar factor.
    """

    example: ClassVar[dict[str, Any]] = {
        "steps": 100
    }  # parameters with which checks build it

    def theory(
        self, problem: Problem, alpha: float, conditions: Conditions
    ) -> AlgorithmPrediction | str:
        """Predict one pass over linear labels of low rank, under the conditions of the runs (starts, dimension), or return
        the reason why there is no theory. alpha is the sample ratio.

        Feature by feature or, for ``signsgd``, from draws of its steps
        (``smimbench_attention.algorithms.gradient.online.features``); of ``muon``, also where samples are reused, as for ``sgd``.
        """
        if self.online and problem.model.rank == "extensive":
            return matrix_theory(self, problem, alpha, conditions)
        if self.online:
            return online_theory(self, problem, alpha, conditions)
        if self.direction_kind == "polar":
            return mean_field_theory(self, problem, alpha, conditions)
        return NO_REUSE_THEORY


@dataclass(frozen=True)
class SignSgd(_FixedStepLength):
    r"""Stochastic gradient descent along the signs of the gradient's entries.

    ``W <- W - eta sign(v)`` with the velocity v of ``sgd``: every entry moves by eta.

    Parameters
    ----------
    learning_rate : float
        eta > 0, in units of an entry of the factor.
    momentum : float
        m in [0, 1), 0 unless given.
    nesterov, weight_decay, steps, epochs, batch, online, loss, schedule, decay_steps, decay_factor, spherical, width, \
    surrogate_beta
        As for ``sgd``.

    References
    ----------
    Bernstein et al., arXiv:1802.04434; theory arXiv:2411.12135.
    """

    learning_rate: float = 0.01

    direction_kind = "sign"
    name = "signsgd"
    steps_jointly = True
    version = 1
    reference = "arXiv:1802.04434"

    def direction(self, velocity: Array) -> Array:
        """Direction of a step: the signs of the velocity's entries."""
        return namespace(velocity).sign(velocity)


@dataclass(frozen=True)
class Muon(_FixedStepLength):
    r"""Muon: gradient descent along the polar factor (orthogonalization) of the velocity.

    .. math:: W \leftarrow W - \eta \sqrt{\max(m, n)}\, U V^T, \qquad v = U \Sigma V^T,

    with the velocity v (m, n) of ``sgd`` and its singular value decomposition in place of Newton-Schulz steps. Entries move by
    about eta. The matrix is the signal (P, D), or a component's factor (D, width). Singular values that are rounding give no
    direction.

    Parameters
    ----------
    learning_rate : float
        eta > 0, in units of an entry of the factor.
    momentum : float
        m in [0, 1), 0.95 unless given.
    nesterov : bool
        Step along ``m v + grad L_B`` instead of v; default true.
    weight_decay, steps, epochs, batch, online, loss, schedule, decay_steps, decay_factor, spherical, width, surrogate_beta
        As for ``sgd``.

    References
    ----------
    Jordan et al. (2024), Muon: an optimizer for hidden layers in neural networks; theory arXiv:2605.09552.
    """

    learning_rate: float = 0.01
    momentum: float = 0.95
    nesterov: bool = True

    direction_kind = "polar"
    name = "muon"
    steps_jointly = True
    version = 1
    reference = "Jordan et al. (2024), arXiv:2502.16982"

    def direction(self, velocity: Array) -> Array:
        """Direction of a step for a velocity (..., m, n): its polar factor ``U V^T``, times the root of the longer of the
        last two axes.
        """
        xp = namespace(velocity)
        longer_axis_length = max(velocity.shape[-2:])
        left_singular_vectors, singular_values, right_singular_vectors = xp.linalg.svd(
            velocity, full_matrices=False
        )
        largest_singular_value = xp.max(singular_values, axis=-1, keepdims=True)
        is_nonzero = (
            singular_values
            > longer_axis_length * xp.finfo(velocity.dtype).eps * largest_singular_value
        )
        left_singular_vectors = (
            left_singular_vectors * xp.astype(is_nonzero, velocity.dtype)[..., None, :]
        )
        return longer_axis_length**0.5 * xp.matmul(
            left_singular_vectors, right_singular_vectors
        )
