"""Base class of gradient methods with momentum, which step along a velocity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smimbench.backend import namespace
from smimbench.interfaces import Array, Data, require
from smimbench_attention.algorithms.gradient import Descent


@dataclass(frozen=True)
class MomentumDescent(Descent):
    """Gradient descent along a velocity (momentum); the parameters are those of ``sgd``."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    moves: ClassVar[str] = "gradient"

    def __post_init__(self) -> None:
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
        """Initial velocity, if there is momentum."""
        return (namespace(factor).zeros_like(factor),) if self.momentum else ()

    def penalty(self, data: Data) -> float:
        """Coefficient of the weight-decay penalty ``|W|^2 / 2`` in the loss."""
        return self.weight_decay

    def move(
        self,
        factor: Array,
        gradient: Array,
        memory: tuple[Array, ...],
        rate: float,
        count: int,
    ) -> tuple[Array, tuple[Array, ...]]:
        """Update the velocity and take one step along it."""
        if not self.momentum:
            return factor - rate * self.direction(gradient), ()
        velocity = self.momentum * memory[0] + gradient
        along = gradient + self.momentum * velocity if self.nesterov else velocity
        return factor - rate * self.direction(along), (velocity,)

    def direction(self, along: Array) -> Array:
        """Direction of a step for a given velocity; by default the velocity itself."""
        return along
