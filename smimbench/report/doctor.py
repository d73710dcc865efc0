"""The diagnosis that ``smimbench doctor`` prints: is this machine ready, and what would make it so?"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from smimbench.backend import machine
from smimbench.backend.namespaces.cupy import describe_gpu
from smimbench.backend.roofline import measure, remembered
from smimbench.registry.registry import get_registry

if TYPE_CHECKING:
    from rich.console import Console

    from smimbench.files import JsonObject


def diagnose(*, ceilings: bool = False) -> JsonObject:
    """Versions, BLAS, GPU and plugins, with the command that fixes each problem.

    Parameters
    ----------
    ceilings : bool
        Measure again what the machine can do at best; otherwise what is remembered is shown.
    """
    failed = [f"{p.name}: {'; '.join(p.problems)}" for p in get_registry().plugins if p.failed]
    advice = []
    if find_spec("matplotlib") is None:
        advice.append("pip install 'smimbench[plot]'  (matplotlib: figures need it)")
    gpu = describe_gpu()
    if gpu["advice"]:
        advice.append(gpu["advice"])
    return {
        "versions": machine.versions(),
        "machine": machine.machine_info(),
        "fingerprint": machine.fingerprint(),
        "git_commit": machine.git_commit(),
        "gpu": gpu,
        "ceilings": _ceilings(ceilings, bool(gpu["devices"])),
        "plugins": {"loaded": sum(not p.failed for p in get_registry().plugins), "failed": failed},
        "advice": advice,
        "healthy": not failed,
    }


def _ceilings(again: bool, gpu: bool) -> JsonObject:
    """Rates by backend and number of threads: one core, all cores, and the GPU if there is one."""
    wanted = {("numpy", 1), ("numpy", os.cpu_count() or 1)} | ({("cupy", 1)} if gpu else set())
    found: JsonObject = {}
    for backend, threads in sorted(wanted):
        rates = measure(backend, threads) if again else remembered(backend, threads)
        if rates:
            found["GPU" if backend == "cupy" else f"{threads} thread{'s' if threads > 1 else ''}"] = rates
    return found


def print_diagnosis(console: Console, document: JsonObject) -> None:
    """The diagnosis as a page."""
    info, gpu, plugins, driver = document["machine"], document["gpu"], document["plugins"], document["gpu"]["driver"]
    sections = {
        "versions": document["versions"],
        "machine": {
            "processor": f"{info['processor']}, {info['cores']} cores, {info['memory_gib']} GiB",
            "system": f"{info['system']}, Python {info['python']}",
            "BLAS": ", ".join(info["blas"]) or "unknown",
            "fingerprint": document["fingerprint"],
        },
        "GPU": {
            "driver": f"{driver['version']}, CUDA up to {driver['cuda']}" if driver else "none found",
            "CuPy": gpu["cupy"],
            "devices": ", ".join(gpu["devices"]) or "none",
        },
        "ceilings": {name: _rates(rates) for name, rates in document["ceilings"].items()}
        or {"not measured yet": "smimbench doctor --ceilings"},
        "plugins": {"loaded": plugins["loaded"], "failed": len(plugins["failed"])},
    }
    for title, lines in sections.items():
        console.print(title, style="bold")
        for name, text in lines.items():
            console.print(f"  {name:17s} {text}", soft_wrap=name == "CuPy")
    for line in plugins["failed"]:
        console.print(f"  {line}", style="red", soft_wrap=True)
    for line in document["advice"]:
        console.print(f"to do: {line}", style="yellow", soft_wrap=True)


def _rates(rates: JsonObject) -> str:
    kinds = [key for key in ("float64", "float32", "tf32") if key in rates]
    products = ", ".join(f"{rates[key] / 1e9:.0f} {key}" for key in kinds)
    return f"{products} GFLOP/s; reading {rates['bandwidth'] / 1e9:.1f} GB/s"
