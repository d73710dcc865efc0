"""The fused CUDA kernel computes what the array version does: compiled for the host, and on a device where there is one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from smimbench_channels.sequence.softmax.two_layers import cuda
from smimbench_channels.sequence.softmax.two_layers import posterior as two_layers

COMPILER = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
CASES = [
    (0.0, (0.3, 0.05, 0.2)),
    (0.5, (1e-3, 0.0, 1e-2)),
    (1.0, (0.9, 0.1, 0.6)),
    (1.0, (1e-6, 0.0, 1e-7)),
    (3.0, (0.5, 0.4, 0.5)),
]
ACCURACY = 1e-6


@pytest.fixture(scope="module")
def host_kernel(tmp_path_factory):
    """The source for one lane, as functions of a C library."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("cuda")
    source = folder / "quadrature.cpp"
    source.write_text(cuda.source())
    libraries = {}
    for full in (False, True):
        library = folder / f"quadrature{int(full)}.so"
        command = [COMPILER, "-O1", "-Wno-unknown-pragmas", "-shared", "-fPIC", f"-DFULL={int(full)}"]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
        libraries[full] = ctypes.CDLL(str(library)).integrate_block

    def integrate(u, omega, rule, reach, level):
        n = len(u)
        sums, error = np.empty((rule.moments, n)), np.empty(n)
        real, array = ctypes.c_double, lambda a: a.ctypes.data_as(ctypes.c_void_p)
        libraries[rule.full](
            *(array(np.ascontiguousarray(a)) for a in (u, omega, reach, level)),
            *(real(v) for v in (*rule.V, rule.skip, rule.accuracy)),
            rule.points,
            rule.rounds,
            real(rule.negligible),
            real(rule.share),
            ctypes.c_longlong(n),
            array(sums),
            array(error),
        )
        return sums, error

    return integrate


def samples(skip, V, count, seed=0):
    """Labels of the model given means, and those means."""
    rng = np.random.default_rng(seed)
    V = np.array([[V[0], V[1]], [V[1], V[2]]])
    omega = rng.standard_normal((count, 2, 2)) * np.sqrt(np.maximum(1.2 - np.diagonal(V), 0.1))[:, None]
    z = omega + np.einsum("lk,nkm->nlm", np.linalg.cholesky(V), rng.standard_normal((count, 2, 2)))
    attention = np.exp(z[:, 0, :, None] * z[:, 0, None, :])
    attention = attention / attention.sum(-1, keepdims=True) + skip * np.eye(2)
    return np.einsum("nij,nj->ni", attention, z[:, 1]), omega, V


def agree(found, expected, V):
    np.testing.assert_allclose(found.log_partition, expected.log_partition, rtol=0, atol=1e-9)
    scale = np.sqrt(np.diagonal(V))
    # Decisions on the edge may fall either way: then the two differ by the accuracy that was asked for.
    difference = np.abs(found.shift - expected.shift) / scale[:, None]
    assert np.quantile(difference, 0.98) < 1e-10
    assert difference.max() < 10 * ACCURACY
    assert np.nanmax(np.abs(found.second - expected.second)) < 30 * ACCURACY * scale.max() ** 2


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("skip", "V"), CASES)
def test_the_source_agrees_with_the_array_version(monkeypatch, host_kernel, skip, V, full):
    u, omega, V = samples(skip, V, 40)
    monkeypatch.setattr(two_layers, "use_compiled", False)
    expected = two_layers.integrate(u, omega, V, skip, ACCURACY, full)
    monkeypatch.setattr(two_layers, "use_compiled", True)
    monkeypatch.setattr(two_layers, "compiled_version", lambda device: host_kernel)
    agree(two_layers.integrate(u, omega, V, skip, ACCURACY, full), expected, V)


def test_a_label_out_of_reach_is_rescued_in_the_same_way(monkeypatch, host_kernel):
    u, omega, V = samples(1.0, (1e-2, 0.0, 1e-2), 20)
    u[:5] += 1.5
    monkeypatch.setattr(two_layers, "use_compiled", False)
    expected = two_layers.integrate(u, omega, V, 1.0, ACCURACY)
    monkeypatch.setattr(two_layers, "use_compiled", True)
    monkeypatch.setattr(two_layers, "compiled_version", lambda device: host_kernel)
    found = two_layers.integrate(u, omega, V, 1.0, ACCURACY)
    assert np.isfinite(found.log_partition).all()
    np.testing.assert_allclose(found.log_partition, expected.log_partition, rtol=0, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("skip", "V"), CASES)
def test_the_kernel_agrees_on_the_device(skip, V, full):
    cupy = pytest.importorskip("cupy")
    if not cupy.is_available():
        pytest.skip("no CUDA device")
    u, omega, V = samples(skip, V, 1003)
    expected = two_layers.integrate(u, omega, V, skip, ACCURACY, full)
    found = two_layers.integrate(cupy.asarray(u), cupy.asarray(omega), V, skip, ACCURACY, full)
    assert all(isinstance(a, cupy.ndarray) for a in found)
    agree(type(found)(*(cupy.asnumpy(a) for a in found)), expected, V)
