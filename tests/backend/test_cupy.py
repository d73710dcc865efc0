"""What only a GPU can show: the same numbers as NumPy, memory within its limit, events that time it."""

from __future__ import annotations

import numpy as np
import pytest

from smimbench.backend.arrays import to_host
from smimbench.backend.device import get_backend
from smimbench.problem.problem import Problem
from smimbench.registry.registry import get_registry
from smimbench.run import cell as runner
from smimbench.suite.reader import load_suite
from tests.helpers import ATTENTION, SUITE, write_suite

cupy = pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not cupy.is_available(), reason="no CUDA device")]

PROBLEMS = [
    (({"name": "attention-indexed", "tokens": 2}, {"name": "softmax"}, {"name": "wishart", "rho": 0.5}), 0.1, 200),
    (({"name": "attention-indexed", "tokens": 2}, {"name": "hardmax"}, {"name": "wishart", "rho": 0.5}), 0.3, 100),
    (({"name": "sequence-multi-index", "tokens": 2}, {"name": "softmax", "layers": 2}, "gaussian"), 1.2, 500),
    (({"name": "sequence-multi-index", "tokens": 3}, {"name": "softmax"}, "gaussian"), 1.0, 800),
]


@pytest.mark.parametrize(("parts", "alpha", "dimension"), PROBLEMS)
def test_gamp_gives_the_numbers_of_numpy(parts, alpha, dimension):
    problem = Problem(*parts)
    instance = problem.instance(alpha, dimension)
    found = {}
    for name in ("numpy", "cupy"):
        data = instance.data(get_backend(name))
        gamp = get_registry().get("algorithm", "gamp").item()
        state = gamp.init(problem, data, np.random.default_rng(0))
        for _ in range(5):
            state, _ = gamp.step(problem, data, state)
        found[name] = instance.metrics(gamp.estimate(state))["mse"]
        assert np.isfinite(to_host(gamp.estimate(state))).all()
    np.testing.assert_allclose(found["cupy"], found["numpy"], rtol=0, atol=1e-8)


@pytest.mark.parametrize("text", [SUITE, ATTENTION])
def test_a_suite_runs(tmp_path, text):
    for cell in load_suite(write_suite(tmp_path, text)).cells("cupy"):
        record = runner.run_cell(cell, timing=True)
        assert record["status"] in ("ok", "not-converged"), record["reason"]
        timing = record["timing"]
        assert 0 < timing["device_seconds"] <= 1.05 * timing["seconds"] + 1e-3
        assert timing["device_peak_memory"] > 0


def test_inputs_beyond_the_limit_are_streamed(tmp_path):
    pool = cupy.get_default_memory_pool()
    problem = Problem(*PROBLEMS[3][0])
    instance = problem.instance(4.0, 1500)
    backend = get_backend("cupy")
    whole = instance.data(backend)
    gamp = get_registry().get("algorithm", "gamp").item()
    state = gamp.init(problem, whole, np.random.default_rng(0))
    expected, _ = gamp.step(problem, whole, state)
    del whole
    backend.release()
    pool.set_limit(size=pool.used_bytes() + instance.inputs.nbytes // 2)
    try:
        data = instance.data(backend)
        assert type(data.inputs).__name__ == "StreamedInputs"
        found, _ = gamp.step(problem, data, state)
        assert pool.total_bytes() <= pool.get_limit()
    finally:
        pool.set_limit(size=0)
    np.testing.assert_allclose(to_host(found.estimate), to_host(expected.estimate), atol=1e-10)


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
