"""The machine that runs the benchmark: processor, BLAS threads, driver, versions, peak memory, and its speed limits.

An iteration cannot be faster than its matrix products at the rate of a large one, nor than reading its inputs at the
bandwidth of memory. Whichever of the two takes longer is the ceiling that bounds an algorithm, and the time it needs
over the time it takes is the fraction that the runtime table shows (a roofline).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend.device import Backend, get_backend
from smimbench.files import StoreError, canonical_json, unless, write_atomically

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

PEAK_RATES_VERSION = 1
REPEATS = 7
LARGEST_READ = 1 << 29
PEAK_RATE_KEYS = ("float64", "float32", "tf32", "bandwidth")


class Driver(NamedTuple):
    """Version of an NVIDIA driver and the newest CUDA version (``cuda``) it supports (``"?"`` if unknown)."""

    version: str
    cuda: str

    @property
    def extra(self) -> str:
        """Optional dependency group of smimbench (``cuda12`` or ``cuda13``) whose CuPy fits this driver."""
        return "cuda13" if self.cuda.startswith("13") else "cuda12"


@functools.cache
def machine_info() -> dict[str, object]:
    """Description of this machine: processor, cores, memory, system and the BLAS that NumPy uses."""
    import psutil
    from threadpoolctl import threadpool_info

    blas_libraries = [
        library for library in threadpool_info() if library.get("user_api") == "blas"
    ]
    # SciPy may bring another BLAS; the description must not change when it happens to be loaded.
    numpy_folder = str(Path(np.__file__).resolve().parent)
    numpy_libraries = [
        library
        for library in blas_libraries
        if str(library.get("filepath")).startswith(numpy_folder)
    ]
    blas_names = {
        f"{library.get('internal_api')} {library.get('version')}"
        for library in numpy_libraries or blas_libraries
    }
    return {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "blas": sorted(blas_names),
    }


def usable_cores() -> int:
    """Number of cores that this process may use, under a batch system or in a container often less than all.

    The minimum of its affinity, of the processor time that its control groups allow, and of ``SLURM_CPUS_PER_TASK``.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    core_limits = [cores, cpu_quota()]
    slurm_cores = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm_cores.isdecimal():
        core_limits.append(int(slurm_cores))
    return max(1, math.ceil(min(core_limits)))


def cpu_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float:
    """Number of processors that the Linux control groups (cgroups v1 or v2) allow; infinity without a limit. ``membership``
    is the file that lists the groups of this process, ``root`` the folder of all groups.
    """
    quota = math.inf
    for group_line in (unless(OSError, membership.read_text) or "").splitlines():
        _, controllers, path = group_line.split(":", 2)
        group_root, quota_files = root, ["cpu.max"]
        if controllers:  # version 1
            if "cpu" not in controllers.split(","):
                continue
            group_root, quota_files = (
                root / "cpu",
                ["cpu.cfs_quota_us", "cpu.cfs_period_us"],
            )
        group_path = group_root / path.lstrip("/")
        # In a container the root may be any parent of the group.
        for group_folder in (group_path, *group_path.parents):
            quota_texts = [
                unless(OSError, (group_folder / quota_file).read_text) or ""
                for quota_file in quota_files
            ]
            quota_match = re.fullmatch(r"(\d+)\s+([1-9]\d*)\s*", " ".join(quota_texts))
            if quota_match:  # else "max", or -1
                quota = min(quota, int(quota_match[1]) / int(quota_match[2]))
    return quota


def blas_threads(limit: int) -> contextlib.AbstractContextManager[Any]:
    """Context manager that sets the number of threads of every BLAS library in this process to ``limit``."""
    # Finding the libraries takes a millisecond; a new one comes only with a newly imported module.
    return _blas_controller(len(sys.modules)).limit(limits=limit)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1)
def _blas_controller(module_count: int) -> ThreadpoolController:
    """Return the controller of all loaded BLAS libraries, found anew when the number of imported modules (``module_count``)
    has changed.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@functools.cache
def fingerprint() -> str:
    """Hash that identifies this machine; timings are comparable only between equal fingerprints."""
    # Memory is left out, because that of a container or virtual machine changes with the load of others.
    machine_description = {**machine_info(), "node": platform.node()}
    del machine_description["memory_gib"]
    return hashlib.sha256(canonical_json(machine_description).encode()).hexdigest()[:12]


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages that numerical results depend on."""
    return installed(
        (
            "smimbench",
            "numpy",
            "scipy",
            "array-api-compat",
            "numba",
            "cupy-cuda12x",
            "cupy-cuda13x",
        )
    )


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those of the given packages that are installed, by package."""
    from importlib.metadata import PackageNotFoundError, version

    version_or_none = {
        package: unless(PackageNotFoundError, version, package) for package in packages
    }
    return {
        package: version_text
        for package, version_text in version_or_none.items()
        if version_text is not None
    }


def git_commit() -> str | None:
    """Git commit of the checkout that smimbench runs from, marked if it was modified; None outside a checkout."""
    checkout = Path(__file__).resolve().parent.parent.parent
    if not (checkout / ".git").exists():
        return None
    describe_options = ["describe", "--always", "--dirty", "--abbrev=12"]
    return _command_output(["git", "-C", str(checkout), *describe_options], seconds=10)


def _command_output(command: list[str], seconds: float) -> str | None:
    """Output of an external program (``command``), or None if it fails, is missing or takes more than these seconds."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def nvidia_driver() -> Driver | None:
    """Version of this machine's NVIDIA driver, or None."""
    nvidia_smi_output = _command_output(["nvidia-smi"], seconds=20)
    if nvidia_smi_output is None:
        return None
    version_numbers = []
    for software_name in ("Driver", "CUDA"):
        match = re.search(rf"{software_name} Version:\s*([\d.]+)", nvidia_smi_output)
        version_numbers.append(match[1] if match else "?")
    return Driver(*version_numbers)


