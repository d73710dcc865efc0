"""Compiles the softmax channel's kernels with numba; machine code is cached if there is a folder for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, without the interpreter lock and without checks for division by zero.

    The machine code is kept for the next process. Where no folder can be written to, each process compiles again.
    """
    try:
        kernel: Callable[..., Any] = njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no folder to keep the machine code in
        kernel = njit(nogil=True, error_model="numpy")(function)
    return kernel
