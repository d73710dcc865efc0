"""NumPy on the processors of the host."""

from __future__ import annotations

from smimbench.backend.arrays import NUMPY
from smimbench.backend.device import Backend


def open_backend(dtype: str, *, tf32: bool = False) -> Backend:
    """The backend ``numpy``; it is always there."""
    return Backend("numpy", NUMPY, dtype, tf32=tf32)
