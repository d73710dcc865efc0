"""The compiled pass over the inputs gives what the loop over chunks gives, to rounding."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_algorithms.gamp import one_pass as compiled

from smimbench.backend.device import get_backend
from smimbench.interfaces import Data
from smimbench.problem.problem import Problem
from smimbench.registry.registry import get_registry

pytest.importorskip("numba")

GAMP = get_registry().get("algorithm", "gamp").item

CASES = {
    # dimensions on either side of where four tokens go together, and sizes that leave a rest
    "softmax": ({"name": "softmax"}, 2, 67, 1.7),
    "softmax, long tokens": ({"name": "softmax"}, 2, 2100, 0.02),
    "softmax, three tokens": ({"name": "softmax"}, 3, 50, 1.1),
    "linear": ({"name": "linear", "noise": 0.3}, 2, 40, 1.3),
    "linear, noiseless, three rows": ({"name": "linear", "components": 3}, 1, 33, 2.1),
    "linear, two rows": ({"name": "linear", "components": 2, "noise": 0.2}, 2, 2090, 0.01),
}


@pytest.fixture(params=CASES, ids=CASES)
def start(request):
    """A problem with its data and a state in the middle of a run, where the Onsager term matters."""
    channel, tokens, dimension, alpha = CASES[request.param]
    problem = Problem({"name": "sequence-multi-index", "tokens": tokens}, channel, "gaussian")
    data = problem.instance(alpha, dimension, seed=3).data(get_backend("numpy"))
    state = GAMP().init(problem, data, np.random.default_rng(1))
    for _ in range(3):
        state, _ = GAMP().step(problem, data, state)
    return problem, data, state


def compile_always(monkeypatch):
    monkeypatch.setattr(compiled, "WORTHWHILE", 0)


def test_an_iteration_is_the_same(start, monkeypatch):
    problem, data, state = start
    assert compiled.one_pass(problem, data, state.estimate, state.V, state.g) is None  # too small to be worth it
    expected, info = GAMP().step(problem, data, state)
    compile_always(monkeypatch)
    assert compiled.one_pass(problem, data, state.estimate, state.V, state.g) is not None
    found, other = GAMP().step(problem, data, state)
    for name in ("estimate", "V", "g"):
        array = getattr(expected, name)
        np.testing.assert_allclose(getattr(found, name), array, rtol=0, atol=1e-12 * np.abs(array).max())
    for name in ("residual", "claimed", "held", "moved", "strain"):
        np.testing.assert_allclose(getattr(other, name), getattr(info, name), rtol=1e-10, atol=1e-12)


def test_the_first_iteration_has_no_onsager_term(start, monkeypatch):
    problem, data, state = start
    expected, _ = GAMP().step(problem, data, state._replace(g=None))
    compile_always(monkeypatch)
    found, _ = GAMP().step(problem, data, state._replace(g=None))
    np.testing.assert_allclose(found.estimate, expected.estimate, rtol=0, atol=1e-12 * np.abs(expected.estimate).max())


def test_what_cannot_be_compiled_is_left_to_the_loop(monkeypatch):
    """Single precision, several layers, streamed or reordered inputs: None, so that the loop takes over."""
    compile_always(monkeypatch)
    model = {"name": "sequence-multi-index", "tokens": 2}
    for channel, dtype in (({"name": "softmax"}, "float32"), ({"name": "softmax", "layers": 2}, "float64")):
        problem = Problem(model, channel, "gaussian")
        data = problem.instance(1.0, 20, dtype=dtype).data(get_backend("numpy", dtype))
        state = GAMP().init(problem, data, np.random.default_rng(0))
        assert compiled.one_pass(problem, data, state.estimate, state.V, None) is None
    problem = Problem(model, "softmax", "gaussian")
    instance = problem.instance(1.0, 20)
    state = GAMP().init(problem, instance.data(get_backend("numpy")), np.random.default_rng(0))
    streamed = instance.data(get_backend("numpy"), stream=True)
    assert compiled.one_pass(problem, streamed, state.estimate, state.V, None) is None
    strided = Data(np.asfortranarray(instance.inputs), instance.labels, 1.0)
    assert compiled.one_pass(problem, strided, state.estimate, state.V, None) is None


def test_without_numba_nothing_is_compiled(monkeypatch):
    compile_always(monkeypatch)
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    compiled.available.cache_clear()
    try:
        assert not compiled.available()
    finally:
        monkeypatch.undo()
        compiled.available.cache_clear()
    assert compiled.available()
