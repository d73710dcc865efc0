"""The kernel that draws normal numbers on a GPU, compiled for the host: NumPy's bits, the right law, and all of the seed."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from scipy import stats

from smimbench.backend.namespaces.cupy import normals_source

COMPILER = next(
    (path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None
)


@pytest.fixture(scope="module")
def draw(tmp_path_factory):
    """``draw(key, n, first)`` in compiled code."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("philox")
    source, library = folder / "philox.cpp", folder / "philox.so"
    source.write_text(normals_source())
    subprocess.run(
        [
            COMPILER,
            "-std=c++17",
            "-O1",
            "-shared",
            "-fPIC",
            str(source),
            "-o",
            str(library),
        ],
        check=True,
    )
    normals = ctypes.CDLL(str(library)).normals

    def call(key, n, first=0):
        out = np.full(n + 4, np.nan)
        words = (
            ctypes.c_longlong(int(word))
            for word in np.asarray(key, dtype=np.uint64).view(np.int64)
        )
        normals(
            *words,
            ctypes.c_longlong(first),
            ctypes.c_longlong(n),
            out.ctypes.data_as(ctypes.c_void_p),
        )
        assert np.isnan(out[n:]).all(), "it wrote beyond the end"
        return out[:n]

    return call


def by_numpy(key, n, first=0):
    words = np.random.Philox(
        key=np.asarray(key, dtype=np.uint64), counter=[first, 0, 0, 0]
    ).random_raw(n + 4 - n % 4)
    u = (words >> np.uint64(11)).astype(np.float64).reshape(-1, 2)
    radius, angle = (
        np.sqrt(-2 * np.log((u[:, 0] + 0.5) * 2.0**-53)),
        2 * np.pi * u[:, 1] * 2.0**-53,
    )
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[
        :n
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 1000])
@pytest.mark.parametrize("key", [(0, 0), (1, 2**63 + 5), (2**64 - 1, 12345)])
def test_it_is_numpys_philox(draw, key, n):
    np.testing.assert_allclose(draw(key, n), by_numpy(key, n), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(
        draw(key, n, 77), by_numpy(key, n, 77), rtol=1e-13, atol=1e-13
    )


def test_the_law_is_standard_normal(draw):
    numbers = draw((11, 22), 1 << 18)
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert (
        stats.kstest(numbers[::2] ** 2 + numbers[1::2] ** 2, "chi2", args=(2,)).pvalue
        > 1e-3
    )
    for lag in (1, 2, 4, 4096):
        assert abs(np.mean(numbers[lag:] * numbers[:-lag])) < 5 / np.sqrt(len(numbers))


@pytest.mark.parametrize("bit", [0, 31, 32, 63, 64, 100, 127])
def test_every_bit_of_the_seed_counts(draw, bit):
    one, other = (12345, 678), [12345, 678]
    other[bit // 64] ^= 1 << (bit % 64)
    a, b = draw(one, 4096), draw(other, 4096)
    assert not np.any(a == b)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / 64