def reset_peak_memory() -> None:
    """Reset the peak-memory counter, where the system allows it (Linux).

    What was freed before goes back to the system first, so that it does not count for what follows.
    """
    if sys.platform == "linux":
        # C libraries other than glibc lack this function. To open them again takes longer than to trim.
        malloc_trim = getattr(ctypes.pythonapi, "malloc_trim", None)
        if malloc_trim is not None:
            malloc_trim(0)
        unless(OSError, Path("/proc/self/clear_refs").write_text, "5")


def peak_memory() -> int:
    """Largest resident memory of this process in bytes since the last reset (or since its start)."""
    if kilobytes_text := _system_file_field("/proc/self/status", "VmHWM"):
        return int(kilobytes_text.split()[0]) * 1024
    import psutil

    return int(psutil.Process().memory_info().rss)


def wait_for_threads(thread_count: int, max_seconds: float = 10.0) -> float:
    """Wait until threads of this process beyond ``thread_count`` are idle or ended (at most ``max_seconds`` s); return their
    CPU time.
    """
    cpu_at_start = _cpu_of_other_threads()
    deadline = time.monotonic() + max_seconds
    while threading.active_count() > thread_count and time.monotonic() < deadline:
        cpu_before_pause = _cpu_of_other_threads()
        time.sleep(0.05)
        if _cpu_of_other_threads() - cpu_before_pause < 0.001:
            break
    return _cpu_of_other_threads() - cpu_at_start


def _cpu_of_other_threads() -> float:
    """Return the CPU time in seconds of all threads of this process but the calling one."""
    return time.process_time() - time.thread_time()


def seconds_of_children() -> float:
    """CPU time in seconds of finished child processes."""
    process_times = os.times()
    return process_times.children_user + process_times.children_system


def _processor_name() -> str:
    """Return the model name of the processor."""
    model_name = _system_file_field("/proc/cpuinfo", "model name")
    return model_name or platform.processor() or "unknown"


def _system_file_field(path: str, field: str) -> str:
    """Value after ``field:`` in a system file such as ``/proc/cpuinfo``; empty if there is no such line."""
    for line in (unless(OSError, Path(path).read_text) or "").splitlines():
        if line.startswith(field):
            return line.partition(":")[2].strip()
    return ""


class Fraction(NamedTuple):
    """Fraction (``value``) of the machine's peak rate that an iteration reaches, and what limits it (``bound``):
    ``"products"`` or ``"memory"``.
    """

    value: float
    bound: str


def cache_folder() -> Path:
    """Folder that stores measured peak rates: ``$SMIMBENCH_CACHE``, or the user's cache folder."""
    configured_folder = os.environ.get("SMIMBENCH_CACHE")
    if configured_folder:
        return Path(configured_folder)
    user_cache_folder = os.environ.get("XDG_CACHE_HOME") or os.environ.get(
        "LOCALAPPDATA"
    )
    return (
        Path(user_cache_folder) if user_cache_folder else Path.home() / ".cache"
    ) / "smimbench"


def _rates_file(backend: str, threads: int) -> Path:
    """File of the stored peak rates of a backend, named after machine, processor and BLAS threads (0 for a GPU)."""
    opened_backend = get_backend(backend)
    thread_count = 0 if opened_backend.accelerated else threads
    file_name = (
        f"ceilings-{fingerprint()}-{opened_backend.processor}-{thread_count}.json"
    )
    return cache_folder() / file_name


