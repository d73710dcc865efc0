"""Devices: what differs between NumPy and CuPy besides the namespace, in one place."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import NUMPY, on_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array

__all__ = ["Backend", "BackendError", "Elapsed", "get_backend"]

BACKENDS = ("numpy", "cupy")


class BackendError(RuntimeError):
    """The backend that was asked for cannot be used on this machine."""


class Elapsed(NamedTuple):
    """What passed between two readings of a backend's clock.

    Attributes
    ----------
    seconds : float
        On the wall, from idle device to idle device.
    device_seconds : float or None
        Between two events on the device's own stream; None where there is no device.
    """

    seconds: float
    device_seconds: float | None = None


@dataclass(frozen=True)
class Backend:
    """One array namespace on one device with one real data type.

    Attributes
    ----------
    name : str
        ``"numpy"``, ``"cupy"`` or the name of another array API namespace (tests).
    xp : module
        The namespace.
    dtype : str
        ``"float64"`` or ``"float32"``.
    device : object or None
        Device in the namespace's own terms; None for its default.
    tf32 : bool
        Whether matrix products of float32 may round their factors to ten bits (NVIDIA's TF32).
    """

    name: str
    xp: Any
    dtype: str = "float64"
    device: Any = field(default=None)
    tf32: bool = False

    def asarray(self, array: Array, *, dtype: str | None = None) -> Array:
        """Move a host array here. Floating-point arrays get this backend's dtype, others keep theirs.

        An array that lives here already is returned as it is, in the right dtype.
        """
        if on_device(array):
            floating = self.xp.isdtype(array.dtype, "real floating")
            wanted = getattr(self.xp, dtype or self.dtype) if floating or dtype else array.dtype
            return self.xp.astype(array, wanted, copy=False)
        kind = np.asarray(array).dtype.kind
        wanted = getattr(self.xp, dtype or self.dtype) if kind == "f" or dtype else None
        return self.xp.asarray(array, dtype=wanted, device=self.device)

    @property
    def accelerated(self) -> bool:
        """Whether this is a device with a memory of its own."""
        return self.name == "cupy"

    def standard_normal(self, seed: np.random.SeedSequence) -> Callable[[tuple[int, ...]], Array]:
        """A stream of iid N(0, 1) numbers, drawn where this backend computes, in float64.

        Calls continue one stream; equal seeds give equal streams on one kind of device, different ones on another.
        """
        if self.accelerated:
            words = seed.generate_state(2, np.uint64)
            source = self.xp.random.Generator(self.xp.random.Philox4x3210(int(words[0])))
            return lambda shape: source.standard_normal(shape, dtype=np.float64)
        host = np.random.Generator(np.random.PCG64DXSM(seed))
        return lambda shape: self.asarray(host.standard_normal(shape), dtype="float64")

    def free_memory(self) -> int | None:
        """Bytes that arrays may still take on the device, the limit of its memory pool respected; None for the host."""
        if not self.accelerated:
            return None
        pool: Any = self.xp.get_default_memory_pool()
        free, _ = self.xp.cuda.runtime.memGetInfo()
        # What the pool holds without using it is free for us, though the driver counts it as taken.
        available = int(free) + int(pool.free_bytes())
        limit = int(pool.get_limit())
        return min(available, limit - int(pool.used_bytes())) if limit else available

    def release(self) -> None:
        """Give cached device memory back, so that what follows is measured, and fits, on its own."""
        if self.accelerated:
            self.xp.get_default_memory_pool().free_all_blocks()
            self.xp.get_default_pinned_memory_pool().free_all_blocks()

    def peak_memory(self) -> int | None:
        """Largest size of the device's memory pool since ``release``, in bytes; None for the host.

        A pool grows until it is told to give back, so its present size is its largest.
        """
        return int(self.xp.get_default_memory_pool().total_bytes()) if self.accelerated else None

    def synchronize(self) -> None:
        """Wait until every queued operation is done."""
        if self.accelerated:
            self.xp.cuda.get_current_stream().synchronize()

    def clock(self) -> float:
        """Seconds on a monotonic clock, read when the device is idle."""
        self.synchronize()
        return time.perf_counter()

    def stopwatch(self) -> Callable[[], Elapsed]:
        """Start measuring on an idle device; call the result to stop."""
        begin = self.clock()
        if not self.accelerated:
            return lambda: Elapsed(self.clock() - begin)
        first, last = self.xp.cuda.Event(), self.xp.cuda.Event()
        first.record()

        def stop() -> Elapsed:
            last.record()
            seconds = self.clock() - begin
            return Elapsed(seconds, self.xp.cuda.get_elapsed_time(first, last) / 1e3)

        return stop


@functools.cache
def _keep_freed_memory() -> None:
    """Let the host's allocator keep what is freed instead of returning it to the system.

    glibc maps large arrays anew each time and trims its heap after each release, until it has seen a larger array
    come and go; on a virtual machine the page faults cost as much as the matrix products between them. Nothing is
    touched here, so nothing is used.
    """
    largest = 1 << 25  # from here on arrays are always mapped
    np.empty(largest - (1 << 16), dtype=np.uint8)


def _set_tf32(allowed: bool) -> None:
    """Say how CuPy multiplies matrices of float32, for the whole process; otherwise an environment variable decides."""
    import importlib

    products = importlib.import_module("cupy._core._routines_linalg")
    products.set_compute_type(
        np.float32, products.COMPUTE_TYPE_TF32 if allowed else products.COMPUTE_TYPE_DEFAULT
    )


def cupy_advice() -> str:
    """The command that makes CuPy work with the driver of this machine, or why none would."""
    from smimbench.backend.machine import nvidia_driver

    driver = nvidia_driver()
    if driver is None:
        return (
            "no NVIDIA driver was found either: install one and then pip install 'smimbench[cuda12]' "
            "(or [cuda13] for CUDA 13), or use --backend numpy"
        )
    # two builds of CuPy side by side break each other, and a broken one counts as installed: away with it first
    there = _installed_cupy()
    away = f"pip uninstall -y {' '.join(there)} && " if there else ""
    return f"{away}pip install 'smimbench[{driver.extra}]' fits the driver (CUDA up to {driver.cuda})"


def _installed_cupy() -> list[str]:
    """Names of the packages by which CuPy has been installed: ``cupy``, ``cupy-cuda12x``, ..."""
    import re
    from importlib.metadata import distributions

    names = {str(found.metadata["Name"]).lower() for found in distributions()}
    return sorted(name for name in names if re.fullmatch(r"cupy(-cuda\d+x|-rocm-[\d-]+)?", name))


def get_backend(name: str = "numpy", dtype: str = "float64", *, tf32: bool = False) -> Backend:
    """Find a backend by name, ready for use.

    Parameters
    ----------
    name : str
        ``"numpy"`` or ``"cupy"``.
    dtype : str
        ``"float64"`` or ``"float32"``.
    tf32 : bool
        Allow TF32 in matrix products of float32; without effect on processors and in float64.

    Raises
    ------
    BackendError
        In one line, with the command that would make it work.
    """
    _keep_freed_memory()
    if name == "numpy":
        return Backend("numpy", NUMPY, dtype, tf32=tf32)
    if name == "cupy":
        try:
            import cupy

            usable = cupy.is_available()
        except Exception as error:  # a CuPy for another CUDA or NumPy fails in many ways
            found = (
                "CuPy is not installed"
                if isinstance(error, ModuleNotFoundError)
                else "CuPy cannot be imported"
            )
            reason = " ".join(str(error).split())
            raise BackendError(f"backend cupy: {found} ({reason}); {cupy_advice()}") from None
        if not usable:
            raise BackendError(
                f"backend cupy: CuPy is installed but finds no usable CUDA device; {cupy_advice()}"
            )
        _set_tf32(tf32)
        return Backend("cupy", array_api_compat.array_namespace(cupy.empty(0)), dtype, tf32=tf32)
    raise BackendError(f"backend {name}: unknown; choose one of {', '.join(BACKENDS)}")
