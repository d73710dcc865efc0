"""Backends by name, what they say when they cannot be had, and their clocks."""

import sys
import types
from dataclasses import replace

import array_api_strict
import numpy as np
import pytest

from smimbench.backend import machine
from smimbench.backend.arrays import namespace
from smimbench.backend.device import BackendError, get_backend
from smimbench.backend.machine import Driver
from smimbench.backend.namespaces import cupy as module


def driver(monkeypatch, found):
    monkeypatch.setattr(machine, "nvidia_driver", lambda: found)


def cupy_that(monkeypatch, **attributes):
    fake = types.ModuleType("cupy")
    vars(fake).update(attributes)
    monkeypatch.setitem(sys.modules, "cupy", fake)


def complaint():
    with pytest.raises(BackendError) as caught:
        get_backend("cupy")
    message = str(caught.value)
    assert "\n" not in message
    return message


def explode():
    raise RuntimeError("libcudart.so.12:\n  cannot open shared object file")


BLIND = {"is_available": lambda: False}


@pytest.mark.parametrize(
    ("attributes", "found", "words"),
    [
        (
            None,
            None,
            [
                "CuPy is not installed",
                "no NVIDIA driver",
                "smimbench[cuda12]",
                "--backend numpy",
            ],
        ),
        *(
            (None, Driver("550.1", cuda), [f"; pip install 'smimbench[{extra}]' fits"])
            for cuda, extra in (("12.4", "cuda12"), ("13.0", "cuda13"), ("?", "cuda12"))
        ),
        (
            BLIND,
            Driver("580.1", "13.0"),
            ["finds no usable CUDA device", "smimbench[cuda13]"],
        ),
        (
            {"is_available": explode},
            None,
            ["(libcudart.so.12: cannot open shared object file)"],
        ),
    ],
)
def test_cupy_that_cannot_be_used_is_one_line_with_the_fitting_command(
    monkeypatch, attributes, found, words
):
    monkeypatch.setattr(module, "_installed_cupy", list)
    if attributes is None:
        monkeypatch.setitem(sys.modules, "cupy", None)
    else:
        cupy_that(monkeypatch, **attributes)
    driver(monkeypatch, found)
    message = complaint()
    assert all(one in message for one in words)
    if attributes and attributes is not BLIND:
        assert (
            module.describe_gpu()["cupy"]
            == "not importable: libcudart.so.12: cannot open shared object file"
        )


def test_another_build_of_cupy_is_to_be_removed_first(monkeypatch, tmp_path):
    (tmp_path / "cupy_cuda12x-14.0.dist-info").mkdir()
    (tmp_path / "cupy_cuda12x-14.0.dist-info" / "METADATA").write_text(
        "Name: cupy-cuda12x\nVersion: 14.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cupy_that(monkeypatch, is_available=lambda: False)
    driver(monkeypatch, Driver("580.1", "13.0"))
    message = complaint()
    assert "pip uninstall -y" in message
    assert " cupy-cuda12x" in message
    assert message.endswith(
        "&& pip install 'smimbench[cuda13]' fits the driver (CUDA up to 13.0)"
    )


def test_absent_torch_fails_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        BackendError,
        match=r"^backend torch: PyTorch cannot be imported \(.*\); pip install torch$",
    ):
        get_backend("torch")


@pytest.mark.parametrize(
    "error", [RuntimeError("cudaErrorHostMemoryAlreadyRegistered"), MemoryError()]
)
def test_pages_that_cannot_be_locked_are_read_without(monkeypatch, error):
    def refuse(cupy, host):
        raise error

    cupy_that(monkeypatch)
    monkeypatch.setattr(module, "pinned_transfers", refuse)
    read = module.CupyBackend("cupy", np, "float64").reader(np.arange(6.0))
    np.testing.assert_array_equal(read(slice(2, 4)), [2.0, 3.0])


