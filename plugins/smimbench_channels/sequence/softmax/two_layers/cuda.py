"""The adaptive quadrature as one fused kernel for CuPy arrays; the source is ``quadrature.cu``.

The array version writes a dozen temporaries for every point of every column and is bound by memory; here a sample is done by
``LANES`` neighbouring threads in registers. Checked on any machine, compiled for the host, by
tests/channels/sequence/test_softmax_cuda.py, and against the array version on a device by ``pytest -m gpu``.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any

import numpy as np

from smimbench.interfaces import Array

__all__ = ["SOURCE", "integrate_block", "options"]

LANES = 16
THREADS = 128
SOURCE = "quadrature.cu"


def source() -> str:
    """Text of the kernel."""
    return files(__package__).joinpath(SOURCE).read_text(encoding="utf-8")


def options(full: bool) -> tuple[str, ...]:
    """What the compiler has to be told."""
    return (f"-DFULL={int(full)}", f"-DLANES={LANES}", f"-DTHREADS={THREADS}", "--std=c++14")


@functools.cache
def _kernel(full: bool) -> Any:
    import cupy

    return cupy.RawKernel(source(), "integrate_block", options=options(full))


def integrate_block(
    u: Array,
    omega: Array,
    V: tuple[float, float, float],
    skip: float,
    accuracy: float,
    full: bool,
    points: int,
    reach: Array,
    level: Array,
    rules: tuple[float, float, float],
) -> tuple[Array, Array]:
    """As ``_fast.integrate_block``, for CuPy arrays, which stay on the device.

    Returns
    -------
    sums, error : array (8 or 15, n), (n,)
    """
    import cupy

    u, omega, reach, level = (cupy.ascontiguousarray(a, dtype=cupy.float64) for a in (u, omega, reach, level))
    n = u.shape[0]
    sums, error = cupy.empty((15 if full else 8, n)), cupy.empty(n)
    if n == 0:
        return sums, error
    rounds, negligible, share = rules
    numbers = (np.float64(v) for v in (*V, skip, accuracy))
    rest = (np.int32(points), np.int32(rounds), np.float64(negligible), np.float64(share), np.int64(n))
    per_block = THREADS // LANES
    _kernel(full)(
        ((n + per_block - 1) // per_block,),
        (THREADS,),
        (u, omega, reach, level, *numbers, *rest, sums, error),
    )
    return sums, error
