"""Nothing asks the device for a number in the middle of an iteration: array-api-strict counts for a GPU."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
from array_api_strict import _array_object

from smimbench.backend import arrays
from smimbench.backend.device import Backend
from smimbench.interfaces import Info
from smimbench.problem.problem import Problem
from smimbench.registry.registry import Registry
from smimbench.run.readings import READINGS, Readings

REGISTRY = Registry(third_party=False)
DEVICE = Backend("array_api_strict", array_api_strict, "float64", array_api_strict.Device("device1"))

SEQUENCE = ({"name": "sequence-multi-index", "tokens": 2}, "gaussian")
ATTENTION = ({"name": "attention-indexed", "tokens": 2}, {"name": "wishart", "rho": 0.5})

# Transfers of one step. GAMP computes with matrices between components on the host: it reads what the samples say, and the
# overlaps at the end; the Wishart denoiser reads its eigenvalues. Hardmax looks whether any sample lies in the tail of its
# normal distribution function, which array-api-strict lacks and takes from the host (CuPy has it).
STEPS = [
    (SEQUENCE, {"name": "softmax"}, "gamp", 2),
    (SEQUENCE, {"name": "linear", "components": 2, "noise": 0.2}, "gamp", 2),
    (ATTENTION, {"name": "softmax"}, "gamp", 3),
    (ATTENTION, {"name": "linear", "noise": 0.1}, "gamp", 3),
    (ATTENTION, {"name": "hardmax"}, "gamp", 5),
    (SEQUENCE, {"name": "softmax"}, "adam", 0),
    (ATTENTION, {"name": "softmax"}, "adam", 0),
]


@pytest.fixture
def transfers(monkeypatch) -> list[str]:
    """Names of what made the host wait for the device, in order."""
    seen: list[str] = []

    def watch(owner, name):
        plain = getattr(owner, name)

        def watched(*args, **kwargs):
            seen.append(name)
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    for name in ("__bool__", "__float__", "__int__", "__index__", "__dlpack__", "to_device"):
        watch(_array_object.Array, name)
    # Their results have a size that depends on the data.
    for name in ("nonzero", "unique_values", "unique_all"):
        watch(array_api_strict, name)
    return seen


def begin(parts, channel, algorithm):
    problem = Problem(parts[0], channel, parts[1], registry=REGISTRY)
    data = problem.instance(0.7, 12).data(DEVICE)
    item = REGISTRY.get("algorithm", algorithm).item()
    state = item.init(problem, data, np.random.default_rng(0))
    state, _ = item.step(problem, data, state)
    return problem, data, item, state


def test_the_counter_counts(transfers):
    number = DEVICE.asarray(np.array([1.5, 2.0]))
    float(number[0])
    assert transfers == ["__float__"]
    arrays.to_host(number)
    assert len(transfers) > 1


@pytest.mark.parametrize(("parts", "channel", "algorithm", "allowed"), STEPS)
def test_a_step_asks_for_next_to_nothing(transfers, parts, channel, algorithm, allowed):
    problem, data, item, state = begin(parts, channel, algorithm)
    transfers.clear()
    item.step(problem, data, state)
    # One transfer to the host may be tried in two ways.
    waits = [name for name in transfers if name != "to_device"]
    assert len(waits) <= allowed, transfers


@pytest.mark.parametrize(("parts", "channel", "algorithm", "waits"), [(*STEPS[0][:3], 0), (*STEPS[5][:3], 1)])
def test_what_a_step_reports_is_read_at_once(transfers, parts, channel, algorithm, waits):
    problem, data, item, state = begin(parts, channel, algorithm)
    _, info = item.step(problem, data, state)
    watch = Readings(problem)
    transfers.clear()
    residual = watch.read(info).residual
    assert len([name for name in transfers if name != "to_device"]) == waits, transfers
    assert residual == pytest.approx(float(info.residual))
    for name in READINGS[:4] if algorithm == "gamp" else ():
        np.testing.assert_array_equal(getattr(watch.latest, name), arrays.to_host(getattr(info, name)))


@pytest.mark.parametrize("mixed", [True, False])
def test_numbers_of_host_and_device_may_be_mixed(mixed):
    """An algorithm may report a host float beside device arrays, or an integration error on the device."""
    problem = Problem(*SEQUENCE[:1], "linear", SEQUENCE[1], registry=REGISTRY)
    there = DEVICE.asarray(np.array([0.25]))
    info = Info(
        residual=0.5 if mixed else DEVICE.asarray(np.array(0.5)),
        predicted_overlap=np.array([0.125]) if mixed else there,
        self_overlap=there,
        integration_error=DEVICE.asarray(np.array(2e-3)),
    )
    watch = Readings(problem)
    assert watch.read(info).residual == 0.5
    assert watch.latest.predicted_overlap == (0.125 if mixed else 0.25)
    assert watch.latest.self_overlap == 0.25
    assert watch.warnings() == ["posterior integrals were accurate to 2e-03 of their width only"]


def test_accurate_integrals_need_no_warning():
    problem = Problem(*SEQUENCE[:1], "linear", SEQUENCE[1], registry=REGISTRY)
    watch = Readings(problem)
    watch.read(Info(residual=1.0, integration_error=1e-6))
    assert watch.warnings() == []
    for error in (2e-3, 5e-3, 1e-6):
        watch.read(Info(residual=1.0, integration_error=error))
    assert watch.warnings() == ["posterior integrals were accurate to 5e-03 of their width only"]
    watch.read(Info(residual=1.0, integration_error=float("nan")))
    assert "nan" in watch.warnings()[0]
