"""Inputs drawn on a device, or again in every pass: the right law, one instance for all chunkings, a key of their own."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from smimbench.backend import streaming
from smimbench.backend.arrays import to_host
from smimbench.backend.device import get_backend
from smimbench.backend.streaming import DrawnInputs, sample_chunks
from smimbench.problem import instance as instance_module
from smimbench.run import cell as cell_module
from smimbench.run.cost import memory_of_a_cell
from smimbench.run.external import first_points, write_instance
from smimbench.suite import SuiteError
from smimbench.suite.reader import load_suite
from tests.backend.steps import estimate
from tests.backend.test_streaming import small
from tests.conftest import assert_placed
from tests.helpers import SUITE, attention, loaded, sequence, write_suite

LINEAR, HARDMAX = sequence("linear", noise=0.3), attention("hardmax")


@pytest.mark.parametrize("problem", [LINEAR, HARDMAX])
def test_inputs_and_labels_are_there_and_belong_together(backend, problem):
    found = problem.instance(0.5, 20, 1, seed=4, device=backend)
    host = problem.instance(0.5, 20, 1, seed=4)
    np.testing.assert_array_equal(found.signal, host.signal)
    assert_placed(found.inputs, backend, host.inputs.shape)
    assert backend.device is None or found.labels.device == backend.device
    assert not np.any(to_host(found.inputs) == host.inputs)
    z = problem.model.forward(to_host(found.inputs), found.signal)
    if problem is HARDMAX:
        np.testing.assert_array_equal(to_host(found.labels), problem.channel.forward(z))
    else:
        residual = to_host(found.labels) - z
        # 40 numbers: their variance within five standard errors of the noise
        assert np.mean(residual**2) == pytest.approx(
            0.3, rel=5 * np.sqrt(2 / residual.size)
        )


def test_they_are_standard_normal():
    found = LINEAR.instance(1.0, 300, device=get_backend("numpy"))
    assert stats.kstest(np.ravel(found.inputs), "norm").pvalue > 1e-3


def test_chunks_of_the_drawing_are_independent(monkeypatch):
    """Blocks have seeds of their own: no two may be alike, and how many are asked for changes none."""
    monkeypatch.setattr(instance_module, "DEVICE_BLOCK", 2 * 30 * 4)
    long = LINEAR.instance(0.6, 30, device=get_backend("numpy"))
    blocks = [np.ravel(long.inputs[i : i + 4]) for i in range(0, 16, 4)]
    for i in range(4):
        for j in range(i):
            assert abs(np.corrcoef(blocks[i], blocks[j])[0, 1]) < 5 / np.sqrt(240)
    again = LINEAR.instance(0.6, 30, device=get_backend("numpy"))
    np.testing.assert_array_equal(long.inputs, again.inputs)
    np.testing.assert_array_equal(long.labels, again.labels)


def test_both_precisions_are_one_instance(backend):
    double = LINEAR.instance(0.5, 20, device=backend)
    single = LINEAR.instance(
        0.5, 20, dtype="float32", device=replace(backend, dtype="float32")
    )
    assert single.inputs.dtype == backend.xp.float32
    assert single.labels.dtype == backend.xp.float32
    np.testing.assert_array_equal(
        to_host(single.inputs), to_host(double.inputs).astype(np.float32)
    )
    np.testing.assert_allclose(
        to_host(single.labels), to_host(double.labels), atol=1e-5
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_does_not_fit_is_drawn_anew(monkeypatch, dtype):
    """It never passes the host, and any slice of it is that of the same inputs where they fit."""
    monkeypatch.setattr(instance_module, "DEVICE_BLOCK", 2 * 20 * 3)
    crowded = LINEAR.instance(0.5, 20, dtype=dtype, device=small(10, dtype))
    roomy = LINEAR.instance(0.5, 20, dtype=dtype, device=small(10**9, dtype))
    data = crowded.data(small(10, dtype))
    assert isinstance(data.inputs, DrawnInputs)
    assert isinstance(roomy.inputs, np.ndarray)
    assert (data.inputs.shape, data.inputs.dtype) == (
        roomy.inputs.shape,
        roomy.inputs.dtype,
    )
    np.testing.assert_array_equal(crowded.labels, roomy.labels)
    for part in (
        slice(0, 10),
        slice(0, 3),
        slice(2, 7),
        slice(9, 10),
        slice(4, 4),
        slice(5, 99),
    ):
        np.testing.assert_array_equal(data.inputs[part, ...], roomy.inputs[part])
    parts = list(sample_chunks(LINEAR.model, data.inputs, 1))
    assert [i for s in parts for i in range(10)[s]] == list(range(10))
    assert all(s.start % data.inputs.block == 0 for s in parts)
    with pytest.raises(TypeError, match="in slices of samples"):
        data.inputs[...]


@pytest.fixture
def little_memory(monkeypatch):
    """A host that holds no inputs of a test, whose blocks have three samples of two tokens in 20 dimensions."""
    monkeypatch.setattr(streaming, "host_memory", lambda: 1000)
    monkeypatch.setattr(instance_module, "HOST_BLOCK", 2 * 20 * 3)


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
def test_what_does_not_fit_the_host_is_the_same_instance_drawn_anew(
    request, monkeypatch, dtype
):
    monkeypatch.setattr(instance_module, "HOST_BLOCK", 2 * 20 * 3)
    backend = get_backend("numpy", dtype)
    roomy = LINEAR.instance(0.5, 20, dtype=dtype)
    request.getfixturevalue("little_memory")
    crowded = LINEAR.instance(0.5, 20, dtype=dtype)
    here, there = roomy.data(backend).inputs, crowded.data(backend).inputs
    assert isinstance(there, DrawnInputs)
    assert (there.shape, there.dtype) == (here.shape, here.dtype)
    np.testing.assert_array_equal(crowded.labels, roomy.labels)
    for part in (slice(0, 10), slice(2, 7), slice(9, 10), slice(4, 4), slice(5, 99)):
        np.testing.assert_array_equal(there[part, ...], here[part, ...])


@pytest.mark.parametrize("algorithm", ["gamp", "adam"])
@pytest.mark.parametrize("problem", [sequence(), LINEAR])
def test_an_algorithm_finds_the_same_on_inputs_drawn_anew(
    request, backend, problem, algorithm
):
    roomy = problem.instance(0.5, 20)
    request.getfixturevalue("little_memory")
    crowded = problem.instance(0.5, 20)
    assert isinstance(crowded.inputs, DrawnInputs)
    expected, found = (
        to_host(estimate(problem, instance.data(backend), 3, algorithm))
        for instance in (roomy, crowded)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert crowded.remarks == roomy.remarks
    assert crowded.checksum() == crowded.checksum()


def test_a_run_beyond_the_memory_is_accepted_up_to_a_limit(tmp_path, monkeypatch):
    (cell, *_) = loaded(tmp_path, SUITE, [], ["algorithm=gamp"]).cells()
    size = 8 * math.prod(
        cell.rebuild()[0].instance(cell.alpha, cell.dimension).inputs.shape
    )
    memory = memory_of_a_cell([cell])
    for host, placement in ((2 * size, "resident"), (size, "drawn anew")):
        monkeypatch.setattr(streaming, "host_memory", lambda host=host: host)
        monkeypatch.setattr(cell_module, "_LATEST", {})
        record = cell_module.run_cell(cell)
        assert record.document["placement"] == {"drawn": "host", "inputs": placement}
        assert memory_of_a_cell([cell]) <= memory
    assert memory_of_a_cell([cell]) <= memory - size
    monkeypatch.setattr(streaming, "host_memory", lambda: size // 17)
    assert memory_of_a_cell([cell]) == memory


def test_no_file_of_inputs_beyond_the_memory_is_written(tmp_path, little_memory):
    suite = loaded(tmp_path, SUITE)
    (point,) = first_points(suite)
    with pytest.raises(SuiteError, match="do not fit the memory; lower dimension"):
        write_instance(suite, point, tmp_path / "data.npz")
    assert not (tmp_path / "data.npz").exists()


def keys(tmp_path, *overrides):
    return [cell.key for cell in load_suite(write_suite(tmp_path), overrides).cells()]


def test_the_key_tells_where_it_was_drawn(tmp_path):
    usual = keys(tmp_path)
    assert keys(tmp_path, "run.draw=host", "run.tf32=false") == usual
    assert not set(keys(tmp_path, "run.draw=device")) & set(usual)
    single = keys(tmp_path, "run.dtype=float32")
    assert not set(single) & set(usual)
    assert not set(keys(tmp_path, "run.dtype=float32", "run.tf32=true")) & set(single)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.draw=moon", r"run\.draw: must be 'host' or 'device'"),
        ("run.tf32=true", r'run\.tf32: .* need run\.dtype = "float32"'),
        ("run.tf32=1", r"run\.tf32: must be a boolean"),
    ],
)
def test_mistakes_are_named(tmp_path, override, message):
    with pytest.raises(SuiteError, match=message):
        load_suite(write_suite(tmp_path), [override])
