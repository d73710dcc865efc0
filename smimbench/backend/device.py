"""Backend: an array namespace on a device, with its clock, random numbers, free memory and the chunk size that fits it.

NumPy's backend is the base class; each other one is a file in ``smimbench/backend/namespaces``, found by its name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import NUMPY, on_device
from smimbench.files import ForeseenError
from smimbench.interfaces import Array

NAMESPACES = Path(__file__).with_name("namespaces")
"""Folder with one file per backend other than NumPy's."""

SHARE_OF_CHUNK = 8
"""Ratio of free memory to the size of a chunk: streaming holds three chunks of inputs, and models make temporaries of that size.
Doubled: twice as many chunks where memory is short."""
LARGEST_CHUNK = 1 << 30
"""Maximum size of a chunk in bytes: its products take a hundred times as long as its calls. Doubled: larger
temporaries, no time won."""
SMALLEST_CHUNK = 1 << 20
"""Minimum size of a chunk in bytes, regardless of the free memory. Doubled: out of memory a little earlier."""


class BackendError(ForeseenError, RuntimeError):
    """Error raised when a requested backend cannot be used on this machine."""


class Elapsed(NamedTuple):
    """Time that passed between two readings of a backend's clock: ``seconds`` in all, and ``device_seconds`` of the device's
    own work.

    ``seconds`` on the wall, from idle device to idle device; ``device_seconds`` between two events on the device's own
    stream, None where there is no device.
    """

    seconds: float
    device_seconds: float | None = None


@dataclass(frozen=True)
class Backend:
    """Array backend: an array library ``xp`` on one device with one real data type ``dtype``, by its ``name`` in suites.
    ``tf32`` allows TF32 in products of float32; ``storage`` is the data type in which inputs are stored, if another.

    This class is right for every namespace that computes in the memory of the host. One with a device of its own is a subclass
    that says how to wait for it, what memory it has and how it draws random numbers.

    Attributes
    ----------
    name : str
        ``"numpy"``, ``"cupy"``, ``"torch"`` or the name of another array API namespace (tests).
    xp : module
        The namespace.
    dtype : str
        ``"float64"`` or ``"float32"``.
    storage : str or None
        ``"float32"`` where the inputs are stored in less than ``dtype``; None where they are not.
    device : object or None
        Device in the namespace's own terms; None for its default.
    tf32 : bool
        Whether matrix products of float32 may round their factors to ten bits (NVIDIA's TF32).
    """

    name: str
    xp: ModuleType
    dtype: str = "float64"
    device: object = field(default=None)
    tf32: bool = False
    storage: str | None = None

    def asarray(self, array: Array, *, dtype: str | None = None) -> Array:
        """Copy a host array to this backend; floating-point arrays are converted to the backend's dtype.

        An array that lives here already is returned as it is, in the right dtype.
        """
        if on_device(array):
            is_floating = self.xp.isdtype(array.dtype, "real floating")
            target_dtype = (
                getattr(self.xp, dtype or self.dtype)
                if is_floating or dtype
                else array.dtype
            )
            return self.xp.astype(array, target_dtype, copy=False)
        dtype_kind = np.asarray(array).dtype.kind
        target_dtype = (
            getattr(self.xp, dtype or self.dtype)
            if dtype_kind == "f" or dtype
            else None
        )
        return self.xp.asarray(array, dtype=target_dtype, device=self.device)

    @property
    def accelerated(self) -> bool:
        """Whether this backend computes on a device with its own memory, such as a GPU."""
        return False

    @property
    def processor(self) -> str:
        """Name of the GPU, in letters, digits and ``-``; on the host, the name of the backend."""
        return self.name

    def standard_normal(
        self, seed: np.random.SeedSequence
    ) -> Callable[[tuple[int, ...]], Array]:
        """Generator of iid N(0, 1) numbers in float64 from a seed, drawn on this backend's device.

        Calls continue one stream; equal seeds give equal streams on one kind of device, different ones on another.
        """
        generator = np.random.Generator(np.random.PCG64DXSM(seed))
        return lambda shape: self.asarray(
            generator.standard_normal(shape), dtype="float64"
        )

    def reader(self, host: Array) -> Callable[[slice], Array]:
        """Function that copies a slice of samples of a host array to this backend, in the host's data type."""
        return lambda samples: self.asarray(host[samples], dtype=host.dtype.name)

    def free_memory(self) -> int | None:
        """Bytes still available for arrays on the device; None for the host."""
        return None

    def ran_out(self, error: BaseException) -> bool:
        """Whether an exception means that the device is out of memory; always False on the host."""
        return False

    def release(self) -> None:
        """Release cached device memory, so that the next measurement starts with all memory free."""

    def peak_memory(self) -> int | None:
        """Peak device memory in bytes since the last ``release``; None for the host."""
        return None

    def synchronize(self) -> None:
        """Wait until all queued operations of the device are done."""

    def clock(self) -> float:
        """Read a monotonic clock, in seconds, after waiting until the device is idle."""
        self.synchronize()
        return time.perf_counter()

    def stopwatch(self) -> Callable[[], Elapsed]:
        """Start a time measurement on an idle device; the returned function stops it."""
        begin_time = self.clock()
        return lambda: Elapsed(self.clock() - begin_time)


