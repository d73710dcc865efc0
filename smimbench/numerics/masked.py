"""Masked assignment and masked recomputation of rows, for array namespaces without assignment at a mask.

``xp.take(a, xp.nonzero(mask)[0], axis=0)`` picks the rows where a mask is true; these functions put them back.
"""

from __future__ import annotations

import numpy as np

from smimbench.backend.arrays import NUMPY, clip, namespace
from smimbench.interfaces import Array


def places_at_mask(mask: Array) -> Array:
    """Row of the selected entries that belongs at every position of ``mask`` (N,), as used by ``spread_at_mask``.

    At a true position it is the number of true entries before it.
    """
    xp = namespace(mask)
    return clip(xp.cumulative_sum(xp.astype(mask, xp.int64)) - 1, 0, None)


def spread_at_mask(selected: Array, mask: Array) -> Array:
    """Put entry k of ``selected`` where ``mask`` (N,) is true for the k-th time, and repeat entries elsewhere.

    Along the first axis ``selected`` is as long as ``mask`` is true, at least 1; the result has length N.
    """
    return namespace(mask).take(selected, places_at_mask(mask), axis=0)


def put_at_mask(
    array: Array, mask: Array, selected: Array, *, places: Array | None = None
) -> Array:
    """Copy ``array`` with its entries at true positions of ``mask`` (N,) replaced by those of ``selected``, in order.

    Along the first axis ``selected`` is as long as ``mask`` is true; it may be empty. ``places`` is ``places_at_mask(mask)``, for
    callers that have it.
    """
    if selected.shape[0] == 0:
        return array
    xp = namespace(mask)
    if xp is NUMPY:  # a copy and an assignment: a third of the time
        updated = np.array(array, dtype=np.result_type(array, selected))
        updated[mask] = selected
        return updated
    repeated = xp.take(
        selected, places_at_mask(mask) if places is None else places, axis=0
    )
    return xp.where(xp.reshape(mask, (-1,) + (1,) * (array.ndim - 1)), repeated, array)
