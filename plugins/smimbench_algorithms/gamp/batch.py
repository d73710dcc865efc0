"""GAMP on several instances of one size at once: every array of the state has an axis of theirs in front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import namespace, on_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.interfaces import Array, Data, Info
    from smimbench.problem import Problem
    from smimbench_algorithms.gamp.state import GampState

__all__ = ["GampBatch"]


@dataclass(frozen=True)
class GampBatch:
    """Several instances, each with a damping of its own; what is said of ``batched`` in ``smimbench.interfaces.Batch``.

    Attributes
    ----------
    advance : callable
        One iteration of all: from the problem, their data and their state to a new state and what is reported.
    """

    advance: Callable[[Problem, Data, GampState], tuple[GampState, Info]]

    def join(self, states: Sequence[GampState]) -> GampState:
        """One state from those of instances that have made equally many steps."""
        joined: GampState = _joined(states)
        return joined

    def split(self, state: GampState) -> list[GampState]:
        """The states of the instances, as views."""
        return [_part(state, k) for k in range(state.estimate.shape[0])]

    def step(self, problem: Problem, data: Data, state: GampState) -> tuple[GampState, Info]:
        """One iteration of all."""
        return self.advance(problem, data, state)

    def estimate(self, state: GampState) -> Array:
        """Posterior means (B, P, ...)."""
        return state.estimate


def _joined(values: Sequence[Any]) -> Any:
    """Arrays and numbers along a new first axis; tuples with names entry by entry; None stays, all else becomes a tuple."""
    first = values[0]
    if isinstance(first, tuple):
        return type(first)(*map(_joined, zip(*values)))
    if first is None:
        return None
    if isinstance(first, np.generic | np.ndarray):
        return np.stack(values)
    return namespace(*values).stack(list(values)) if on_device(first) else tuple(values)


def _part(value: Any, k: int) -> Any:
    """What ``_joined`` made of the k-th of its values."""
    if value is None:
        return None
    if type(value) is tuple:
        return value[k]
    if isinstance(value, tuple):
        return type(value)(*(_part(entry, k) for entry in value))
    return value[k, ...]
