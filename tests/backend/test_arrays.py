"""Functions of arrays of any namespace."""

from types import SimpleNamespace

import numpy as np
import pytest

from smimbench.backend import device_of, to_host
from smimbench.backend.arrays import clip
from tests.conftest import assert_placed


def test_devices_without_a_hash_are_known_by_their_number(backend, monkeypatch):
    """As those of CuPy, which its functions take as well."""
    array = backend.asarray(np.zeros(2))
    hash(device_of(array))
    device = SimpleNamespace(id=1)
    monkeypatch.setattr("array_api_compat.device", lambda _: device)
    assert device_of(array) == 1


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
