"""Roofline of this machine: peak rates of matrix products and memory reads, and the fraction an iteration reaches.

An iteration cannot be faster than its matrix products at the rate of a large one, nor than reading its inputs at the
bandwidth of memory. Whichever of the two takes longer is the ceiling that bounds an algorithm, and the time it needs
over the time it takes is the fraction that the runtime table shows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import Backend, get_backend
from smimbench.files import StoreError, unless, write_atomically

VERSION = 1
REPEATS = 7
LARGEST_READ = 1 << 29
KEYS = ("float64", "float32", "tf32", "bandwidth")


class Fraction(NamedTuple):
    """Fraction of the machine's peak rate that an iteration reaches, and what limits it: ``"products"`` or ``"memory"``."""

    value: float
    bound: str


def cache_folder() -> Path:
    """Folder that stores measured peak rates: ``$SMIMBENCH_CACHE``, or the user's cache folder."""
    configured = os.environ.get("SMIMBENCH_CACHE")
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "smimbench"


def _rates_file(backend: str, threads: int) -> Path:
    """File of the stored peak rates, named after machine, processor and BLAS threads (0 for a GPU)."""
    device = get_backend(backend)
    count = 0 if device.accelerated else threads
    name = f"ceilings-{machine.fingerprint()}-{device.processor}-{count}.json"
    return cache_folder() / name


def stored_rates(backend: str = "numpy", threads: int = 1) -> dict[str, float] | None:
    """Stored peak rates of this machine from an earlier measurement, or None."""
    try:
        stored = json.loads(_rates_file(backend, threads).read_text())
        if stored["version"] != VERSION:
            return None
        rates = stored["rates"]
        return {key: float(rates[key]) for key in KEYS if key in rates}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def ceilings(backend: str = "numpy", threads: int = 1) -> dict[str, float]:
    """Peak rates of this machine, from the stored measurement or a new one.

    Returns
    -------
    dict
        ``float64``, ``float32`` (and ``tf32`` on a GPU): operations per second of a large square matrix product;
        ``bandwidth``: bytes per second of reading a large array.
    """
    return stored_rates(backend, threads) or measure(backend, threads)


def measure(backend: str = "numpy", threads: int = 1) -> dict[str, float]:
    """Measure the peak rates of this machine and store them; takes about two seconds.

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
            rates[dtype] = _products(get_backend(backend, dtype), threads)
        device = get_backend(backend, "float32", tf32=True)
        if device.accelerated:  # processors of a host have no such mode
            rates["tf32"] = _products(device, threads)
        rates["bandwidth"] = _bandwidth(get_backend(backend), threads)
    text = json.dumps({"version": VERSION, "rates": rates}, indent=1) + "\n"
    # A home folder without write permission costs two seconds per run, no more.
    unless(StoreError, write_atomically, _rates_file(backend, threads), text.encode())
    return rates


def fraction(
    seconds: float,
    cost: Mapping[str, float],
    rates: Mapping[str, float],
    dtype: str,
    *,
    tf32: bool = False,
) -> Fraction | None:
    """Fraction of the limiting peak rate that an iteration of this duration reaches; None if unknown."""
    dtype = "float64" if dtype == "mixed" else dtype  # what is computed with
    products = rates.get("tf32" if tf32 and "tf32" in rates else dtype)
    bandwidth = rates.get("bandwidth")
    if not products or not bandwidth or not seconds > 0:
        return None
    times = {"products": cost["flops"] / products, "memory": cost["bytes"] / bandwidth}
    bound = max(times, key=lambda name: times[name])
    return Fraction(times[bound] / seconds, bound)


def _least_seconds(backend: Backend, threads: int, work: Callable[[], object]) -> float:
    work()  # the first time pays for pages, plans and libraries
    times = []
    for _ in range(REPEATS):
        stop, busy = backend.stopwatch(), time.process_time()
        work()
        times.append(stop().seconds)
        if threads == 1 and not backend.accelerated:
            times.append(time.process_time() - busy)
    return min(times)


def _products(backend: Backend, threads: int) -> float:
    size = 8192 if backend.accelerated else 1536
    rng = np.random.default_rng(0)
    square = backend.asarray(rng.standard_normal((size, size)))
    xp = backend.xp
    return (
        2.0
        * size**3
        / _least_seconds(backend, threads, lambda: xp.matmul(square, square))
    )


def _bandwidth(backend: Backend, threads: int) -> float:
    """Memory bandwidth of reading an array larger than any cache, by a sum or by BLAS, whichever is faster."""
    import psutil

    free = backend.free_memory()
    largest = LARGEST_READ
    if free is None:
        limit = psutil.virtual_memory().available // 8
    else:
        limit, largest = free // 4, 8 * LARGEST_READ
    size = max(1 << 20, min(int(limit), largest) // 8)
    xp = backend.xp
    numbers = xp.ones((size,), dtype=xp.float64, device=backend.device)
    works = (lambda: xp.sum(numbers), lambda: xp.vecdot(numbers, numbers))
    return 8.0 * size / min(_least_seconds(backend, threads, work) for work in works)
