"""Inputs that stay on the host give the same results, and are used exactly where the others would not fit."""

import numpy as np
import pytest

from smimbench.backend.arrays import namespace, to_host
from smimbench.backend.device import Backend, get_backend
from smimbench.backend.streaming import (
    SHARE_OF_MEMORY,
    StreamedInputs,
    fits_device_memory,
    sample_chunks,
)
from smimbench.run import cell as runner
from smimbench.suite.reader import load_suite
from tests.backend.steps import estimate
from tests.conftest import assert_placed
from tests.helpers import SUITE, attention, sequence, write_suite

SEQUENCE, ATTENTION = sequence(), attention("linear", noise=0.1)


class Small(Backend):
    """The host, playing a device with little memory."""

    limit = 0

    def free_memory(self):
        """As many bytes as the test says."""
        return self.limit


def small(limit, dtype="float64"):
    backend = Small("numpy", get_backend("numpy").xp, dtype)
    object.__setattr__(backend, "limit", limit)
    return backend


def test_a_slice_is_an_array_of_the_backend(backend, rng):
    host = rng.standard_normal((7, 2, 5))
    streamed = StreamedInputs(host, backend)
    assert (streamed.shape, streamed.ndim, len(streamed)) == ((7, 2, 5), 3, 7)
    assert streamed.dtype == getattr(backend.xp, backend.dtype)
    assert namespace(streamed) is backend.xp
    part = streamed[2:5, ...]
    assert_placed(part, backend, (3, 2, 5))
    np.testing.assert_array_equal(to_host(part), host[2:5])
    np.testing.assert_array_equal(to_host(streamed[2:5]), host[2:5])
    np.testing.assert_array_equal(to_host(streamed[2:5, 1, :]), host[2:5, 1, :])


@pytest.mark.parametrize("key", [0, slice(None), (slice(None), 0), ...])
def test_the_whole_is_refused_in_words(key):
    streamed = StreamedInputs(np.zeros((4, 2, 3)), get_backend("numpy"))
    with pytest.raises(TypeError, match="read them in slices of samples"):
        streamed[key]
    with pytest.raises(TypeError, match="read them in slices of samples"):
        np.asarray(streamed)


@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [
        (SEQUENCE, "gamp"),
        (ATTENTION, "gamp"),
        (SEQUENCE, "adam"),
        (ATTENTION, "spectral"),
    ],
)
def test_results_do_not_depend_on_where_the_inputs_live(backend, problem, algorithm):
    instance = problem.instance(0.9, 16)
    whole, streamed = (
        instance.data(backend, stream=stream) for stream in (False, True)
    )
    assert isinstance(streamed.inputs, StreamedInputs)
    assert not isinstance(whole.inputs, StreamedInputs)
    found = [estimate(problem, data, 2, algorithm) for data in (whole, streamed)]
    assert_placed(found[1], backend, instance.signal.shape)
    np.testing.assert_array_equal(to_host(found[0]), to_host(found[1]))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_they_are_streamed_where_they_would_not_fit(dtype):
    instance = SEQUENCE.instance(1.0, 50)
    size = instance.inputs.size * (4 if dtype == "float32" else 8)
    limit = size / SHARE_OF_MEMORY
    assert isinstance(
        instance.data(small(int(limit) - 1, dtype)).inputs, StreamedInputs
    )
    assert isinstance(instance.data(small(int(limit) + 1, dtype)).inputs, np.ndarray)
    assert isinstance(instance.data(get_backend("numpy", dtype)).inputs, np.ndarray)
    assert fits_device_memory(10**18, get_backend("numpy"))


def test_the_record_says_so(tmp_path, monkeypatch):
    (cell, *_) = load_suite(
        write_suite(tmp_path), ["grid.alpha=[0.5]"], ["algorithm=gamp"]
    ).cells()
    plain = runner.run_cell(cell)
    monkeypatch.setattr(runner, "get_backend", lambda *args, **kwargs: small(0))
    streamed = runner.run_cell(cell)
    assert plain.document["placement"] == {"drawn": "host", "inputs": "resident"}
    assert streamed.document["placement"] == {"drawn": "host", "inputs": "streamed"}
    assert plain.metrics == streamed.metrics
    assert SUITE.count("gamp") == 1


def test_a_model_is_told_only_what_it_asks_for():
    """Models of third parties may have the bare signature of the contract."""

    class Bare:
        def chunks(self, n, dimension, components):
            return [slice(0, n), dimension, components]

    class Curious:
        def chunks(self, n, dimension, components, *, like, itemsize):
            return [like, itemsize]

    inputs = np.zeros((6, 2, 3), dtype=np.float32)
    assert sample_chunks(Bare(), inputs, 4) == [slice(0, 6), 3, 4]
    like, itemsize = sample_chunks(Curious(), inputs, 4)
    assert like is inputs
    assert itemsize == 4
    like, itemsize = sample_chunks(
        Curious(), StreamedInputs(np.zeros((6, 2, 3)), get_backend("numpy")), 4
    )
    assert isinstance(like, np.ndarray)
    assert itemsize == 8
