"""Is this machine ready, and what would make it so?"""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from smimbench import machine

if TYPE_CHECKING:
    from rich.console import Console

    from smimbench.registry import Registry

__all__ = ["diagnose", "print_diagnosis"]

_EXTRAS = {"matplotlib": "plot"}


def diagnose(registry: Registry) -> dict[str, Any]:
    """Versions, BLAS, GPU and plugins, with the command that mends each shortcoming."""
    failed = [f"{p.name}: {'; '.join(p.problems)}" for p in registry.plugins if p.failed]
    advice = [f"pip install 'smimbench[{extra}]'  (figures need {name})" for name, extra in _EXTRAS.items() if find_spec(name) is None]
    gpu = _gpu()
    if gpu["advice"]:
        advice.append(gpu["advice"])
    return {
        "versions": machine.versions(),
        "machine": machine.machine_info(),
        "fingerprint": machine.fingerprint(),
        "git_commit": machine.git_commit(),
        "gpu": gpu,
        "plugins": {"loaded": sum(not p.failed for p in registry.plugins), "failed": failed},
        "advice": advice,
        "healthy": not failed,
    }


def _gpu() -> dict[str, Any]:
    driver = _nvidia_smi()
    found: dict[str, Any] = {"driver": driver, "cupy": None, "devices": [], "advice": None}
    extra = "cuda13" if (driver or {}).get("cuda", "").startswith("13") else "cuda12"
    try:
        import cupy
    except ImportError as error:
        found["cupy"] = f"not importable: {error}"
        if driver:
            found["advice"] = f"pip install 'smimbench[{extra}]'  (the driver offers CUDA {driver.get('cuda', '?')})"
        return found
    found["cupy"] = cupy.__version__
    if cupy.is_available():
        for i in range(cupy.cuda.runtime.getDeviceCount()):
            properties = cupy.cuda.runtime.getDeviceProperties(i)
            found["devices"].append(f"{properties['name'].decode()} ({properties['totalGlobalMem'] / 2**30:.0f} GiB)")
    elif driver:
        found["advice"] = f"CuPy sees no device; pip install --force-reinstall 'smimbench[{extra}]'"
    return found


def _nvidia_smi() -> dict[str, str] | None:
    """Driver and the newest CUDA it supports; None without an NVIDIA driver."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        text = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    import re

    version, cuda = re.search(r"Driver Version:\s*([\d.]+)", text), re.search(r"CUDA Version:\s*([\d.]+)", text)
    return {"version": version.group(1) if version else "?", "cuda": cuda.group(1) if cuda else "?"}


def print_diagnosis(console: Console, document: dict[str, Any]) -> None:
    """The diagnosis as a page."""
    info = document["machine"]
    console.print("versions", style="bold")
    for name, version in document["versions"].items():
        console.print(f"  {name:17s} {version}")
    console.print("machine", style="bold")
    console.print(f"  {'processor':17s} {info['processor']}, {info['cores']} cores, {info['memory_gib']} GiB")
    console.print(f"  {'system':17s} {info['system']}, Python {info['python']}")
    console.print(f"  {'BLAS':17s} {', '.join(info['blas']) or 'unknown'}")
    console.print(f"  {'fingerprint':17s} {document['fingerprint']}")
    gpu = document["gpu"]
    console.print("GPU", style="bold")
    driver = gpu["driver"]
    console.print(f"  {'driver':17s} {driver['version'] + ', CUDA up to ' + driver['cuda'] if driver else 'none found'}")
    console.print(f"  {'CuPy':17s} {gpu['cupy']}", soft_wrap=True)
    console.print(f"  {'devices':17s} {', '.join(gpu['devices']) or 'none'}")
    console.print("plugins", style="bold")
    console.print(f"  {document['plugins']['loaded']} loaded, {len(document['plugins']['failed'])} failed")
    for line in document["plugins"]["failed"]:
        console.print(f"  {escape(line)}", style="red", soft_wrap=True)
    for line in document["advice"]:
        console.print(f"to do: {escape(line)}", style="yellow", soft_wrap=True)
