"""The kernels for inputs in float32 and sums in float64, compiled for the host."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.models import sequence_multi_index

COMPILER = next(
    (path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None
)


@pytest.mark.parametrize("components", [1, 2, 3])
def test_products_keep_the_digits_of_double_precision(tmp_path, rng, components):
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "mixed.cpp"
    library = tmp_path / "mixed.so"
    source.write_text(sequence_multi_index.cuda_source(components))
    subprocess.run(
        [COMPILER, "-O1", "-shared", "-fPIC", str(source), "-o", str(library)],
        check=True,
    )
    kernels = ctypes.CDLL(str(library))
    (rows, size), share = (37, 501), 5
    x = rng.standard_normal((rows, size)).astype(np.float32)
    w = rng.standard_normal((components, size))
    g = rng.standard_normal((rows, components))
    z = np.full((rows, components), np.nan)
    parts = np.full((-(-rows // share), components, size), np.nan)

    def call(kernel, *arguments):
        given = (
            a.ctypes.data_as(ctypes.c_void_p)
            if hasattr(a, "ctypes")
            else ctypes.c_longlong(a)
            for a in arguments
        )
        kernel(*given)

    call(kernels.project, x, w, rows, size, z)
    call(kernels.push, x, g, rows, size, share, parts)
    assert_allclose(z, x.astype(float) @ w.T, rtol=0, atol=1e-12)
    assert_allclose(parts.sum(0), g.T @ x.astype(float), rtol=0, atol=1e-12)


def test_the_source_has_the_sizes_that_the_callers_launch():
    text = sequence_multi_index.cuda_source(1)
    assert f"#define THREADS {sequence_multi_index.THREADS}\n" in text
    assert f"#define ROWS {sequence_multi_index.ROWS}\n" in text
