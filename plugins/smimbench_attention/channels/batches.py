"""Helpers for batches of samples or overlaps: create, join, replace rows, copy to the host."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import array_api_compat
import numpy as np

from smimbench.backend import namespace, to_host
from smimbench.interfaces import Array, Host, Uncertain
from smimbench.numerics import places_at_mask, put_at_mask

T = TypeVar("T", bound=tuple[Any, ...])


def array_like(values: object, like: Array) -> Array:
    """Array of the given numbers with the namespace, device and dtype of ``like``."""
    xp = namespace(like)
    return xp.asarray(values, dtype=like.dtype, device=array_api_compat.device(like))


def identity_like(size: int, like: Array) -> Array:
    """Unit matrix (size, size) with the namespace, device and dtype of ``like``."""
    return namespace(like).eye(
        size, dtype=like.dtype, device=array_api_compat.device(like)
    )


def normal_density(x: Array) -> Array:
    """Probability density of the standard normal law."""
    return namespace(x).exp(-x * x / 2) / math.sqrt(2 * math.pi)


def blocks(n: int, size: int) -> Iterator[slice]:
    """Split ``range(n)`` into consecutive slices of length ``size``; n = 0 gives one empty slice."""
    return (slice(start, min(start + size, n)) for start in range(0, max(n, 1), size))


def joined(batches: Sequence[T]) -> T:
    """Concatenate named tuples of arrays along the first axis; fields that are None stay None."""
    if len(batches) == 1:
        return batches[0]
    xp = namespace(batches[0][0])
    fields = []
    for arrays in zip(*batches):
        fields.append(None if arrays[0] is None else xp.concat(list(arrays), axis=0))
    make: Any = type(batches[0])
    batch: T = make(*fields)
    return batch


def put_tuple(target: T, mask: Array, replacement: Sequence[object]) -> T:
    """Replace the rows where ``mask`` is true in every array of a named tuple, along the first axis."""
    places = places_at_mask(mask)
    fields = []
    for array, rows in zip(target, replacement):
        fields.append(
            None if array is None else put_at_mask(array, mask, rows, places=places)
        )
    make: Any = type(target)
    updated: T = make(*fields)
    return updated


def raw_second_moment(mean: Array, covariance: Array) -> Array:
    """Second moment ``E[z z^T]`` (..., n, 1, C, 1, C) of one component, from its posterior mean and covariance.

    ``mean`` (..., n, 1, C), ``covariance`` (..., n or 1, C, C).
    """
    outer = mean[..., 0, :, None] * mean[..., 0, None, :]
    return (outer + covariance)[..., None, :, None, :]


def shifted_second_moment(
    center: Array, shift: Array, outer: Array, dtype: object
) -> Array:
    """Second moment ``E[z z^T]`` (n, 1, C, 1, C) of ``z = center + e`` (n, C) from ``E[e]`` and ``E[e e^T]``."""
    xp = namespace(center)
    cross = center[:, :, None] * shift[:, None, :]
    second = (
        center[:, :, None] * center[:, None, :] + cross + xp.matrix_transpose(cross)
    )
    return xp.astype((second + outer)[:, None, :, None, :], dtype)


def on_host(*arrays: Array) -> list[Host]:
    """Copy arrays to the host as float64 and broadcast them to a common shape."""
    return list(
        np.broadcast_arrays(*(to_host(array).astype(np.float64) for array in arrays))
    )


def uncertain_like(like: Array, value: object, error: object, method: str) -> Uncertain:
    """Build an ``Uncertain`` from a host value and its error, with the namespace, device and dtype of ``like``."""
    return Uncertain(array_like(value, like), array_like(error, like), method)
