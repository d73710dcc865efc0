"""The adaptive quadrature as one fused kernel for CuPy arrays; its source is ``quadrature.cu``.

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
from smimbench_channels.sequence.softmax.two_layers.pieces import Rule

__all__ = ["SOURCE", "block_sums", "options", "source"]

LANES = 16
"""Threads that share a sample, a power of 2 up to 32. Doubled (not measured): idle threads where pieces have few columns."""
THREADS = 128
"""Threads of a block. Doubled (not measured): fewer blocks on a processor at once."""
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


def block_sums(u: Array, omega: Array, rule: Rule, reach: Array, level: Array) -> tuple[Array, Array]:
    """``quadrature.block_sums`` for CuPy arrays, which stay on the device."""
    import cupy

    u, omega, reach, level = (cupy.ascontiguousarray(a, dtype=cupy.float64) for a in (u, omega, reach, level))
    n = u.shape[0]
    sums, error = cupy.empty((rule.moments, n)), cupy.empty(n)
    if n == 0:
        return sums, error
    numbers = (np.float64(v) for v in (*rule.V, rule.skip, rule.accuracy))
    limits = (np.int32(rule.points), np.int32(rule.rounds), np.float64(rule.negligible), np.float64(rule.share))
    per_block = THREADS // LANES
    _kernel(rule.full)(
        ((n + per_block - 1) // per_block,),
        (THREADS,),
        (u, omega, reach, level, *numbers, *limits, np.int64(n), sums, error),
    )
    return sums, error