def stored_peak_rates(
    backend: str = "numpy", threads: int = 1
) -> dict[str, float] | None:
    """Stored peak rates of this machine, for a backend and number of BLAS threads, from an earlier measurement, or None."""
    try:
        stored_document = json.loads(_rates_file(backend, threads).read_text())
        if stored_document["version"] != PEAK_RATES_VERSION:
            return None
        stored_rates = stored_document["rates"]
        return {
            rate_name: float(stored_rates[rate_name])
            for rate_name in PEAK_RATE_KEYS
            if rate_name in stored_rates
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def peak_rates(backend: str = "numpy", threads: int = 1) -> dict[str, float]:
    """Peak rates of this machine, for a backend and number of BLAS threads, from the stored measurement or a new one.

    Returns
    -------
    dict
        ``float64``, ``float32`` (and ``tf32`` on a GPU): operations per second of a large square matrix product;
        ``bandwidth``: bytes per second of reading a large array.
    """
    return stored_peak_rates(backend, threads) or measure_peak_rates(backend, threads)


def measure_peak_rates(backend: str = "numpy", threads: int = 1) -> dict[str, float]:
    """Measure the peak rates of this machine, for a backend and number of BLAS threads, and store them; takes about two
    seconds.

    The best of several trials counts, and with one thread the processor's time, not the wall's: others on the machine
    should not lower a ceiling.

    Raises
    ------
    BackendError
        If the backend cannot be used.
    """
    from threadpoolctl import threadpool_limits

    rates: dict[str, float] = {}
    with threadpool_limits(limits=threads):
        for dtype in ("float64", "float32"):
            rates[dtype] = _product_rate(get_backend(backend, dtype), threads)
        tf32_backend = get_backend(backend, "float32", tf32=True)
        if tf32_backend.accelerated:  # processors of a host have no such mode
            rates["tf32"] = _product_rate(tf32_backend, threads)
        rates["bandwidth"] = _read_bandwidth(get_backend(backend), threads)
    rates_json = (
        json.dumps({"version": PEAK_RATES_VERSION, "rates": rates}, indent=1) + "\n"
    )
    # Without write permission the rates are measured again in each run, which takes two seconds.
    unless(
        StoreError, write_atomically, _rates_file(backend, threads), rates_json.encode()
    )
    return rates


def peak_fraction(
    seconds: float,
    cost: Mapping[str, float],
    rates: Mapping[str, float],
    dtype: str,
    *,
    tf32: bool = False,
) -> Fraction | None:
    """Fraction of the limiting peak rate that an iteration of this duration in seconds reaches, given its ``cost`` in
    operations and bytes, its data type, and the machine's peak ``rates``; None if unknown.
    """
    dtype = "float64" if dtype == "mixed" else dtype  # what is computed with
    product_rate = rates.get("tf32" if tf32 and "tf32" in rates else dtype)
    bandwidth = rates.get("bandwidth")
    if not product_rate or not bandwidth or not seconds > 0:
        return None
    least_seconds = {
        "products": cost["flops"] / product_rate,
        "memory": cost["bytes"] / bandwidth,
    }
    limiting_resource = max(least_seconds, key=lambda name: least_seconds[name])
    return Fraction(least_seconds[limiting_resource] / seconds, limiting_resource)


def _shortest_seconds(
    backend: Backend, threads: int, operation: Callable[[], object]
) -> float:
    """Return the shortest time in seconds of several runs of an operation on a backend with this number of BLAS threads."""
    operation()  # the first time pays for pages, plans and libraries
    times = []
    for _ in range(REPEATS):
        stop_stopwatch, cpu_at_start = backend.stopwatch(), time.process_time()
        operation()
        times.append(stop_stopwatch().seconds)
        if threads == 1 and not backend.accelerated:
            times.append(time.process_time() - cpu_at_start)
    return min(times)


def _product_rate(backend: Backend, threads: int) -> float:
    """Measure the rate of a large square matrix product on a backend, with this number of BLAS threads, in floating-point
    operations per second.
    """
    matrix_size = 8192 if backend.accelerated else 1536
    rng = np.random.default_rng(0)
    matrix = backend.asarray(rng.standard_normal((matrix_size, matrix_size)))
    xp = backend.xp
    return (
        2.0
        * matrix_size**3
        / _shortest_seconds(backend, threads, lambda: xp.matmul(matrix, matrix))
    )


def _read_bandwidth(backend: Backend, threads: int) -> float:
    """Measure the bandwidth (bytes per second) at which a backend, with this number of BLAS threads, reads an array larger
    than any cache, by a sum or by BLAS.
    """
    import psutil

    free_bytes = backend.free_memory()
    largest_size = LARGEST_READ
    if free_bytes is None:
        size_limit = psutil.virtual_memory().available // 8
    else:
        size_limit, largest_size = free_bytes // 4, 8 * LARGEST_READ
    array_length = max(1 << 20, min(int(size_limit), largest_size) // 8)
    xp = backend.xp
    ones_array = xp.ones((array_length,), dtype=xp.float64, device=backend.device)
    read_operations = (
        lambda: xp.sum(ones_array),
        lambda: xp.vecdot(ones_array, ones_array),
    )
    return (
        8.0
        * array_length
        / min(
            _shortest_seconds(backend, threads, operation)
            for operation in read_operations
        )
    )
