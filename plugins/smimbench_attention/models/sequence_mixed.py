"""Mixed-precision GPU products of the sequence model: inputs in float32, everything else in float64.

The CUDA kernels are in ``sequence_mixed.cu``.

A matrix product would first make a copy of the inputs in float64: three times the traffic of what it saves. Checked on any
machine, compiled for the host, by tests/models/test_sequence_mixed.py; not measured on a device.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from smimbench.interfaces import Array

MAXIMUM_COMPONENTS = 8
"""Largest number of components whose sums a GPU thread can hold in registers. Doubled: they spill to memory."""
THREADS = 128
ROWS = 4
"""Threads per block, and tokens that a block processes, as in the CUDA kernels."""
SHARES = 64
"""Parts into which ``push`` splits the tokens, so that there are enough threads. Doubled (not measured): more partial sums."""


def source(components: int) -> str:
    """Source code of the CUDA kernels for this number of components."""
    return f"#define P {components}\n" + files(__package__).joinpath(
        "sequence_mixed.cu"
    ).read_text(encoding="utf-8")


@functools.cache
def _kernel(name: str, components: int) -> Any:
    import cupy

    return cupy.RawKernel(source(components), name, options=("--std=c++14",))


def project(flat: Array, rows: Array) -> Array:
    """Products (k, P) of the tokens (k, D) in float32 with vectors (P, D) in float64."""
    import cupy

    (count, size), components = flat.shape, rows.shape[0]
    products = cupy.empty((count, components), dtype=np.float64)
    if count:
        arguments = (
            flat,
            cupy.ascontiguousarray(rows),
            np.int64(count),
            np.int64(size),
            products,
        )
        _kernel("project", components)((-(-count // ROWS),), (THREADS,), arguments)
    return products


def push(weights: Array, flat: Array) -> Array:
    """Weighted sums (P, D) of the tokens (k, D) in float32, with weights (P, k) in float64."""
    import cupy

    (count, size), components = flat.shape, weights.shape[0]
    share = max(1, -(-count // SHARES))
    sums = cupy.zeros((-(-count // share), components, size), dtype=np.float64)
    if count:
        arguments = (
            flat,
            cupy.ascontiguousarray(weights.T),
            np.int64(count),
            np.int64(size),
            np.int64(share),
            sums,
        )
        _kernel("push", components)(
            (-(-size // THREADS), sums.shape[0]), (THREADS,), arguments
        )
    return sums.sum(axis=0)
