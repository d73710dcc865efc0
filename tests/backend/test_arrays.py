"""Functions of arrays of any namespace."""

import numpy as np
import pytest

from smimbench.backend import to_host
from smimbench.backend.arrays import clip
from tests.conftest import assert_placed


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize(
    ("lower", "upper"), [(0, None), (None, 1), (-1, 2), (None, None)]
)
def test_clip_keeps_the_array_type_and_does_what_numpy_does(
    backend, dtype, lower, upper
):
    host = np.array([-3, -1, 0, 1, 2, 5], dtype=dtype)
    found = clip(backend.asarray(host, dtype=dtype), lower, upper)
    assert_placed(found, backend, shape=host.shape, dtype=dtype)
    np.testing.assert_array_equal(
        to_host(found), host if lower is upper else np.clip(host, lower, upper)
    )


def test_clip_keeps_nan_and_takes_arrays_as_bounds(backend):
    x, low, high = (
        backend.asarray(np.array(v))
        for v in ([np.nan, -2.0, 7.0], [0.0, -1.0, 0.0], [1.0, 0.0, 5.0])
    )
    np.testing.assert_array_equal(to_host(clip(x, low, high)), [np.nan, -1.0, 5.0])
