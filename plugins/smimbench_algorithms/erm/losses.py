"""Losses that are convex in the latents: value, slope, curvature, and the proximal operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import namespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array

NEWTON_STEPS = 100
"""Most steps of a proximal operator, which takes about ten."""

EXACT = 1e-13
"""Relative residual at which they end."""

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


def proximal(
    loss: Loss, y: np.ndarray[Any, Any], omega: np.ndarray[Any, Any], V: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    r"""``argmin_z sum_p l(y_p, z_p) + (z - omega)^T V^{-1} (z - omega) / 2`` for every sample and site, on the host.

    Solves ``z + V l'(z) = omega`` by Newton's method, with halved steps where the residual would grow (it is monotone).
    ``y`` and ``omega`` (n, P, C), V (P, P) positive definite.
    """
    P = V.shape[0]
    if P == 1:
        return _one_at_a_time(loss, np.broadcast_to(y, omega.shape), omega, float(V[0, 0]))
    shape = omega.shape
    target = np.moveaxis(omega, -2, -1).reshape(-1, P)
    labels = np.moveaxis(np.broadcast_to(y, shape), -2, -1).reshape(-1, P)
    z = target.copy()
    step = np.ones(len(z))
    residual = z + loss.slope(labels, z) @ V.T - target
    size = np.abs(residual).max(axis=1)
    scale = 1 + np.abs(target).max(axis=1)
    for _ in range(NEWTON_STEPS):
        active = size > EXACT * scale
        if not active.any():
            break
        bend = np.eye(P) + V * loss.curvature(labels[active], z[active])[:, None, :]
        move = np.linalg.solve(bend, residual[active][:, :, None])[:, :, 0]
        tried = z[active] - step[active, None] * move
        new = tried + loss.slope(labels[active], tried) @ V.T - target[active]
        better = np.abs(new).max(axis=1) < size[active]
        rows = np.flatnonzero(active)
        good, bad = rows[better], rows[~better]
        z[good], residual[good], size[good] = tried[better], new[better], np.abs(new[better]).max(axis=1)
        step[good], step[bad] = np.minimum(2 * step[good], 1.0), step[bad] / 2
        size[bad[step[bad] < EXACT]] = 0.0  # rounding: no step makes the residual smaller
    return np.moveaxis(z.reshape(*shape[:-2], shape[-1], P), -1, -2)


def pull(
    loss: Loss, y: np.ndarray[Any, Any], omega: np.ndarray[Any, Any], z: np.ndarray[Any, Any], V: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """``V^{-1} (z - omega)`` at the proximal point z, or minus the slope of the loss, its equal: the one that rounding spares."""
    if np.linalg.eigvalsh(V).max() < 1:
        return np.asarray(-loss.slope(y, z))
    return np.asarray(np.linalg.solve(V, z - omega))


def _one_at_a_time(loss: Loss, y: np.ndarray[Any, Any], omega: np.ndarray[Any, Any], v: float) -> np.ndarray[Any, Any]:
    """``proximal`` for one component: Newton steps in a bracket. The slope increases, so z is between omega and its step."""
    far = omega - v * loss.slope(y, omega)
    low, high = np.minimum(omega, far), np.maximum(omega, far)
    z = (low + high) / 2
    before, last = high - low, high - low
    for _ in range(NEWTON_STEPS):
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
        if np.all(last <= EXACT * (1 + np.abs(z))):
            break
    return np.asarray(z)
