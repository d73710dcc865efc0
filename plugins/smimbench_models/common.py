"""What both models need: chunks that fit the cache, the fixing of a symmetry, checks of parameters."""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from smimbench.backend import namespace, to_host
from smimbench.interfaces import SYMMETRIES, ParameterError

if TYPE_CHECKING:
    from smimbench.interfaces import Array


# Bytes of a chunk on an accelerator, which gains nothing from its cache and pays for every launch. Doubled: twice the memory of
# the temporaries. (How much of a host's cache a chunk should fill depends on what is done with it, see the models.)
ACCELERATOR_CHUNK_BYTES = 1 << 28
# Bytes drawn at once where the numbers must be rounded to another dtype. Doubled: twice the buffer.
DRAW_BYTES = 1 << 21


def check_tokens(tokens: object, least: int) -> None:
    """Raise ParameterError unless ``tokens`` is an integer of at least ``least``."""
    if isinstance(tokens, bool) or not isinstance(tokens, Integral) or tokens < least:
        raise ParameterError("tokens", f"must be an integer >= {least}, got {tokens!r}")


def check_inputs(inputs: Array, tokens: int, dimension: int) -> None:
    """Raise ValueError unless ``inputs`` is (n, tokens, dimension)."""
    if inputs.ndim != 3 or tuple(inputs.shape[1:]) != (tokens, dimension):
        raise ValueError(f"inputs must have shape (n, {tokens}, {dimension}), got {tuple(inputs.shape)}")


def nearest_count(alpha: float, unit: int) -> int:
    """Integer closest to ``alpha * unit``, at least 1."""
    if not math.isfinite(alpha) or alpha < 0:
        raise ParameterError("alpha", f"must be finite and >= 0, got {alpha}")
    return max(1, round(alpha * unit))


def chunk_slices(n: int, sample_bytes: int, least: int, like: Array | None, host_bytes: int) -> list[slice]:
    """Consecutive slices of about equal length that cover ``range(n)``.

    ``sample_bytes`` is what one sample occupies, ``least`` the smallest sensible number of samples of a
    slice, ``like`` an array whose device decides about the size (None: the host), and ``host_bytes`` the
    size of a slice there.
    """
    budget = ACCELERATOR_CHUNK_BYTES if like is not None and _accelerated(like) else host_bytes
    count = max(1, math.ceil(n / max(least, budget // sample_bytes)))
    step = math.ceil(n / count) if n else 1
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _accelerated(array: Array) -> bool:
    return bool(array_api_compat.is_cupy_array(array))


def fill_normal(rng: np.random.Generator, out: np.ndarray[Any, Any]) -> None:
    """Fill a host array with iid N(0, 1) numbers in place; all dtypes see the same stream, rounded."""
    if out.dtype == np.float64 and out.flags.c_contiguous:
        rng.standard_normal(out=out)
        return
    row = max(1, out[0].size) if len(out) else 1
    step = max(1, DRAW_BYTES // (8 * row))
    for start in range(0, len(out), step):
        part = out[start : start + step]
        part[...] = rng.standard_normal(part.shape)


def align(signal: Array, estimate: Array, symmetry: str, inner: Array) -> Array:
    """The element of the estimate's orbit under ``symmetry`` that is closest to the signal.

    Minimises ``sum_p |s_p - (g shat)_p|^2`` over the group, which is the maximisation of ``sum_p s_p . (g
    shat)_p``.

    Parameters
    ----------
    signal, estimate : array (P, ...)
        Not modified.
    symmetry : str
        ``"none"``, ``"signs"`` (one per component), ``"common-sign"`` (one for all), ``"permutations"`` (of the
        components), ``"permutations-common-sign"`` (the last two), ``"signed-permutations"`` (the first and the third) or
        ``"rotations"`` (orthogonal P x P, reflections included).
    inner : array (P, P)
        ``inner(signal, estimate)`` of the model, in any normalisation.

    Returns
    -------
    array (P, ...)

    Raises
    ------
    ValueError
        If ``symmetry`` has another name.
    """
    if symmetry not in SYMMETRIES:
        raise ValueError(f"symmetry must be one of {', '.join(SYMMETRIES)}, got {symmetry!r}")
    if symmetry == "none":
        return estimate
    xp = namespace(signal, estimate)
    shape = estimate.shape
    flat = xp.reshape(estimate, (shape[0], -1))
    if symmetry == "rotations":
        left, _, right = xp.linalg.svd(inner, full_matrices=False)
        return xp.reshape(xp.matmul(xp.matmul(left, right), flat), shape)
    order, signs = _best_move(to_host(inner), symmetry)
    device = array_api_compat.device(estimate)
    flat = xp.take(flat, xp.asarray(order, device=device), axis=0)
    if np.any(signs < 0):
        flat = flat * xp.asarray(signs[:, None], dtype=estimate.dtype, device=device)
    return xp.reshape(flat, shape)


def _best_move(
    matrix: np.ndarray[Any, Any], symmetry: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Order (P,) of the estimate's components, and their signs (P,), with the largest sum of ``matrix[p, order[p]]``."""
    rows = np.arange(len(matrix))

    def matched(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if "permutations" not in symmetry:
            return rows
        from scipy.optimize import linear_sum_assignment

        return np.asarray(linear_sum_assignment(scores, maximize=True)[1])

    if symmetry in ("signs", "signed-permutations"):
        order = matched(np.abs(matrix))
        # A sign of 0 would wipe out a component that happens to be orthogonal to its target.
        return order, np.where(matrix[rows, order] < 0, -1.0, 1.0)
    choices = [(1.0, matched(matrix))]
    if symmetry.endswith("common-sign"):
        choices.append((-1.0, matched(-matrix)))
    sign, order = max(choices, key=lambda choice: choice[0] * float(matrix[rows, choice[1]].sum()))
    return order, np.full(len(rows), sign)
