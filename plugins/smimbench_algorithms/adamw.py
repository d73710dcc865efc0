"""AdamW: Adam with weight decay apart from the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smimbench.interfaces import Array, ParameterError
from smimbench_algorithms.adam import Adam


@dataclass(frozen=True)
class AdamW(Adam):
    r"""Adam with weight decay apart from the gradient.

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

    name: ClassVar[str] = "adamw"
    version: ClassVar[int] = 2
    reference: ClassVar[str] = "arXiv:1711.05101"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight_decay >= 0:
            raise ParameterError("weight_decay", f"must be >= 0, got {self.weight_decay}")

    def _move(
        self, factor: Array, gradient: Array, memory: tuple[Array, ...], rate: float, count: int
    ) -> tuple[Array, tuple[Array, ...]]:
        return super()._move((1 - rate * self.weight_decay) * factor, gradient, memory, rate, count)
