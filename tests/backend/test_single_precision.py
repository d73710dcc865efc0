"""Single precision: stays single, and finds what double precision finds, to the digits it has."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from smimbench.backend.arrays import to_host
from smimbench.problem.problem import Problem
from smimbench.registry.registry import Registry
from tests.conftest import assert_placed

REGISTRY = Registry(third_party=False)
SEQUENCE = ({"name": "sequence-multi-index", "tokens": 2}, "gaussian")
ATTENTION = ({"name": "attention-indexed", "tokens": 2}, {"name": "wishart", "rho": 0.5})
CHANNELS = [
    (SEQUENCE, {"name": "softmax"}),
    (SEQUENCE, {"name": "softmax", "layers": 2}),
    (SEQUENCE, {"name": "linear", "components": 2, "noise": 0.2}),
    (ATTENTION, {"name": "softmax"}),
    (ATTENTION, {"name": "hardmax"}),
    (ATTENTION, {"name": "linear", "noise": 0.2}),
]


@pytest.mark.parametrize(
    ("case", "algorithm"),
    list(itertools.product(CHANNELS, ["gamp", "adam"])),
    ids=lambda value: value if isinstance(value, str) else f"{value[0][0]['name']} {value[1]}",
)
def test_single_precision_is_kept_and_is_enough(backend, case, algorithm):
    (model, prior), channel = case
    problem = Problem(model, channel, prior, registry=REGISTRY)
    item = REGISTRY.get("algorithm", algorithm).item()
    if hasattr(item, "refuses") and item.refuses(problem):
        pytest.skip(item.refuses(problem))
    single = replace(backend, dtype="float32")
    found = []
    for there, dtype in ((backend, "float64"), (single, "float32")):
        instance = problem.instance(0.6, 24, dtype=dtype)
        data = instance.data(there)
        state = item.init(problem, data, np.random.default_rng(2))
        for _ in range(2):
            state, info = item.step(problem, data, state)
        estimate = item.estimate(state)
        assert_placed(estimate, backend, instance.signal.shape, dtype)
        assert np.isfinite(float(info.residual))
        found.append(to_host(estimate).astype(np.float64))
    # Directions of which nothing is known yet amplify rounding, of a first layer to 2.5e-3 in one of eight instances:
    # compare with the size of the signal.
    scale = np.sqrt(np.mean(instance.signal**2))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=4e-3 * scale)
