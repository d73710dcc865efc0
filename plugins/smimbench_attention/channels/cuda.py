"""Numba's compiler for CUDA, ``cuda``, imported so that it works with NumPy 2.5, too."""

from __future__ import annotations

import contextlib
import importlib
import warnings

import numpy as np

__all__ = ["cuda"]

with warnings.catch_warnings():
    # numba-cuda 0.30 names a unit that is deprecated, and a function that is gone, in modules that it imports when it compiles.
    warnings.simplefilter("ignore", DeprecationWarning)
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # noqa: NPY201
    from numba import cuda

    with contextlib.suppress(ImportError):  # the simulator has no such module
        importlib.import_module("numba.cuda.np.arrayobj")
