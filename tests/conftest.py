"""Fixtures shared by all tests: array namespaces that stand in for a GPU."""

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# SciPy reads this once, at import; it lets scipy.special dispatch to array-api-strict. Tests only, never the library.
os.environ["SCIPY_ARRAY_API"] = "1"
# What tests measure of the machine stays out of the user's own cache, and is measured once.
os.environ.setdefault(
    "SMIMBENCH_CACHE", os.path.join(tempfile.gettempdir(), "smimbench-test-cache")
)
# Tests start hundreds of processes: what one of them compiles is kept for the others, as the kernels' machine code is.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# As many processes as cores are running already (pytest -n): more BLAS threads than one would fight over them.
os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
os.environ["OPENBLAS_NUM_THREADS"] = os.environ.get("OPENBLAS_NUM_THREADS", "1")
os.environ["MKL_NUM_THREADS"] = os.environ.get("MKL_NUM_THREADS", "1")

import array_api_compat
import numpy as np
import pytest

from smimbench.backend.arrays import namespace
from smimbench.backend.device import Backend, get_backend
from smimbench.registry.registry import get_registry, set_registry
from smimbench.run import executor
from tests.forked import SUBPROCESS

# Searches for garbage took a quarter of the time in which thousands of tests are collected.
gc.set_threshold(50_000)


class ReadOnlyNumpy(Backend):
    """NumPy whose arrays refuse to be written to: finds code that modifies its inputs."""

    def asarray(self, array, *, dtype=None):
        """Move an array here and lock it."""
        result = np.array(super().asarray(array, dtype=dtype))
        result.flags.writeable = False
        return result


def _make_backend(name):
    if name == "numpy":
        return get_backend("numpy")
    if name == "numpy-readonly":
        plain = get_backend("numpy")
        return ReadOnlyNumpy("numpy", plain.xp, plain.dtype)
    if name == "strict":
        import array_api_strict

        device = array_api_strict.Device("device1")
        return Backend("array_api_strict", array_api_strict, "float64", device)
    if name == "cupy":
        return get_backend("cupy")
    raise AssertionError(name)


def _why_no_gpu():
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    return None if cupy.is_available() else "CuPy finds no CUDA device"


_NO_GPU = _why_no_gpu()
_BACKENDS = [
    "numpy",
    "numpy-readonly",
    "strict",
    *([] if _NO_GPU else [pytest.param("cupy", marks=pytest.mark.gpu)]),
]


def pytest_report_header():
    """Say once, instead of in a skip for every test, that the GPU's share was left out."""
    return f"array namespaces: NumPy, read-only NumPy, array-api-strict, {f'no CuPy ({_NO_GPU})' if _NO_GPU else 'CuPy'}"


def pytest_collection_modifyitems(items):
    """Begin with the test that takes minutes: one process is at it while the others do the rest."""
    items.sort(key=lambda item: "smi-three-layers]" not in item.name)


def pytest_collection_finish():
    """Never look for garbage among the tests themselves."""
    gc.freeze()


@pytest.fixture(params=_BACKENDS)
def backend(request):
    """Every array namespace of this machine; CuPy only where there is a GPU."""
    return _make_backend(request.param)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder of all processes of ``pytest -n``."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def solved(shared):
    """Results with the theory of shipped suites, as far as a test has solved it: many suites share a problem."""
    return shared / "solved"


KERNELS = {
    "gw0": (("sequence/softmax/deep", "sequence-multi-index", 3),),
    "gw1": (
        ("sequence/softmax/two_layers", "sequence-multi-index", 2),
        ("attention/softmax", "attention-indexed", 2),
    ),
}
"""What the first processes of ``pytest -n`` compile in a fresh checkout, for all: folder, model, layers. Of three layers it takes
20 s, and only slow tests use it."""


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(request):
    channels = (
        Path(__file__).parent.parent / "plugins" / "smimbench_attention" / "channels"
    )
    for folder, model, layers in KERNELS.get(
        os.environ.get("PYTEST_XDIST_WORKER", ""), ()
    ):
        is_used = layers == 2 or any(
            item.get_closest_marker("slow") for item in request.session.items
        )
        if is_used and not any((channels / folder).rglob("*.nbi")):
            channel = (
                get_registry().get("channel", "softmax", model).item(2, layers=layers)
            )
            sites = getattr(channel, "sites", channel.tokens)
            z = np.ones((1, layers, sites)) * np.arange(sites)
            channel.posterior(channel.forward(z), 0 * z, np.eye(layers))


@pytest.fixture(scope="session", autouse=True)
def _forked_workers():
    """Workers are forked from a process that has imported everything."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(executor, "subprocess", SUBPROCESS)
        yield


@pytest.fixture(scope="module")
def started_workers():
    """Workers are started as users start them: for tests that are about processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "subprocess", subprocess)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_core():
    """Runs of this process take one worker, unless asked for more: the other cores have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk():
    """Files are written through the cache: no test cuts the power, and thousands of waits take milliseconds each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def _plugins_of_one_test():
    """The next test finds the plugins that this one found: beside code of third parties every run has a process of its own."""
    before = get_registry()
    count = len(before.plugins)
    yield
    set_registry(before if len(before.plugins) == count else None)


@pytest.fixture
def svg_alone(monkeypatch):
    """Of all pictures only the SVG is rendered, which is text; PNG and PDF, empty here, take longer than the rest of a figure."""
    from matplotlib.figure import Figure

    render = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda *a, **k: render(*a, **k) if k["format"] == "svg" else None,
    )


@pytest.fixture
def rng():
    """A generator with a fixed seed."""
    return np.random.default_rng(20261120)


def assert_placed(array, backend, shape=None, dtype=None):
    """Check namespace, device, dtype and shape of a result."""
    assert namespace(array) is backend.xp
    if backend.device is not None:
        assert array_api_compat.device(array) == backend.device
    assert array.dtype == getattr(backend.xp, dtype or backend.dtype)
    if shape is not None:
        assert array.shape == shape
