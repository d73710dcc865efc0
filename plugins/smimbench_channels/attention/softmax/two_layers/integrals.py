"""Integrals of the two-layer posterior, block by block: the Gaussian rule where it serves, adaptive cells elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import array_api_compat

from smimbench.numerics.masked import put_at_mask
from smimbench_channels.attention.softmax.two_layers.cells import adaptive_integrals
from smimbench_channels.attention.softmax.two_layers.gaussian import nearly_gaussian
from smimbench_channels.attention.softmax.two_layers.peak import samples_of
from smimbench_channels.attention.softmax.two_layers.weight import Sums, Weight

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["integrals"]


def integrals(
    xp: ModuleType,
    weight: Weight,
    margins: Array,
    centre: Array,
    *,
    variation: float | None = None,
    quick: bool = True,
) -> Sums:
    """Integrals over (a_1, b_1) of samples with these margins (n, 2) and prior means (n, 4).

    Parameters
    ----------
    variation : float or None
        Largest variation of the log-weight in a cell; default: that of ``weight.accuracy``.
    quick : bool
        Whether the Gaussian rule may be tried.
    """
    accuracy = weight.accuracy
    variation = accuracy.variation if variation is None else variation
    size = accuracy.block if array_api_compat.is_numpy_namespace(xp) else accuracy.block_device
    n = margins.shape[0]
    if n == 0:
        place = {"dtype": xp.float64, "device": array_api_compat.device(margins)}
        return Sums(*(xp.zeros(shape, **place) for shape in ((0,), (0, 4), (0, 4, 4), (0,))))
    parts = []
    for start in range(0, n, size):
        part = slice(start, min(start + size, n))
        parts.append(_block(xp, weight, margins[part, :], centre[part, :], variation, quick=quick))
    if len(parts) == 1:
        return parts[0]
    return Sums(*(xp.concat(list(p), axis=0) for p in zip(*parts, strict=True)))


def _block(
    xp: ModuleType, weight: Weight, margins: Array, centre: Array, variation: float, *, quick: bool
) -> Sums:
    samples = samples_of(xp, weight, margins, centre)
    if not quick or weight.beta**2 * weight.first > weight.accuracy.quick_width:
        return adaptive_integrals(xp, weight, samples, variation)
    found, good = nearly_gaussian(xp, weight, samples)
    where = xp.nonzero(~good)[0]
    if where.shape[0] == 0:
        return found
    slow = adaptive_integrals(xp, weight, samples.taken(xp, where), variation)
    return Sums(*(put_at_mask(old, ~good, new) for new, old in zip(slow, found, strict=True)))