@functools.cache
def _keep_freed_memory() -> None:
    """Make the host's memory allocator keep freed memory instead of returning it to the system.

    glibc maps large arrays again each time and trims its heap after each release, until it has seen a larger array
    come and go; on a virtual machine the page faults cost as much as the matrix products between them. Nothing is
    touched here, so nothing is used.
    """
    mapping_threshold = 1 << 25  # from here on arrays are always mapped
    np.empty(mapping_threshold - (1 << 16), dtype=np.uint8)


@functools.cache
def backend_names() -> tuple[str, ...]:
    """Names of all backends, whether usable on this machine or not."""
    return tuple(
        sorted(
            [
                *(module.name for module in pkgutil.iter_modules([str(NAMESPACES)])),
                "numpy",
            ]
        )
    )


def get_backend(
    name: str = "numpy", dtype: str = "float64", *, tf32: bool = False
) -> Backend:
    """Open a backend by its name, with the data type ``dtype``: ``"float64"``, ``"float32"`` or ``"mixed"``; ``tf32`` allows
    TF32 in products of float32.

    ``"mixed"`` stores the inputs in float32 and computes in float64.
    ``tf32`` allows TF32 in matrix products of float32; it is without effect on processors and in float64.

    Raises
    ------
    BackendError
        In one line, with the command that would make it work.
    """
    _keep_freed_memory()
    if name not in backend_names():
        raise BackendError(
            f"unknown backend {name!r}; choose one of {', '.join(backend_names())}"
        )
    is_mixed = dtype == "mixed"
    compute_dtype = "float64" if is_mixed else dtype
    if name == "numpy":
        backend = Backend("numpy", NUMPY, compute_dtype, tf32=tf32)
    else:
        module = importlib.import_module(f"smimbench.backend.namespaces.{name}")
        backend = module.open_backend(compute_dtype, tf32=tf32)
    return replace(backend, storage="float32") if is_mixed else backend


_chunk_scale: ContextVar[float] = ContextVar("caution", default=1.0)


@contextlib.contextmanager
def reduced_chunks(fraction: float) -> Iterator[None]:
    """Context manager that reduces chunk sizes and the memory for resident inputs to this fraction.

    It is used after a run ran out of device memory: free memory beforehand does not tell how much an algorithm will take.
    """
    context_token = _chunk_scale.set(fraction)
    try:
        yield
    finally:
        _chunk_scale.reset(context_token)


def chunk_scale() -> float:
    """Current chunk size as a fraction of the normal chunk size, set by ``reduced_chunks``."""
    return _chunk_scale.get()


def free_memory(like: Array) -> int | None:
    """Bytes still available for arrays on the device of ``like``; None for the host."""
    if type(like) is not np.ndarray and array_api_compat.is_cupy_array(like):
        import cupy

        return gpu_free_memory(cupy)
    return None


def gpu_free_memory(cupy: ModuleType) -> int:
    """Bytes still available for arrays on the current GPU, within the limit of CuPy's memory pool."""
    pool = cupy.get_default_memory_pool()
    driver_free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    # Unused blocks of the pool are available to us, although the driver counts them as taken.
    available_bytes = int(driver_free_bytes) + int(pool.free_bytes())
    pool_limit = int(pool.get_limit())
    return (
        min(available_bytes, pool_limit - int(pool.used_bytes()))
        if pool_limit
        else available_bytes
    )


def chunk_bytes(like: Array) -> int | None:
    """Size in bytes of one chunk of samples on the device of ``like``; None for the host.

    A power of 2, so that a little more or less free memory changes neither the chunks nor, by the order of sums, a result.
    """
    free_bytes = free_memory(like)
    if free_bytes is None:
        return None
    normal_size = min(max(free_bytes // SHARE_OF_CHUNK, SMALLEST_CHUNK), LARGEST_CHUNK)
    reduced_size = max(1, int(normal_size * chunk_scale()))
    return 1 << (reduced_size.bit_length() - 1)