def test_the_driver_is_read_from_its_tool(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho '| NVIDIA-SMI 570.1   Driver Version: 570.133.20   CUDA Version: 12.8 |'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    machine.nvidia_driver.cache_clear()
    try:
        assert machine.nvidia_driver() == ("570.133.20", "12.8")
        tool.write_text("#!/bin/sh\nexit 9\n")
        machine.nvidia_driver.cache_clear()
        assert machine.nvidia_driver() is None
    finally:
        machine.nvidia_driver.cache_clear()


def test_unknown_backends_are_named(monkeypatch):
    with pytest.raises(BackendError, match="choose one of cupy, numpy"):
        get_backend("abacus")


@pytest.mark.parametrize(("tf32", "wanted"), [(False, 1), (True, 7)])
def test_the_precision_of_products_is_always_said(monkeypatch, tf32, wanted):
    """CuPy would otherwise read an environment variable, which no record shows."""
    said = []
    products = types.ModuleType("cupy._core._routines_linalg")
    products.COMPUTE_TYPE_DEFAULT, products.COMPUTE_TYPE_TF32 = 1, 7
    products.set_compute_type = lambda dtype, kind: said.append((dtype, kind))
    for name, fake in (
        ("cupy", types.ModuleType("cupy")),
        ("cupy._core", types.ModuleType("cupy._core")),
    ):
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setitem(sys.modules, "cupy._core._routines_linalg", products)
    module._set_tf32(tf32)
    assert said == [(np.float32, wanted)]


def test_namespace_of_plain_arrays_and_of_others():
    plain, strict = np.zeros(2), array_api_strict.zeros(2)
    assert namespace(plain) is np
    assert namespace(plain[0]) is np
    assert namespace(plain, plain) is namespace(plain)
    assert namespace(plain, 1.0) is namespace(plain)
    assert namespace(strict) is array_api_strict
    with pytest.raises(TypeError):
        namespace(plain, strict)
    with pytest.raises(TypeError):
        namespace([1.0])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_asarray_gives_floats_the_backends_type_and_leaves_the_rest(backend, dtype):
    there = replace(backend, dtype=dtype)
    xp = backend.xp
    assert there.asarray(np.zeros(3)).dtype == getattr(xp, dtype)
    assert there.asarray(np.zeros(3, dtype=np.float32)).dtype == getattr(xp, dtype)
    assert there.asarray(np.zeros(3, dtype=np.int64)).dtype == xp.int64
    assert there.asarray(np.zeros(3), dtype="float64").dtype == xp.float64
    moved = there.asarray(np.arange(3.0))
    again = there.asarray(moved)
    assert again.dtype == getattr(xp, dtype)
    if backend.device is not None:
        assert again.device == backend.device
    assert there.asarray(there.asarray(np.arange(3))).dtype == xp.int64


class FakeEvent:
    """A CUDA event that stamps what the fake stream has done so far."""

    def __init__(self, stream):
        self.stream, self.at = stream, None

    def record(self):
        self.at = self.stream["device"]


@pytest.fixture
def gpu():
    """A namespace that plays CuPy: a device clock, a wall that waits for it, and a pool with a limit."""
    stream = {"device": 0.0, "idle": 0}
    pool = types.SimpleNamespace(
        held=300, used=200, limit=0,
        get_limit=lambda: pool.limit, used_bytes=lambda: pool.used,
        free_bytes=lambda: pool.held - pool.used, total_bytes=lambda: pool.held,
        free_all_blocks=lambda: stream.update(freed=True),
    )  # fmt: skip
    cuda = types.SimpleNamespace(
        Event=lambda: FakeEvent(stream),
        get_elapsed_time=lambda first, last: 1e3 * (last.at - first.at),
        get_current_stream=lambda: types.SimpleNamespace(
            synchronize=lambda: stream.update(idle=stream["idle"] + 1)
        ),
        runtime=types.SimpleNamespace(memGetInfo=lambda: (1000, 5000)),
    )
    xp = types.SimpleNamespace(
        cuda=cuda,
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pool,
        stream=stream,
        pool=pool,
    )
    return module.CupyBackend("cupy", xp)


def test_device_seconds_come_from_events_and_both_ends_wait(gpu):
    stop = gpu.stopwatch()
    assert gpu.xp.stream["idle"] == 1
    gpu.xp.stream["device"] += 0.25
    elapsed = stop()
    assert gpu.xp.stream["idle"] == 2
    assert elapsed.device_seconds == pytest.approx(0.25)
    assert elapsed.seconds < 0.25


def test_free_memory_respects_the_pool(gpu):
    pool = gpu.xp.pool
    assert (
        gpu.free_memory() == 1000 + 100
    )  # the driver's, and what the pool holds unused
    pool.limit = 600
    assert gpu.free_memory() == 600 - 200
    pool.limit = 10**6
    assert gpu.free_memory() == 1100
    assert gpu.peak_memory() == 300
    gpu.release()
    assert gpu.xp.stream["freed"]
