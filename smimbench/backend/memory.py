"""Memory of an accelerator: how much is free, and how much one chunk of samples may use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import array_api_compat
import numpy as np

from smimbench.interfaces import Array

SHARE_OF_CHUNK = 8
"""Ratio of free memory to the size of a chunk: streaming holds three chunks of inputs, and models make temporaries of that size.
Doubled: twice as many chunks where memory is short."""
LARGEST_CHUNK = 1 << 30
"""Maximum size of a chunk in bytes: its products take a hundred times as long as its calls. Doubled: larger
temporaries, no time won."""
SMALLEST_CHUNK = 1 << 20
"""Minimum size of a chunk in bytes, regardless of the free memory. Doubled: out of memory a little earlier."""


_chunk_scale: ContextVar[float] = ContextVar("caution", default=1.0)


@contextlib.contextmanager
def reduced_chunks(share: float) -> Iterator[None]:
    """Context manager that reduces chunk sizes and the memory for resident inputs to this fraction.

    It is used after a run ran out of device memory: free memory beforehand does not tell how much an algorithm will take.
    """
    token = _chunk_scale.set(share)
    try:
        yield
    finally:
        _chunk_scale.reset(token)


def chunk_scale() -> float:
    """Current chunk size as a fraction of the normal chunk size, set by ``reduced_chunks``."""
    return _chunk_scale.get()


def free_memory(like: Array) -> int | None:
    """Bytes still available for arrays on the device of ``like``; None for the host."""
    if type(like) is not np.ndarray and array_api_compat.is_cupy_array(like):
        import cupy

        from smimbench.backend.namespaces.cupy import free_memory as on_gpu

        return on_gpu(cupy)
    return None


def chunk_bytes(like: Array) -> int | None:
    """Size in bytes of one chunk of samples on the device of ``like``; None for the host.

    A power of 2, so that a little more or less free memory changes neither the chunks nor, by the order of sums, a result.
    """
    free = free_memory(like)
    if free is None:
        return None
    share = min(max(free // SHARE_OF_CHUNK, SMALLEST_CHUNK), LARGEST_CHUNK)
    size = max(1, int(share * chunk_scale()))
    return 1 << (size.bit_length() - 1)
