"""The kernel of two layers as a device runs it: in plain Python, in Numba's simulator, and on a device where there is one."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.channels.sequence.softmax import two_layers
from smimbench_attention.channels.sequence.softmax.two_layers import (
    IntegrationRule,
    kernel,
)
from smimbench_attention.channels.sequence.softmax.two_layers.kernel import (
    TABLE_ROWS,
    host_sums,
    make_kernel,
)

from tests.channels.sequence.deep_attention import draw, outputs

CASES = [
    (0.0, (0.3, 0.05, 0.2)),
    (0.5, (1e-3, 0.0, 1e-2)),
    (1.0, (0.9, 0.1, 0.6)),
    (1.0, (1e-6, 0.0, 1e-7)),
    (3.0, (0.5, 0.4, 0.5)),
]
POINTS = {
    False: 12,
    True: 20,
}  # two of the largest pieces do not fit into one table of the host


def block(skip, V, full, count):
    """Arguments of ``host_sums``."""
    omega, z = draw(np.random.default_rng(0), count, np.array([V[:2], V[1:]]))
    return (
        outputs(z, skip),
        omega,
        IntegrationRule(V, skip, 1e-6, full, POINTS[full]),
        np.full(count, 6.0),
        np.zeros(count),
    )


def assert_same(found, expected):
    (sums, error), (other, other_error) = found, expected
    assert_allclose(sums / other[0], other / other[0], rtol=0, atol=1e-12)
    assert_allclose(error, other_error, rtol=1e-6)


def plain_sums(u, omega, rule, reach, level):
    """``host_sums`` by the kernel in plain Python, one column at a time."""

    def plain(function):
        return function

    integrate = make_kernel(plain, plain, 1, 1)
    sums = np.empty((rule.moment_count, len(u)))
    error = np.empty(len(u))
    scratch = (
        np.zeros(TABLE_ROWS),
        np.empty((8, 4)),
        np.empty((8, 16)),
        np.empty((4, 4)),
    )
    for row in range(len(u)):
        sample = u[row], omega[row], reach[row], level[row]
        error[row] = integrate(sample, rule.arguments, scratch, sums[:, row])
    return sums, error


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("skip", "V"), CASES)
def test_one_column_at_a_time_in_plain_python(skip, V, full):
    arguments = block(skip, V, full, 2)
    assert_same(plain_sums(*arguments), host_sums(*arguments))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("skip", [0.0, 0.2])
def test_folded_integrals_are_those_over_all_intervals(monkeypatch, skip, full):
    """Of layers that are correlated, little known, and not equally well."""
    u, omega, rule, reach, level = block(skip, (0.9, 0.05, 0.8), full, 2)
    rule = replace(rule, accuracy=1e-5)
    folded, error = plain_sums(u, omega, rule, reach, level)
    assert_same((folded, error), host_sums(u, omega, rule, reach, level))
    monkeypatch.setattr(kernel, "FOLDED_DISTANCE", 0.0)
    sums, _ = plain_sums(u, omega, rule, reach, level)
    assert_allclose(folded / sums[0], sums / sums[0], rtol=0, atol=5e-5)


@pytest.mark.slow
def test_simulated_device():
    script = """
from tests.channels.sequence.test_softmax_device import CASES, assert_same, block, host_sums
from smimbench_attention.channels.sequence.softmax.two_layers.device import device_sums
for skip, V in CASES:
    for full in (False, True):
        arguments = block(skip, V, full, 3)
        assert_same(device_sums(*arguments), host_sums(*arguments))
"""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("skip", "V"), CASES)
def test_the_kernel_agrees_on_the_device(skip, V, full):
    cupy = pytest.importorskip("cupy")
    if not cupy.is_available():
        pytest.skip("no CUDA device")
    V = np.array([V[:2], V[1:]])
    omega, z = draw(np.random.default_rng(0), 1003, V)
    u = outputs(z, skip)
    expected = two_layers.integrate(u, omega, V, skip, 1e-6, full)
    found = two_layers.integrate(
        cupy.asarray(u), cupy.asarray(omega), V, skip, 1e-6, full
    )
    assert all(isinstance(a, cupy.ndarray) for a in found)
    shift = cupy.asnumpy(found.shift)
    scale = np.sqrt(np.diagonal(V))
    assert_allclose(
        cupy.asnumpy(found.log_partition), expected.log_partition, rtol=0, atol=1e-9
    )
    # decisions on the edge may fall either way: then the two differ by the accuracy that was asked for
    assert np.quantile(np.abs(shift - expected.shift) / scale[:, None], 0.98) < 1e-10
    assert np.abs(shift - expected.shift).max() < 1e-5 * scale.max()
