"""Description of the machine of a run: processor, BLAS threads, driver, versions, git commit, peak memory."""

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
from typing import Any, NamedTuple

from smimbench.files import canonical_json, unless


class Driver(NamedTuple):
    """An NVIDIA driver: its version and the newest CUDA that it supports (``"?"`` if it does not say)."""

    version: str
    cuda: str

    @property
    def extra(self) -> str:
        """Name of the optional dependency group of smimbench whose CuPy fits this driver."""
        return "cuda13" if self.cuda.startswith("13") else "cuda12"


@functools.cache
def machine_info() -> dict[str, Any]:
    """Processor, memory, system and the BLAS that NumPy uses."""
    import numpy as np  # the BLAS is only visible once NumPy has loaded it
    import psutil
    from threadpoolctl import threadpool_info

    libraries = [lib for lib in threadpool_info() if lib.get("user_api") == "blas"]
    # SciPy may bring a BLAS of its own: the machine must not change its name when that happens to be loaded.
    home = str(Path(np.__file__).resolve().parent)
    numpy_libraries = [
        lib for lib in libraries if str(lib.get("filepath", "")).startswith(home)
    ]
    blas = sorted(
        {
            f"{lib.get('internal_api')} {lib.get('version')}"
            for lib in numpy_libraries or libraries
        }
    )
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "blas": blas,
    }


def usable_cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has under a batch system or in a container.

    The least of its affinity, of the processor time that its control groups allow, and of ``SLURM_CPUS_PER_TASK``.
    """
    cores = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return max(
        1,
        math.ceil(min(cores, cpu_quota(), int(slurm) if slurm.isdecimal() else cores)),
    )


def cpu_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float:
    """Processors whose time the control groups of this process allow it, of version 1 or 2; infinity without a limit."""
    quota = math.inf
    for line in (unless(OSError, membership.read_text) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(root, "cpu" if controllers else "", path.lstrip("/"))
        for place in (
            group,
            *group.parents,
        ):  # the group that a container takes for the root may be any of them
            names = (
                ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                if controllers
                else ("cpu.max",)
            )
            text = " ".join(
                unless(OSError, (place / name).read_text) or "" for name in names
            )
            if limit := re.fullmatch(
                r"(\d+)\s+([1-9]\d*)\s*", text
            ):  # else "max", or -1
                quota = min(quota, int(limit[1]) / int(limit[2]))
    return quota


def blas_threads(limit: int) -> contextlib.AbstractContextManager[Any]:
    """Context manager that sets the number of threads of every BLAS library in this process."""
    # Finding the libraries takes a millisecond; none can have come without a module that brought it.
    return _controller(len(sys.modules)).limit(limits=limit)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1)
def _controller(modules: int) -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@functools.cache
def fingerprint() -> str:
    """Short name of this machine: timings are comparable only where it is equal."""
    # Without its memory: what a container or a virtual machine calls its memory moves with what others take.
    lasting = {
        key: value for key, value in machine_info().items() if key != "memory_gib"
    }
    return hashlib.sha256(
        canonical_json({**lasting, "node": platform.node()}).encode()
    ).hexdigest()[:12]


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
    """Versions of the installed packages among these."""
    from importlib.metadata import PackageNotFoundError, version

    found_versions = {
        name: unless(PackageNotFoundError, version, name) for name in names
    }
    return {
        name: version for name, version in found_versions.items() if version is not None
    }


def git_commit() -> str | None:
    """Git commit of the checkout that smimbench runs from, marked if it was modified; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / ".git").exists():
        return None
    try:
        call = [
            "git",
            "-C",
            str(root),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
        ]
        return subprocess.run(
            call, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def nvidia_driver() -> Driver | None:
    """Version of this machine's NVIDIA driver, or None."""
    import shutil

    if shutil.which("nvidia-smi") is None:
        return None
    try:
        text = subprocess.run(
            ["nvidia-smi"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    matches = [
        re.search(rf"{name} Version:\s*([\d.]+)", text) for name in ("Driver", "CUDA")
    ]
    return Driver(*(match.group(1) if match else "?" for match in matches))


def reset_peak_memory() -> None:
    """Reset the peak-memory counter, where the system allows it (Linux).

    What was freed before goes back to the system first, so that it does not count for what follows.
    """
    if sys.platform == "linux":
        trim = getattr(
            ctypes.CDLL(None), "malloc_trim", None
        )  # another C library has none
        if trim is not None:
            trim(0)
        unless(OSError, Path("/proc/self/clear_refs").write_text, "5")


def peak_memory() -> int:
    """Largest resident memory of this process in bytes since the last reset (or since its start)."""
    for line in (
        unless(OSError, Path("/proc/self/status").read_text) or ""
    ).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import psutil

    return int(psutil.Process().memory_info().rss)


def wait_for_threads(count: int, patience: float = 10.0) -> float:
    """Wait up to ``patience`` seconds until Python threads beyond this number are idle or ended; return their CPU time."""
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
    """CPU time of processes that this one has started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _processor() -> str:
    for line in (unless(OSError, Path("/proc/cpuinfo").read_text) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
