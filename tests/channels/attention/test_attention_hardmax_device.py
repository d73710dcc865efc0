"""The nested integrals over row maxima on a device: in Numba's simulator everywhere, and on a GPU where there is one."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.channels.attention.hardmax import AttentionHardmax
from smimbench_attention.channels.attention.hardmax.exact import row_posterior


def labelled(tokens, n):
    """Labels and means of samples."""
    rng = np.random.default_rng(tokens)
    omega = rng.standard_normal((n, tokens * (tokens + 1) // 2))
    z = omega + np.sqrt(0.3) * rng.standard_normal(omega.shape)
    return AttentionHardmax(tokens=tokens).forward(z[:, None, :]), omega


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_simulated_device():
    script = """
import numpy as np
from smimbench_attention.channels.attention.hardmax import device, exact, kernel
from tests.channels.attention.test_attention_hardmax_device import assert_same, labelled
for tokens in (3, 4):
    y, omega = labelled(tokens, 3)
    y[1] = [1, 2, 0, 0][:tokens]  # impossible
    codes = (y * tokens ** np.arange(tokens)).sum(1)
    rows, columns = kernel.work_shape(tokens, 1)
    device.WORK_BYTES = 8 * rows * columns * 2  # the third sample has to wait
    arguments = omega, codes, exact.kernel_tables(tokens), (7.0, 1)
    expected = kernel.host_moments(*arguments)
    assert np.isnan(expected[1][1]).all()
    assert_same(device.device_moments(*arguments), expected)
"""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [3, 4, 5])
def test_the_kernel_agrees_on_the_device(tokens):
    cupy = pytest.importorskip("cupy")
    if not cupy.is_available():
        pytest.skip("no CUDA device")
    y, omega = labelled(tokens, 12_000)
    found = row_posterior(
        cupy.asarray(y), cupy.asarray(omega), cupy.asarray(0.3), tokens
    )
    expected = row_posterior(y, omega, np.asarray(0.3), tokens)
    assert_same(map(cupy.asnumpy, found), expected)
