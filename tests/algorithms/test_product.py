"""Everything that is registered, with everything it claims to go with, on every array namespace, at tiny size."""

import inspect
import itertools

import array_api_compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from smimbench.backend.arrays import namespace, to_host
from smimbench.backend.device import get_backend
from smimbench.problem.problem import Problem
from smimbench.registry.items import ENGINE_FILLED, build
from smimbench.registry.registry import Registry, using
from tests.helpers import attention, sequence

# Values of parameters that have no default.
REQUIRED = {"tokens": 2, "rho": 0.5, "of": {"name": "adam"}}
REGISTRY = Registry(third_party=False)


def table(entry) -> dict:
    """An item with its defaults."""
    found = {"name": entry.name}
    for name, parameter in inspect.signature(entry.item).parameters.items():
        if (
            parameter.default is inspect.Parameter.empty
            and name not in ENGINE_FILLED.get(entry.kind, ())
        ):
            found[name] = REQUIRED[name]
    return found


def combinations():
    for model, channel, prior, algorithm in itertools.product(
        *(REGISTRY.entries(kind) for kind in ("model", "channel", "prior", "algorithm"))
    ):
        untied = prior.name == "bilinear"
        if all(
            entry.supports_model(model.name) for entry in (channel, prior, algorithm)
        ) and not (untied and channel.name == "hardmax"):
            yield pytest.param(
                model,
                channel,
                prior,
                algorithm,
                id="-".join((model.name, channel.name, prior.name, algorithm.name)),
            )


def supports(entry, backend) -> bool:
    backends = entry.item.capabilities.backends
    return "*" in backends or backend.name in backends


def estimate_after(problem, item, data, steps):
    state = item.init(problem, data, np.random.default_rng(1))
    for _ in range(steps):
        state, info = item.step(problem, data, state)
    return item.estimate(state), info


def unsigned(estimate):
    """Eigenvectors have no sign."""
    return np.abs(to_host(estimate))


@pytest.mark.parametrize(
    ("model", "channel", "prior", "algorithm"), list(combinations())
)
def test_it_runs_and_stays_where_it_was_put(backend, model, channel, prior, algorithm):
    """With the numbers that NumPy gives."""
    with using(REGISTRY):
        untied = {"symmetric": False, "tokens": 3} if prior.name == "bilinear" else {}
        problem = Problem(table(model) | untied, table(channel), table(prior))
    parameters = table(algorithm)
    parameters.pop("name")
    item = build(algorithm.item, "algorithm", parameters)
    reason = item.refuses(problem) if hasattr(item, "refuses") else None
    if reason is not None:
        assert isinstance(reason, str)
        assert reason
        return
    if not all(
        supports(entry, backend) for entry in (model, channel, prior, algorithm)
    ):
        return
    instance = problem.instance(0.8, 8)
    data = instance.data(backend)
    before = [np.array(to_host(a)) for a in (data.inputs, data.labels)]
    estimate, info = estimate_after(problem, item, data, 2)
    assert namespace(estimate) is backend.xp
    if backend.device is not None:
        assert array_api_compat.device(estimate) == backend.device
    assert estimate.dtype == getattr(backend.xp, backend.dtype)
    assert tuple(estimate.shape) == instance.signal.shape
    assert np.isfinite(to_host(estimate)).all()
    assert np.isfinite(float(info.residual)) or info.residual == np.inf
    for report in (info.predicted_overlap, info.self_overlap, info.squared_step):
        assert report is None or tuple(report.shape) == (problem.components,)
    metrics = instance.metrics(estimate)
    assert all(np.isfinite(v) for values in metrics.values() for v in values)
    for array, kept in zip((data.inputs, data.labels), before):
        assert_array_equal(to_host(array), kept)
    plain, _ = estimate_after(problem, item, instance.data(get_backend()), 2)
    assert_allclose(unsigned(estimate), unsigned(plain), rtol=1e-5, atol=1e-7)


LINE, LAYER = sequence("linear", noise=0.3), sequence()
MATRIX = attention("linear", noise=0.3)
RUNS = [
    *(
        (name, {}, problem)
        for name in ("gamp", "adam", "spectral")
        for problem in (LINE, LAYER, MATRIX)
    ),
    *(
        ("sgd", {"momentum": 0.5, "weight_decay": 0.1, "spherical": True}, problem)
        for problem in (LAYER, MATRIX)
    ),
    ("spectral", {"kind": "asymmetric"}, LAYER),
    ("averaged", {"of": "adam", "students": 3}, MATRIX),
    *(("ridge", {}, problem) for problem in (LINE, MATRIX)),
    ("nuclear", {"regularisation": 0.3}, MATRIX),
    ("erm", {"penalty": 0.1}, LINE),
]


@pytest.mark.parametrize(("name", "parameters", "problem"), RUNS)
@pytest.mark.parametrize("how", ["streamed", "float32"])
def test_streams_and_single_precision_change_little(name, parameters, problem, how):
    item = build(REGISTRY.get("algorithm", name).item, "algorithm", parameters)
    alpha, D = (0.9, 60) if problem.model.rank == "low" else (0.2, 20)
    expected, _ = estimate_after(
        problem, item, problem.instance(alpha, D).data(get_backend()), 3
    )
    if how == "streamed":
        found, _ = estimate_after(
            problem,
            item,
            problem.instance(alpha, D).data(get_backend(), stream=True),
            3,
        )
        assert_allclose(unsigned(found), unsigned(expected), rtol=1e-6, atol=1e-9)
    else:
        data = problem.instance(alpha, D, dtype="float32").data(
            get_backend("numpy", "float32")
        )
        found, _ = estimate_after(problem, item, data, 3)
        assert found.dtype == np.float32
        assert_allclose(unsigned(found), unsigned(expected), atol=1e-2)
