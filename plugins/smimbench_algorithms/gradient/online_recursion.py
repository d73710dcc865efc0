"""One step of online descent on overlaps: how the student moves, the map of a step, and where it grows without bound.

``online`` derives it, and makes the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.theory.types import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["FEWEST_STEPS", "LARGEST", "Diverges", "Path", "Recursion", "Rule", "TooLong"]

FEWEST_STEPS = 1000
"""Steps that are made one by one whatever they cost. Doubled: large problems take up to twice as long."""

LARGEST = 1e4
"""Self-overlap from which on a run counts as diverged. Doubled: diverging equations are followed a step longer."""


class Diverges(ValueError):
    """The overlaps grow without bound at this learning rate."""


class TooLong(ValueError):
    """There are more steps than can be made one by one, and integration gains nothing."""


@dataclass(frozen=True)
class Rule:
    """How the student moves.

    Attributes
    ----------
    rate : callable
        Learning rate eta of step s (0, 1, ...).
    decay, momentum : float
        lambda and m.
    nesterov, spherical : bool
    fraction : float
        ``b = B / D``.
    spread : float
        ``1 / (B C)``, by which the square of the mean gradient of linear labels is larger in a batch; 0 in the limit.
    breaks : tuple of int
        Steps at which the learning rate jumps.
    """

    rate: Callable[[float], float]
    fraction: float
    decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    spherical: bool = False
    breaks: tuple[int, ...] = ()
    spread: float = 0.0


class Path(NamedTuple):
    """Overlaps at some steps: arrays (sets of points or draws, steps, starts, P, P).

    ``rougher`` is the same by a rougher integration, where steps are not made one by one.
    """

    steps: np.ndarray[Any, Any]
    truth: Host
    cross: Host
    own: Host
    rougher: Path | None = None


class Recursion:
    """The map of one step on Gram matrices (sets, starts, R, R) of teacher, student and, with momentum, velocity."""

    def __init__(self, fields: Any, rule: Rule, components: int) -> None:
        self.fields, self.rule, self.P = fields, rule, components

    def after(self, gram: Host, rate: float, part: int | None = None) -> Host:
        """The Gram matrix after one more step; with a part of the points only, where one is named."""
        P, rule = self.P, self.rule
        R = gram.shape[-1]
        found = self.fields(gram[..., P : 2 * P, :P], gram[..., P : 2 * P, P : 2 * P], part)
        # Rows: new vectors. Columns: the old ones. The gradient has noise besides, which is orthogonal to them.
        new = np.broadcast_to(np.eye(R), gram.shape).copy()
        gradient = np.zeros((*gram.shape[:-2], P, R))
        gradient[..., :P] = found.on_teacher
        gradient[..., P : 2 * P] = found.on_student
        noise = found.square / rule.fraction + rule.spread * (gradient @ gram @ _turned(gradient))
        gradient[..., P : 2 * P] += rule.decay * np.eye(P)
        along, share = gradient, np.array([1.0])
        if rule.momentum:
            new[..., 2 * P :, 2 * P :] *= rule.momentum
            new[..., 2 * P :, : 2 * P] = gradient[..., : 2 * P]
            velocity = new[..., 2 * P :, :]
            along = gradient + rule.momentum * velocity if rule.nesterov else velocity
            share = np.array([1 + rule.momentum if rule.nesterov else 1.0, 1.0])
        share[0] *= -rate
        new[..., P : 2 * P, :] -= rate * along
        after = new @ gram @ _turned(new)
        after[..., P:, P:] += np.kron(np.outer(share, share), noise)
        if rule.spherical:
            scale = np.ones(after.shape[:-1])
            scale[..., P : 2 * P] = 1 / np.sqrt(np.diagonal(after, axis1=-2, axis2=-1)[..., P : 2 * P])
            after = scale[..., :, None] * after * scale[..., None, :]
        return after

    def iterate(self, state: Host, first: int, last: int, wanted: Collection[int]) -> tuple[Host, dict[int, Host]]:
        """The state after step ``last``, and those after ``wanted`` steps on the way, both ends included.

        Raises
        ------
        Diverges
        """
        kept = {first: state} if first in wanted else {}
        for step in range(first, last):
            state = self.after(state, self.rule.rate(step))
            # NaN and infinity fail, too. Velocities are as much larger as they are slow to change.
            if not np.abs(state[..., : 2 * self.P, : 2 * self.P]).max() <= LARGEST:
                raise Diverges("overlaps grow without bound")
            if step + 1 in wanted:
                kept[step + 1] = state
        return state, kept


def _turned(matrix: Host) -> Host:
    return np.swapaxes(matrix, -1, -2)
