"""Inputs by the chunk: what one pass of an algorithm reads at a time, and inputs that do not fit the device."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import namespace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Array

__all__ = ["SHARE_OF_MEMORY", "StreamedInputs", "fits", "sample_chunks"]

_WHOLE = "these inputs do not fit the device and are streamed: take slices of the samples, inputs[a:b, ...]"

SHARE_OF_MEMORY = 0.6
"""Part of the free device memory that the inputs may take; the rest is for what is computed from them."""


class StreamedInputs:
    """Inputs (n, T, D) that stay in the memory of the host; a slice of the samples is moved when it is asked for.

    It stands in for the array where the array does not fit the device: it has its shape, dtype, device and namespace, and
    ``inputs[part, ...]`` is an ordinary array of the backend. Any algorithm that goes through the samples chunk by chunk
    (see ``sample_chunks``) works unchanged and with the same results.

    Parameters
    ----------
    host : ndarray (n, T, D)
    backend : Backend

    Raises
    ------
    TypeError
        When it is used as a whole.
    """

    def __init__(self, host: np.ndarray[Any, Any], backend: Backend) -> None:
        self._host = host
        self._backend = backend
        # An empty array of the right kind knows device and dtype in the backend's own terms.
        self.like = backend.asarray(host[:0])

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, T, D)."""
        return tuple(self._host.shape)

    @property
    def ndim(self) -> int:
        """3."""
        return self._host.ndim

    @property
    def dtype(self) -> Any:
        """Data type of what a slice gives."""
        return self.like.dtype

    @property
    def device(self) -> Any:
        """Device of what a slice gives."""
        return self.like.device

    def __len__(self) -> int:
        return len(self._host)

    def __getitem__(self, key: Any) -> Array:
        first = key[0] if isinstance(key, tuple) and key else key
        if not isinstance(first, slice) or first == slice(None):
            raise TypeError(_WHOLE)
        rest = key[1:] if isinstance(key, tuple) else ()
        moved = self._backend.asarray(self._host[first])
        return moved[(slice(None), *rest)] if rest else moved

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        del api_version
        return namespace(self.like)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        raise TypeError(_WHOLE)


def fits(size: int, backend: Backend) -> bool:
    """Whether inputs of so many bytes may live on the device."""
    free = backend.free_memory()
    return free is None or size <= SHARE_OF_MEMORY * free


def sample_chunks(model: Any, inputs: Array, components: int) -> Iterable[slice]:
    """Slices of the samples for one pass over the inputs: forward, posterior and adjoint of one before the next.

    The model's ``chunks`` decides; it is told the bytes of a number and where the work is done, if it asks for them.
    ``components`` is P, or P times the number of students.
    """
    n, _, dimension = inputs.shape
    like = inputs.like if isinstance(inputs, StreamedInputs) else inputs
    bits = namespace(like).finfo(like.dtype).bits
    offered = {"itemsize": int(bits) // 8, "like": like}
    kind: Any = type(model)
    asked = _options(kind)
    return model.chunks(n, dimension, components, **{k: v for k, v in offered.items() if k in asked})  # type: ignore[no-any-return]


@functools.cache
def _options(model: type[Any]) -> frozenset[str]:
    """Names of the arguments that a model's ``chunks`` takes."""
    return frozenset(inspect.signature(model.chunks).parameters)
