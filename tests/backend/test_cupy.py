"""What only a GPU can show: the numbers of NumPy, memory within its limit, the law of its draws, waits, events that time it."""

import numpy as np
import pytest
from scipy import stats
from smimbench_attention.channels.sequence.softmax import two_layers
from smimbench_attention.models import sequence_multi_index

from smimbench.backend import device
from smimbench.backend.arrays import to_host
from smimbench.backend.device import get_backend
from smimbench.backend.streaming import DrawnInputs, sample_chunks
from smimbench.problem import instance as instance_module
from smimbench.run import cell as runner
from smimbench.run.loop import Readings
from tests.backend.steps import after, estimate
from tests.backend.test_philox import by_numpy
from tests.helpers import ATTENTION, SUITE, attention, loaded, sequence

cupy = pytest.importorskip("cupy")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cupy.is_available(), reason="no CUDA device"),
]

PROBLEMS = [
    (attention(), 0.1, 200),
    (attention("hardmax"), 0.3, 100),
    (sequence(layers=2), 1.2, 500),
    (sequence(tokens=3), 1.0, 800),
]


@pytest.mark.parametrize(("problem", "alpha", "dimension"), PROBLEMS)
def test_gamp_gives_the_numbers_of_numpy(problem, alpha, dimension):
    instance = problem.instance(alpha, dimension)
    here, there = (
        estimate(problem, instance.data(get_backend(name)), 5)
        for name in ("numpy", "cupy")
    )
    found, expected = instance.metrics(there)["mse"], instance.metrics(here)["mse"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("text", [SUITE, ATTENTION])
def test_a_suite_runs(tmp_path, text):
    for cell in loaded(tmp_path, text).cells("cupy"):
        record = runner.run_cell(cell, timing=True)
        assert record.status in ("ok", "not-converged"), record.reason
        timing = record.timing
        assert 0 < timing.device_seconds <= 1.05 * timing.seconds + 1e-3
        assert record.document["timing"]["device_peak_memory"] > 0


def test_inputs_beyond_the_limit_are_streamed(tmp_path):
    pool = cupy.get_default_memory_pool()
    problem = PROBLEMS[3][0]
    instance = problem.instance(4.0, 1500)
    backend = get_backend("cupy")
    whole = instance.data(backend)
    expected = to_host(estimate(problem, whole, 1))
    del whole
    backend.release()
    pool.set_limit(size=pool.used_bytes() + instance.inputs.nbytes // 2)
    try:
        data = instance.data(backend)
        assert type(data.inputs).__name__ == "StreamedInputs"
        assert len(list(sample_chunks(problem.model, data.inputs, 1))) > 8
        found = to_host(estimate(problem, data, 1))
        assert pool.total_bytes() <= pool.get_limit()
    finally:
        pool.set_limit(size=0)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_what_was_asked_for(tf32):
    backend = get_backend("cupy", "float32", tf32=tf32)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((512, 512)), rng.standard_normal((512, 512))
    product = to_host(backend.asarray(a) @ backend.asarray(b))
    get_backend("cupy")
    error = np.abs(product - a @ b).max() / np.sqrt(512)
    if not tf32:
        assert error < 1e-5
    elif int(cupy.cuda.Device().compute_capability) >= 80:
        assert 1e-5 < error < 1e-2


@pytest.mark.parametrize(("problem", "alpha", "dimension"), PROBLEMS)
def test_chunks_change_nothing(monkeypatch, problem, alpha, dimension):
    data = problem.instance(alpha, dimension).data(get_backend("cupy"))
    found = []
    for most in (1 << 30, 1 << 16):
        monkeypatch.setattr(device, "LARGEST_CHUNK", most)
        monkeypatch.setattr(device, "SMALLEST_CHUNK", 1 << 14)
        found.append(to_host(estimate(problem, data, 3)))
        count = len(list(sample_chunks(problem.model, data.inputs, problem.components)))
        assert (count > 3) == (most < 1 << 20)
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-9)


def test_blocks_that_do_not_fit_are_drawn_anew(monkeypatch):
    monkeypatch.setattr(instance_module, "DEVICE_BLOCK", 2 * 300 * 50)
    problem = sequence()
    backend = get_backend("cupy")
    resident = problem.instance(2.0, 300, device=backend)
    monkeypatch.setattr(
        instance_module, "fits_device_memory", lambda size, backend: False
    )
    anew = problem.instance(2.0, 300, device=backend)
    assert isinstance(anew.inputs, DrawnInputs)
    assert anew.inputs.shape == resident.inputs.shape
    for part in (slice(0, 600), slice(49, 151), slice(599, 600)):
        np.testing.assert_array_equal(
            to_host(anew.inputs[part, ...]), to_host(resident.inputs[part, ...])
        )
    np.testing.assert_array_equal(to_host(anew.labels), to_host(resident.labels))


def test_the_law_of_the_draws_is_standard_normal_and_that_of_the_seed():
    seed = np.random.SeedSequence(7, spawn_key=(1, 2))
    draw = get_backend("cupy").standard_normal(seed)
    first, second = (to_host(draw((513, 7, 11))).ravel() for _ in range(2))
    numbers = np.concatenate([first, second])
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))
    key = seed.generate_state(2, np.uint64)
    np.testing.assert_allclose(first, by_numpy(key, len(first)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        second, by_numpy(key, len(first), -(-len(first) // 4)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("text", [SUITE, ATTENTION])
@pytest.mark.parametrize("dtype", ["float64", "mixed"])
def test_converged_rows_are_those_of_numpy(tmp_path, text, dtype):
    suite = loaded(tmp_path, text, [f"run.dtype={dtype}"], ["algorithm=gamp"])
    for there, here in zip(suite.cells("cupy"), suite.cells("numpy")):
        found, expected = runner.run_cell(there), runner.run_cell(here)
        assert (found.status, found.iterations) == (
            expected.status,
            expected.iterations,
        )
        for name, values in expected.metrics.items():
            np.testing.assert_allclose(found.metrics[name], values, rtol=0, atol=1e-8)


def test_labels_out_of_reach_are_rescued():
    """Some in a larger box, some by sampling: as on the host."""
    rng = np.random.default_rng(5)
    omega = rng.standard_normal((200, 2, 2))
    u = rng.standard_normal((200, 2))
    u[:20] *= 8.0
    V = np.array([[0.05, 0.01], [0.01, 0.04]])
    backend = get_backend("cupy")
    expected = two_layers.integrate(u, omega, V, 1.0, 1e-5)
    found = two_layers.integrate(
        backend.asarray(u), backend.asarray(omega), V, 1.0, 1e-5
    )
    for one, other in zip(found, expected):
        one = to_host(one)
        assert (np.isfinite(one) == np.isfinite(other)).all()
    # Boxes are cut alike; samples beyond all boxes have points of their own, and their own error.
    near = expected.error < 1e-3
    assert near.sum() >= 180
    np.testing.assert_allclose(
        to_host(found.shift)[near], expected.shift[near], rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(("problem", "alpha", "dimension"), PROBLEMS)
def test_waits_of_an_iteration(monkeypatch, problem, alpha, dimension):
    """As CuPy itself counts them: whatever stops the host calls ``_declare_synchronize``."""
    watcher = pytest.importorskip("cupy._core.syncdetect")
    data = problem.instance(alpha, dimension).data(get_backend("cupy"))
    (gamp, state, _), readings, waits = after(problem, data, 3), Readings(problem), []
    monkeypatch.setattr(watcher, "_declare_synchronize", lambda: waits.append(1))
    _, info = gamp.step(problem, data, state)
    readings.read(info)
    assert 2 <= len(waits) <= 6


@pytest.mark.parametrize("components", [1, 2, 5])
@pytest.mark.parametrize("shape", [(1, 1), (37, 501), (515, 128), (64, 3000)])
def test_narrow_inputs_are_multiplied_in_double_precision(components, shape):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype(np.float32)
    w, g = (
        rng.standard_normal((components, shape[1])),
        rng.standard_normal((components, shape[0])),
    )
    backend = get_backend("cupy", "mixed")
    there = backend.asarray(x, dtype="float32")
    found = (
        sequence_multi_index.project_mixed(there, backend.asarray(w)),
        sequence_multi_index.push_mixed(backend.asarray(g), there),
    )
    for one, other in zip(found, (x.astype(float) @ w.T, g @ x.astype(float))):
        np.testing.assert_allclose(to_host(one), other, rtol=0, atol=1e-11)
