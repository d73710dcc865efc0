"""Inputs stored in float32, all else in float64: what is stored, what comes out of it, and how far that is from float64."""

from dataclasses import replace

import numpy as np
import pytest

from smimbench.backend.arrays import to_host
from smimbench.backend.device import get_backend
from smimbench.backend.streaming import NarrowInputs, StreamedInputs, take_samples
from smimbench.run.cell import run_cell
from tests.backend.steps import estimate
from tests.conftest import assert_placed
from tests.helpers import ATTENTION as ATTENTION_SUITE
from tests.helpers import SUITE, attention, loaded, sequence

SEQUENCE, ATTENTION, HARDMAX = (
    sequence("softmax", layers=2),
    attention("softmax"),
    attention("hardmax"),
)

LARGEST_DIFFERENCE = 1e-6
"""Of the error after as many iterations as are compared here; docs/clusters.md quotes it."""


def mixed(backend):
    return replace(backend, dtype="float64", storage="float32")


@pytest.mark.parametrize("problem", [SEQUENCE, ATTENTION, HARDMAX])
@pytest.mark.parametrize("stream", [False, True])
def test_only_the_inputs_are_narrow(backend, problem, stream):
    there = mixed(backend)
    instance = problem.instance(0.6, 24, dtype="mixed")
    assert instance.inputs.dtype == np.float32
    data = instance.data(there, stream=stream)
    assert isinstance(data.inputs, StreamedInputs if stream else NarrowInputs)
    assert data.inputs.dtype == there.xp.float64
    assert data.inputs.itemsize == 4
    if problem is not HARDMAX:
        assert_placed(data.labels, there, dtype="float64")
    assert_placed(data.inputs[1:3, ...], there, (2, 2, 24), "float64")
    # Exactly what float64 finds from the same, rounded, inputs.
    expected = instance.data(backend)
    assert_placed(expected.inputs, backend, dtype="float64")
    found, other = (estimate(problem, d, 2, seed=3) for d in (data, expected))
    assert_placed(found, there, instance.signal.shape, "float64")
    np.testing.assert_allclose(to_host(found), to_host(other), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("problem", "alpha", "dimension"),
    [(SEQUENCE, 1.2, 400), (ATTENTION, 0.12, 60), (HARDMAX, 0.4, 50)],
)
def test_the_error_of_an_estimate_is_that_of_double_precision(
    problem, alpha, dimension
):
    """Rounding the inputs to 24 bits moves the error by a millionth at most, thousands of times less than another draw."""
    plain = get_backend("numpy")
    found = []
    for dtype, there in (("float64", plain), ("mixed", mixed(plain))):
        instance = problem.instance(alpha, dimension, dtype=dtype)
        found.append(
            np.array(
                instance.metrics(estimate(problem, instance.data(there), 25, seed=3))[
                    "mse"
                ]
            )
        )
    assert 0 < np.abs(found[1] - found[0]).max() < LARGEST_DIFFERENCE


@pytest.mark.parametrize("text", [SUITE, ATTENTION_SUITE])
def test_every_algorithm_of_a_suite_runs_and_has_a_key_of_its_own(tmp_path, text):
    suites = [
        loaded(tmp_path, text, overrides) for overrides in ((), ["run.dtype=mixed"])
    ]
    for plain, narrow in zip(suites[0].cells(), suites[1].cells()):
        assert plain.key != narrow.key
        records = [run_cell(cell) for cell in (plain, narrow)]
        assert records[1].status == records[0].status, records[1].reason
        assert records[1].document["placement"] == {
            "drawn": "host",
            "inputs": "resident",
        }
        np.testing.assert_allclose(
            records[1].metrics["mse"], records[0].metrics["mse"], rtol=1e-3
        )
        cost = [record.timing.cost for record in records]
        if cost[0] is not None:
            assert cost[1].bytes == cost[0].bytes / 2


def test_a_model_that_takes_narrow_inputs_is_given_them_on_a_device(backend):
    stored = mixed(backend).asarray(np.zeros((4, 2, 3)), dtype="float32")
    inputs = NarrowInputs(stored, backend.xp.float64)
    on_host = isinstance(stored, np.ndarray)
    assert take_samples(SEQUENCE.model, inputs, slice(0, 2)).dtype == (
        backend.xp.float64 if on_host else backend.xp.float32
    )
    assert (
        take_samples(ATTENTION.model, inputs, slice(0, 2)).dtype == backend.xp.float64
    )
    np.testing.assert_array_equal(
        np.asarray(NarrowInputs(np.ones((1, 2, 3), dtype=np.float32), np.float64)), 1.0
    )
