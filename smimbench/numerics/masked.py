"""Some rows of an array computed in another way, for namespaces that cannot assign at a mask.

``xp.take(a, xp.nonzero(mask)[0], axis=0)`` picks the rows where a mask is true; these functions put them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smimbench.backend.arrays import clip, namespace

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["put_at_mask", "spread_at_mask"]


def spread_at_mask(part: Array, mask: Array, *, axis: int = 0) -> Array:
    """Entry k of ``part`` where ``mask`` (N,) is true for the k-th time; repeated in between, so that nothing is undefined.

    Along ``axis``, ``part`` is as long as ``mask`` is true, at least 1; the result has length N.
    """
    xp = namespace(mask)
    position = clip(xp.cumulative_sum(xp.astype(mask, xp.int64)) - 1, 0, None)
    return xp.take(part, position, axis=axis)


def put_at_mask(whole: Array, mask: Array, part: Array, *, axis: int = 0) -> Array:
    """``whole`` with the entries where ``mask`` (N,) is true replaced by those of ``part``, in order: a scatter.

    Along ``axis`` (0, or -1 for the last one), ``part`` is as long as ``mask`` is true; it may be empty.
    """
    if part.shape[axis] == 0:
        return whole
    xp = namespace(mask)
    spread = spread_at_mask(part, mask, axis=axis)
    shape = (-1,) + (1,) * (whole.ndim - 1) if axis == 0 else (-1,)
    return xp.where(xp.reshape(mask, shape), spread, whole)
