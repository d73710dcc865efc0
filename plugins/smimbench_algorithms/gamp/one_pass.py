"""The optional extra ``fast``: one compiled pass over inputs that are larger than any cache."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.interfaces import offers

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Data
    from smimbench.problem import Problem

__all__ = ["OnePass", "available", "one_pass"]

WORTHWHILE = 1 << 26
"""Numbers in the inputs from which on the seconds of compiling are won back within a usual run. Doubled: fewer runs are
compiled."""


class OnePass(NamedTuple):
    """What an iteration of GAMP takes from the data: ``g`` (n, P, C), its adjoint, and the sum of posterior covariances."""

    g: Array
    adjoint: Array
    covariance: Array


@functools.cache
def available() -> bool:
    """Whether Numba can be used (``pip install 'smimbench[fast]'``)."""
    try:
        import numba
    except Exception:  # a Numba for another NumPy raises anything
        return False
    return bool(numba.__version__)


def one_pass(problem: Problem, data: Data, signal: Array, V: Array, g: Array | None) -> OnePass | None:
    """Forward, posterior and adjoint of all samples in compiled code, or None where that is not possible or not worth it.

    It takes a model with ``one_pass``, a channel with ``compiled``, NumPy arrays of float64, and ``WORTHWHILE`` numbers.
    The result equals that of the chunk-by-chunk loop up to rounding.

    Parameters
    ----------
    signal : array (P, D)
    V : array (P, P)
    g : array (n, P, C) or None
        That of the last iteration, for the Onsager term.
    """
    model: Any = problem.model
    channel: Any = problem.channel
    inputs = data.inputs
    if not (offers(model, "one_pass") and offers(channel, "compiled")):
        return None
    plain = isinstance(inputs, np.ndarray) and inputs.dtype == np.float64 and inputs.flags.c_contiguous
    if not plain or inputs.size < WORTHWHILE or not available():
        return None
    found = channel.compiled(V)
    if found is None:
        return None
    return OnePass(*model.one_pass(*found, inputs, data.labels, signal, V, g))
