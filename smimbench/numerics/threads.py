"""Independent pieces of a computation in several threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from itertools import repeat
from typing import Any

from smimbench.numerics.memo import T


def map_in_threads(function: Callable[[Any], T], arguments: Sequence[Any]) -> list[T]:
    """Results of ``function`` for each of the ``arguments``, in their order, computed in as many threads as BLAS may use.

    Meanwhile every matrix product runs in a single thread, so that no bit of a result depends on the number of threads. This pays
    where NumPy or compiled code does the work, since both release the interpreter lock.

    ``function`` is called from several threads at once, each time in a copy of the caller's context (with NumPy's ``errstate``).
    """
    from concurrent.futures import ThreadPoolExecutor

    from smimbench.backend.machine import blas_threads

    contexts = [copy_context() for _ in arguments]
    with (
        blas_threads(1) as limits,
        ThreadPoolExecutor(limits.get_original_num_threads()["blas"] or 1) as executor,
    ):
        return list(executor.map(Context.run, contexts, repeat(function), arguments))
