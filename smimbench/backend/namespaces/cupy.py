"""The CuPy backend, for NVIDIA GPUs."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from importlib.resources import files
from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import Backend, BackendError, Elapsed, gpu_free_memory
from smimbench.backend.streaming import pinned_transfers
from smimbench.files import attempt
from smimbench.interfaces import Array

THREADS = 256
"""Threads of a block that draws normal numbers. Doubled (not measured): fewer blocks on a processor at once."""


class CupyBackend(Backend):
    """CuPy backend on one GPU, with CuPy's memory pool and a Philox generator."""

    @property
    def accelerated(self) -> bool:
        """Whether this backend has its own memory: always True for a GPU."""
        return True

    @property
    def processor(self) -> str:
        """Name of the GPU."""
        properties = self.xp.cuda.runtime.getDeviceProperties(self.xp.cuda.Device().id)
        return re.sub(r"[\W_]", "-", properties["name"].decode())

    def standard_normal(
        self, seed: np.random.SeedSequence
    ) -> Callable[[tuple[int, ...]], Array]:
        """Generator of iid N(0, 1) numbers (Philox4x64-10) from a seed, drawn on the GPU in float64 with a 128-bit key.

        CuPy's own generators keep 32 bits of a seed: of as many blocks as a large run has, two would be alike.
        """
        import cupy

        philox_key = seed.generate_state(2, np.uint64).view(np.int64)
        stream_offset = 0

        def draw(shape: tuple[int, ...]) -> Array:
            """Draw an array of normal numbers of this shape, and advance the stream."""
            nonlocal stream_offset
            number_count = math.prod(shape)
            normals = cupy.empty(number_count, dtype=np.float64)
            if number_count:
                groups_of_four = -(-number_count // 4)
                arguments = (
                    *philox_key,
                    np.int64(stream_offset),
                    np.int64(number_count),
                    normals,
                )
                _normal_kernel()(
                    (-(-groups_of_four // THREADS),), (THREADS,), arguments
                )
                stream_offset += groups_of_four
            return normals.reshape(shape)

        return draw

    def reader(self, host: Array) -> Callable[[slice], Array]:
        """Function that copies slices of samples to the GPU, prefetched if they are in pages of the host that can be locked."""
        import cupy

        if not isinstance(host, np.ndarray):
            return super().reader(host)
        try:
            return pinned_transfers(cupy, host)
        except (
            RuntimeError,
            MemoryError,
        ):  # CUDA's errors and CuPy's own: locked memory has limits; slower, not wrong
            return super().reader(host)

    def free_memory(self) -> int | None:
        """Bytes still available for arrays on the GPU, within the limit of CuPy's memory pool."""
        return gpu_free_memory(self.xp)

    def ran_out(self, error: BaseException) -> bool:
        """Whether an error of CuPy, CUDA or its libraries means that the GPU is out of memory."""
        message = f"{type(error).__name__}: {error}"
        return any(
            error_name in message
            for error_name in (
                "OutOfMemoryError",
                "cudaErrorMemoryAllocation",
                "_ALLOC_FAILED",
            )
        )

    def release(self) -> None:
        """Return the unused blocks of CuPy's memory pool to the driver."""
        self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()

    def peak_memory(self) -> int | None:
        """Peak GPU memory in bytes: the size of CuPy's memory pool, which never shrinks by itself."""
        return int(self.xp.get_default_memory_pool().total_bytes())

    def synchronize(self) -> None:
        """Wait until the current CUDA stream is idle."""
        self.xp.cuda.get_current_stream().synchronize()

    def stopwatch(self) -> Callable[[], Elapsed]:
        """Start a time measurement by CUDA events and by the wall clock; the returned function stops it."""
        begin_time = self.clock()
        start_event = self.xp.cuda.Event()
        end_event = self.xp.cuda.Event()
        start_event.record()

        def stop_measuring() -> Elapsed:
            """Stop the measurement, and return the elapsed time."""
            end_event.record()
            seconds = self.clock() - begin_time
            return Elapsed(
                seconds, self.xp.cuda.get_elapsed_time(start_event, end_event) / 1e3
            )

        return stop_measuring


@functools.cache
def _normal_kernel() -> Any:
    """Return the compiled CUDA kernel that draws normal numbers."""
    import cupy

    return cupy.RawKernel(normals_source(), "normals", options=("--std=c++17",))


def normals_source() -> str:
    """Source code of the CUDA kernel that draws normal numbers."""
    return files(__package__).joinpath("philox.cu").read_text(encoding="utf-8")


def _set_tf32(tf32_allowed: bool) -> None:
    """Allow or forbid TF32 in CuPy's float32 matrix products (``tf32_allowed``), for the whole process."""
    import importlib

    linalg_module = importlib.import_module("cupy._core._routines_linalg")
    linalg_module.set_compute_type(
        np.float32,
        linalg_module.COMPUTE_TYPE_TF32
        if tf32_allowed
        else linalg_module.COMPUTE_TYPE_DEFAULT,
    )


def cupy_advice() -> str:
    """Advice to the user on which CuPy package to install for this machine's driver."""
    driver = machine.nvidia_driver()
    if driver is None:
        return (
            "no NVIDIA driver was found either: install one and then pip install 'smimbench[cuda12]' "
            "(or [cuda13] for CUDA 13), or use --backend numpy"
        )
    # two builds of CuPy side by side break each other, and a broken one counts as installed: uninstall first
    installed_packages = _installed_cupy()
    uninstall_command = (
        f"pip uninstall -y {' '.join(installed_packages)} && "
        if installed_packages
        else ""
    )
    return f"{uninstall_command}pip install 'smimbench[{driver.extra}]' fits the driver (CUDA up to {driver.cuda})"


def _installed_cupy() -> list[str]:
    """Names of the installed CuPy packages: ``cupy``, ``cupy-cuda12x``, ..."""
    import re
    from importlib.metadata import distributions

    package_metadata = (
        attempt(getattr, package, "metadata")[0] for package in distributions()
    )
    package_names = {
        str(package["Name"]).lower() for package in package_metadata if package
    }
    return sorted(
        package_name
        for package_name in package_names
        if re.fullmatch(r"cupy(-cuda\d+x|-rocm-[\d-]+)?", package_name)
    )


def _load_cupy() -> tuple[ModuleType, bool]:
    """Import CuPy and report whether it finds a usable device; either step may fail for a wrong build."""
    import cupy

    return cupy, cupy.is_available()


def open_backend(dtype: str, *, tf32: bool = False) -> Backend:
    """Open the backend ``cupy`` with this data type, or raise BackendError without CuPy or a GPU; ``tf32`` allows TF32
    products.
    """
    cupy_and_usability, error = attempt(_load_cupy)
    if error is not None:
        import_failure = (
            "CuPy is not installed"
            if isinstance(error, ModuleNotFoundError)
            else "CuPy cannot be imported"
        )
        reason = " ".join(str(error).split())
        raise BackendError(
            f"backend cupy: {import_failure} ({reason}); {cupy_advice()}"
        ) from None
    cupy, is_usable = cupy_and_usability
    if not is_usable:
        raise BackendError(
            f"backend cupy: CuPy is installed but finds no usable CUDA device; {cupy_advice()}"
        )
    _set_tf32(tf32)
    return CupyBackend(
        "cupy", array_api_compat.array_namespace(cupy.empty(0)), dtype, tf32=tf32
    )


def describe_gpu() -> dict[str, Any]:
    """Driver, CuPy version and GPUs of this machine, with advice if they do not fit together, as JSON."""
    driver = machine.nvidia_driver()
    gpu_texts = []
    advice = None
    cupy_and_usability, error = attempt(_load_cupy)
    cupy: Any
    cupy, is_usable = cupy_and_usability or (None, False)
    if is_usable:
        for gpu_index in range(cupy.cuda.runtime.getDeviceCount()):
            properties = cupy.cuda.runtime.getDeviceProperties(gpu_index)
            gpu_texts.append(
                f"{properties['name'].decode()} ({properties['totalGlobalMem'] / 2**30:.0f} GiB)"
            )
    elif driver:
        advice = cupy_advice() if error else f"CuPy sees no device; {cupy_advice()}"
    version = (
        f"not importable: {' '.join(str(error).split())}" if error else cupy.__version__
    )
    return {
        "driver": driver and driver._asdict(),
        "cupy": version,
        "devices": gpu_texts,
        "advice": advice,
    }
