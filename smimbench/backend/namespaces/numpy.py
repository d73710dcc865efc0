"""The NumPy backend, on the host's processors."""

from __future__ import annotations

from smimbench.backend.arrays import NUMPY
from smimbench.backend.device import Backend


def open_backend(dtype: str, *, tf32: bool = False) -> Backend:
    """Open the backend ``numpy``, which is always available."""
    return Backend("numpy", NUMPY, dtype, tf32=tf32)
