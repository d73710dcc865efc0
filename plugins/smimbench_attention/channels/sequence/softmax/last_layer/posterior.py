"""Posterior moments of samples from the tables of the layers before the last: bilinear forms ``f^T T g``, and the known
layer compressed to a few modes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Array, Host
from smimbench_attention.channels.sequence.softmax.last_layer.tables import (
    Tables,
    outer_weights,
)

DARKEST = 60.0
"""Weights below ``exp(-DARKEST)`` of the largest possible one are 0. Doubled: the same, three times as slowly on some processors:
single precision ends there, and products with numbers next to its end take a hundred cycles."""


class LastLayerMoments(NamedTuple):
    """Posterior means of n samples, from the tables of the layers before the last.

    ``shift`` (n, 2) and ``square`` (n, 2) hold ``e`` and ``e^2``, ``e = z_L - omega_L`` by token. ``table_moments`` (n, U, 4) has
    the moments of the tables. ``product`` (n,) is ``e_1 e_2`` and ``fourth`` (n,) the sum over both tokens and both orders of
    ``z_Lm^2 z_Lk^2``; None unless asked for. ``known_shift`` (n, 2) and ``known_square`` (n,) are shift and squared distance of
    the known layer.
    """

    shift: Host
    square: Host
    table_moments: Host
    product: Array = None
    fourth: Array = None
    known_shift: Array = None
    known_square: Array = None


def posterior_moments(
    tables: Tables,
    ut: Host,
    gap: Host,
    omega: Host,
    v: float,
    known_layer: tuple[Host, float] | None = None,
    full: bool = False,
) -> LastLayerMoments:
    """Posterior moments of the samples ``ut`` (n, 2), with ``gap = ut_1 - ut_2`` given apart for its digits.

    ``omega`` (n, 2) and ``v`` belong to the last layer, ``known_layer`` has those of the layer on the outer grid.
    """
    n = len(ut)
    count = len(tables.nodes)
    kind = np.float32  # single precision: all terms are positive, so errors are 1e-6, in a third of the time
    stack = tables.sums.astype(kind, copy=False)
    amount = np.ones((n, 1), kind)
    if known_layer is not None:
        rho = [
            weight @ tables.modes.T
            for weight in outer_weights(tables.outer, tables.share, *known_layer)
        ]
        amount = rho[0].astype(kind)
    forward = stack.reshape(-1, stack.shape[2])
    backward = np.ascontiguousarray(
        stack[:, :, :count].transpose(2, 0, 1).reshape(count, -1)
    )
    blocks = np.zeros((n, stack.shape[2] // count))
    per_mode = np.zeros((n, len(stack)))
    shift = np.zeros((n, 2))
    square = np.zeros((n, 2))
    product = np.zeros(n)
    fourth = np.zeros(n)
    # all in units of sqrt(v)
    unit = v**-0.5
    # beyond 1e8 a node weighs nothing, whatever its distance; fourth powers stay finite
    place = np.clip((unit * gap)[:, None] * tables.nodes, -1e8, 1e8).astype(kind)
    u_1, u_2, omega_1, omega_2 = (
        (unit * x[:, m : m + 1]).astype(kind) for x in (ut, omega) for m in range(2)
    )
    for sign in (kind(1), kind(-1)):
        # z_1 = sign (u_1 + place) and z_2 = sign (u_2 - place)
        e1 = place + (u_1 - sign * omega_1)
        e2 = (u_2 - sign * omega_2) - place
        e1, e2 = (e1, e2) if sign > 0 else (-e1, -e2)
        e11 = e1 * e1
        e22 = e2 * e2
        f = _gaussian(e11)
        g = _gaussian(e22)
        # all modes in one product: each mode has a copy of f, scaled by its amount
        forward_sums = (_times_factor(amount, f) @ forward).reshape(n, -1, count)
        by_f = g @ backward
        if known_layer is not None:
            by_mode = by_f.reshape(n, -1, count)
            per_mode += np.einsum("nkj,nj->nk", by_mode, f)
            by_f = np.einsum("nk,nkj->nj", amount, by_mode)
        blocks += np.einsum("nbj,nj->nb", forward_sums, g)
        by_f *= f
        by_g = forward_sums[:, 0] * g
        for total, powers in ((shift, (e1, e2)), (square, (e11, e22))):
            total += np.stack(
                [np.einsum("nj,nj->n", *pair) for pair in zip((by_f, by_g), powers)],
                axis=-1,
            )
        if full:
            forward_masses = np.ascontiguousarray(forward[:, :count])
            z1 = (u_1 + place) ** 2
            z2 = (u_2 - place) ** 2
            crossed, squares = (
                _times_factor(amount, factor) @ forward_masses
                for factor in (f * e1, f * z1)
            )
            product += np.einsum("nj,nj,nj->n", crossed, g, e2)
            fourth += np.einsum("nj,nj,nj->n", by_f, z1, z1) + np.einsum(
                "nj,nj,nj->n", by_g, z2, z2
            )
            fourth += 2 * np.einsum("nj,nj,nj->n", squares, g, z2)
    shift *= math.sqrt(v)
    mass = blocks[:, 0]
    masses = mass[:, None]
    moments = LastLayerMoments(
        shift / masses, v * square / masses, (blocks[:, 1:] / masses).reshape(n, -1, 4)
    )
    if full:
        moments = moments._replace(
            product=v * product / mass, fourth=v * v * fourth / mass
        )
    if known_layer is not None:
        center = known_layer[0]
        mean = np.stack([(rho[k] * per_mode).sum(1) for k in (1, 2)], axis=-1) / masses
        known_square = (rho[3] * per_mode).sum(1) / mass + (
            (center - 2 * mean) * center
        ).sum(1)
        moments = moments._replace(known_shift=mean - center, known_square=known_square)
    return moments


def _gaussian(square: Host) -> Host:
    """Gaussian factor ``exp(-square / 2)`` in single precision; values below ``exp(-DARKEST)`` are set to 0."""
    limit = np.float32(2 * DARKEST)
    return np.where(
        square > limit,
        np.float32(0),
        np.exp(np.float32(-0.5) * np.minimum(square, limit)),
    )


def _times_factor(amount: Host, factor: Host) -> Host:
    """Products (n, K N) of mode amplitudes (n, K) with a factor (n, N)."""
    return (amount[:, :, None] * factor[:, None, :]).reshape(len(factor), -1)
