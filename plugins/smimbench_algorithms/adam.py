"""Adam, full batch, on the factor of the signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from smimbench.backend import namespace
from smimbench.interfaces import Array, Capabilities, Info, ParameterError
from smimbench_algorithms._gradient import squared_loss

if TYPE_CHECKING:
    import numpy as np

    from smimbench.interfaces import Data
    from smimbench.problem import Problem


class AdamState(NamedTuple):
    """Factor, the two moments, the number of steps made and the signal that the factor stands for."""

    factor: Array
    first: Array
    second: Array
    count: int
    signal: Array


@dataclass(frozen=True)
class Adam:
    r"""Full-batch Adam on the squared loss ``sum_mu |f(z_mu) - y_mu|^2 / D``.

    .. math::

        m &\leftarrow \beta_1 m + (1-\beta_1) \nabla L, \quad
        v \leftarrow \beta_2 v + (1-\beta_2) (\nabla L)^2 \\
        W &\leftarrow W - \eta\, \hat m / (\sqrt{\hat v} + \epsilon)

    with bias-corrected moments. The default is the recipe of arXiv:2506.01582: learning rate 0.1, 1000 steps, iid
    N(0, 1) start, student as wide as the teacher. It is not converged after 1000 steps: quote the schedule with any
    number.

    Parameters
    ----------
    learning_rate : float
        eta > 0.
    steps : int
        Number of steps; the run ends there.
    width : int or None
        Columns of the student's factor W (attention-indexed); default: those of the teacher.
    beta1, beta2, epsilon : float
        Decay of the moments and the guard of the division.

    References
    ----------
    Kingma and Ba, arXiv:1412.6980, algorithm 1.
    """

    learning_rate: float = 0.1
    steps: int = 1000
    width: int | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    name: ClassVar[str] = "adam"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "arXiv:1412.6980, arXiv:2506.01582"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        for key in ("learning_rate", "epsilon"):
            if not getattr(self, key) > 0:
                raise ParameterError(key, f"must be > 0, got {getattr(self, key)}")
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                raise ParameterError(key, f"must be in [0, 1), got {getattr(self, key)}")
        if self.steps < 1:
            raise ParameterError("steps", f"must be at least 1, got {self.steps}")
        if self.width is not None and self.width < 1:
            raise ParameterError("width", f"must be at least 1, got {self.width}")

    def refuses(self, problem: Problem) -> str | None:
        """Why this problem cannot be learned by gradients, or None."""
        if not hasattr(problem.channel, "vjp"):
            return f"channel {problem.channel.name!r} has no derivative"
        if not hasattr(problem.prior, "compose"):
            return f"prior {problem.prior.name!r} has no factor to descend on"
        if self.width is not None and problem.model.kappa == 1:
            return "width applies to attention-indexed models only; remove it"
        return None

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> AdamState:
        """Iid N(0, 1) factor."""
        xp = namespace(data.inputs)
        draw = problem.prior.draw_factor(rng, problem.components, data.dimension, self.width)
        factor = xp.asarray(draw, dtype=data.inputs.dtype, device=data.inputs.device)
        zero = xp.zeros_like(factor)
        return AdamState(factor, zero, zero, 0, problem.prior.compose(factor))

    def step(self, problem: Problem, data: Data, state: AdamState) -> tuple[AdamState, Info]:
        """One step; the residual is the relative change of the factor."""
        xp = namespace(state.factor)
        gradient = squared_loss(problem, data, state.factor).gradient
        count = state.count + 1
        first = self.beta1 * state.first + (1 - self.beta1) * gradient
        second = self.beta2 * state.second + (1 - self.beta2) * gradient * gradient
        rate = self.learning_rate / (1 - self.beta1**count)
        change = rate * first / (xp.sqrt(second / (1 - self.beta2**count)) + self.epsilon)
        factor = state.factor - change
        residual = xp.sqrt(xp.mean(change * change) / xp.mean(factor * factor))
        return AdamState(factor, first, second, count, problem.prior.compose(factor)), Info(residual=residual)

    def estimate(self, state: AdamState) -> Array:
        """The signal that the factor stands for."""
        return state.signal
