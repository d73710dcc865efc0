"""Losses that are convex in the latents: value, slope, curvature, and the proximal operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import namespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array
    from smimbench.theory import Host

ROUNDING = 4 * float(np.finfo(float).eps)
"""Relative size of a residual, or difference of two posterior means, that counts as rounding."""


@dataclass(frozen=True)
class Loss:
    """A loss ``l(y, z)`` of one label and one latent, convex in z; the loss of a sample is the sum over its entries.

    Attributes
    ----------
    name : str
    binary : bool
        Whether labels are signs, -1 or +1.
    value, slope, curvature : callable
        ``(y, z) -> array`` of their common shape: l and its derivatives with respect to z, curvature >= 0.
    kinks : tuple of float
        Values of ``y z`` at which the curvature jumps.
    """

    name: str
    binary: bool
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    curvature: Callable[[Array, Array], Array]
    kinks: tuple[float, ...] = ()


def _softplus(x: Array) -> Array:
    xp = namespace(x)
    return xp.maximum(x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def _sigmoid(x: Array) -> Array:
    xp = namespace(x)
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _short_of_margin(y: Array, z: Array) -> Array:
    """How much is missing to a margin of 1."""
    gap = 1 - y * z
    return namespace(gap).maximum(gap, namespace(gap).zeros_like(gap))


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("square", False, lambda y, z: (y - z) ** 2 / 2, lambda y, z: z - y, lambda y, z: namespace(z).ones_like(z)),
        Loss(
            "logistic", True,
            lambda y, z: _softplus(-y * z),
            lambda y, z: -y * _sigmoid(-y * z),
            lambda y, z: _sigmoid(z) * _sigmoid(-z),
        ),
        Loss(
            "squared-hinge", True,
            lambda y, z: _short_of_margin(y, z) ** 2 / 2,
            lambda y, z: -y * _short_of_margin(y, z),
            lambda y, z: namespace(z).astype(y * z < 1, z.dtype),
            kinks=(1.0,),
        ),
    )
}  # fmt: skip
"""``(y - z)^2 / 2``, ``log(1 + exp(-y z))`` and ``max(0, 1 - y z)^2 / 2``."""


def proximal(loss: Loss, y: Host, omega: Host, v: Host) -> Host:
    """``argmin_z l(y, z) + (z - omega)^2 / (2 v)``, elementwise, on the host; y and v > 0 broadcast with omega.

    Solves ``z + v l'(z) = omega`` by Newton steps in a bracket: the slope increases, so z is between omega and its step.
    """
    far = omega - v * loss.slope(y, omega)
    low, high = np.minimum(omega, far), np.maximum(omega, far)
    z = (low + high) / 2
    before, last = high - low, high - low
    for _ in range(100):  # about ten are made
        pull, rise = v * loss.slope(y, z), v * loss.curvature(y, z)
        gap = z + pull - omega
        # What a rounding of z does to the residual.
        blur = ROUNDING * ((1 + rise) * (1 + np.abs(z)) + np.abs(pull) + np.abs(omega))
        gap = np.where(np.abs(gap) <= blur, 0.0, gap)
        low, high = np.where(gap <= 0, z, low), np.where(gap >= 0, z, high)
        move = -gap / (1 + rise)
        # Steps that do not shrink by half in two rounds may go to and fro for ever: the middle of the bracket instead.
        sound = (z + move >= low) & (z + move <= high) & (np.abs(move) <= before / 2)
        new = np.where(sound, z + move, (low + high) / 2)
        before, last, z = last, np.abs(new - z), new
        if np.all(last <= 1e-13 * (1 + np.abs(z))):
            break
    return np.asarray(z)


def pull(loss: Loss, y: Host, omega: Host, z: Host, v: Host) -> Host:
    """``(z - omega) / v`` at the proximal point z, or minus the slope of the loss, its equal: the one that rounding spares."""
    return np.where(v < 1, -loss.slope(y, z), (z - omega) / v)
