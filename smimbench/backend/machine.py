"""Description of the machine that runs the benchmark: processor, BLAS threads, driver, versions, peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from smimbench.files import canonical_json, unless

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


class Driver(NamedTuple):
    """Version of an NVIDIA driver and the newest CUDA version it supports (``"?"`` if unknown)."""

    version: str
    cuda: str

    @property
    def extra(self) -> str:
        """Optional dependency group of smimbench (``cuda12`` or ``cuda13``) whose CuPy fits this driver."""
        return "cuda13" if self.cuda.startswith("13") else "cuda12"


@functools.cache
def machine_info() -> dict[str, object]:
    """Description of this machine: processor, cores, memory, system and the BLAS that NumPy uses."""
    import numpy as np  # the BLAS is only visible once NumPy has loaded it
    import psutil
    from threadpoolctl import threadpool_info

    libraries = [lib for lib in threadpool_info() if lib.get("user_api") == "blas"]
    # SciPy may bring a BLAS of its own: the machine must not change its name when that happens to be loaded.
    home = str(Path(np.__file__).resolve().parent)
    of_numpy = [lib for lib in libraries if str(lib.get("filepath")).startswith(home)]
    names = {
        f"{lib.get('internal_api')} {lib.get('version')}"
        for lib in of_numpy or libraries
    }
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "blas": sorted(names),
    }


def usable_cores() -> int:
    """Number of cores that this process may use, under a batch system or in a container often less than all.

    The minimum of its affinity, of the processor time that its control groups allow, and of ``SLURM_CPUS_PER_TASK``.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    limits = [cores, cpu_quota()]
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdecimal():
        limits.append(int(slurm))
    return max(1, math.ceil(min(limits)))


def cpu_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float:
    """Number of processors that the Linux control groups (cgroups v1 or v2) allow; infinity without a limit."""
    quota = math.inf
    for line in (unless(OSError, membership.read_text) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        folder, files = root, ["cpu.max"]
        if controllers:  # version 1
            if "cpu" not in controllers.split(","):
                continue
            folder, files = root / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        group = folder / path.lstrip("/")
        # The group that a container takes for the root may be any of the parents.
        for place in (group, *group.parents):
            texts = [unless(OSError, (place / file).read_text) or "" for file in files]
            limit = re.fullmatch(r"(\d+)\s+([1-9]\d*)\s*", " ".join(texts))
            if limit:  # else "max", or -1
                quota = min(quota, int(limit[1]) / int(limit[2]))
    return quota


def blas_threads(limit: int) -> contextlib.AbstractContextManager[object]:
    """Context manager that sets the number of threads of every BLAS library in this process."""
    # Finding the libraries takes a millisecond; none can have come without a module that brought it.
    return _controller(len(sys.modules)).limit(limits=limit)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1)
def _controller(modules: int) -> ThreadpoolController:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@functools.cache
def fingerprint() -> str:
    """Hash that identifies this machine; timings are comparable only between equal fingerprints."""
    # Without its memory: what a container or a virtual machine calls its memory moves with what others take.
    document = {**machine_info(), "node": platform.node()}
    del document["memory_gib"]
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()[:12]


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


def installed(names: Iterable[str]) -> dict[str, str]:
    """Versions of those of the given packages that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {name: unless(PackageNotFoundError, version, name) for name in names}
    return {name: text for name, text in versions.items() if text is not None}


def git_commit() -> str | None:
    """Git commit of the checkout that smimbench runs from, marked if it was modified; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / ".git").exists():
        return None
    describe = ["describe", "--always", "--dirty", "--abbrev=12"]
    return _command_output(["git", "-C", str(root), *describe], seconds=10)


def _command_output(command: list[str], seconds: float) -> str | None:
    """Output of an external program, or None if it fails, is missing or exceeds the time limit."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def nvidia_driver() -> Driver | None:
    """Version of this machine's NVIDIA driver, or None."""
    text = _command_output(["nvidia-smi"], seconds=20)
    if text is None:
        return None
    numbers = []
    for name in ("Driver", "CUDA"):
        match = re.search(rf"{name} Version:\s*([\d.]+)", text)
        numbers.append(match[1] if match else "?")
    return Driver(*numbers)


def reset_peak_memory() -> None:
    """Reset the peak-memory counter, where the system allows it (Linux).

    What was freed before goes back to the system first, so that it does not count for what follows.
    """
    if sys.platform == "linux":
        # Another C library than glibc has no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        unless(OSError, Path("/proc/self/clear_refs").write_text, "5")


def peak_memory() -> int:
    """Largest resident memory of this process in bytes since the last reset (or since its start)."""
    if kilobytes := _field_of_file("/proc/self/status", "VmHWM"):
        return int(kilobytes.split()[0]) * 1024
    import psutil

    return int(psutil.Process().memory_info().rss)


def wait_for_threads(count: int, patience: float = 10.0) -> float:
    """Wait until extra threads of this process are idle or ended (at most ``patience`` s); return their CPU time."""
    begin = _cpu_of_other_threads()
    end = time.monotonic() + patience
    while threading.active_count() > count and time.monotonic() < end:
        seconds = _cpu_of_other_threads()
        time.sleep(0.05)
        if _cpu_of_other_threads() - seconds < 0.001:
            break
    return _cpu_of_other_threads() - begin


def _cpu_of_other_threads() -> float:
    return time.process_time() - time.thread_time()


def seconds_of_children() -> float:
    """CPU time in seconds of finished child processes."""
    times = os.times()
    return times.children_user + times.children_system


def _processor() -> str:
    name = _field_of_file("/proc/cpuinfo", "model name")
    return name or platform.processor() or "unknown"


def _field_of_file(file: str, name: str) -> str:
    """Value after ``name:`` in a system file such as ``/proc/cpuinfo``; empty if there is no such line."""
    for line in (unless(OSError, Path(file).read_text) or "").splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""
