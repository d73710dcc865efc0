"""How often an iteration of GAMP calls a device, and how often it waits for one: held, so that it does not grow unnoticed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from smimbench_channels.sequence.softmax.network import output
from smimbench_channels.sequence.softmax.two_layers import posterior as two_layers
from smimbench_channels.sequence.softmax.two_layers.kernel import host_sums

from smimbench.backend.arrays import read_together, send, to_host
from smimbench.backend.device import get_backend
from smimbench.backend.memory import LARGEST_CHUNK, chunk_bytes
from smimbench.backend.streaming import StreamedInputs, sample_chunks
from smimbench.problem.problem import Problem
from smimbench.registry.registry import Registry
from smimbench.run.readings import Readings
from tests.backend.launches import ARRAY, DEVICE, Counts

REGISTRY = Registry(third_party=False)
SEQUENCE = ({"name": "sequence-multi-index", "tokens": 2}, "gaussian")
ATTENTION = ({"name": "attention-indexed", "tokens": 2}, {"name": "wishart", "rho": 0.5})


def ready(parts, channel, alpha, dimension, steps=3):
    problem = Problem(parts[0], channel, parts[1], registry=REGISTRY)
    instance = problem.instance(alpha, dimension)
    data = instance.data(DEVICE)
    gamp = REGISTRY.get("algorithm", "gamp").item()
    state = gamp.init(problem, data, np.random.default_rng(0))
    for _ in range(steps):
        state, _ = gamp.step(problem, data, state)
    return problem, data, gamp, state


def iteration(counts, problem, data, gamp, state):
    readings = Readings(problem)
    counts.clear()
    _, info = gamp.step(problem, data, state)
    readings.read(info)
    return counts.launches.total(), counts.waits.total()


def one_kernel(counts, monkeypatch, period=None):
    """The quadrature of two layers as one launch, as it is on a GPU; what it computes, the host computes.

    With a ``period`` many samples are copies of so many, and are computed once.
    """

    def fused(u, omega, rule, reach, level):
        counts.launches["kernel"] += not counts._depth
        with counts.paused():
            n = u.shape[0]
            copies = n // period if period and n > period and n % period == 0 else 1
            host = [to_host(a)[: n // copies] for a in (u, omega, reach, level)]
            sums, error = host_sums(*host[:2], rule, *host[2:])
            return DEVICE.asarray(np.tile(sums, (1, copies))), DEVICE.asarray(np.tile(error, copies))

    monkeypatch.setattr(two_layers, "box_sums", fused)


@pytest.mark.parametrize(
    ("parts", "channel", "launches", "waits"),
    [
        (SEQUENCE, {"name": "softmax", "layers": 2}, 200, 6),
        (SEQUENCE, {"name": "softmax"}, 80, 2),
        (ATTENTION, {"name": "softmax"}, 120, 3),
        (ATTENTION, {"name": "hardmax"}, 240, 5),  # 4 on a GPU, which has special functions of its own
    ],
)
def test_launches_and_waits_of_an_iteration(monkeypatch, parts, channel, launches, waits):
    counts = Counts().watch(monkeypatch)
    one_kernel(counts, monkeypatch)
    found = iteration(counts, *ready(parts, channel, 1.2 if parts is SEQUENCE else 0.3, 30))
    assert 20 < found[0] <= launches, counts.launches
    assert 0 < found[1] <= waits, counts.waits


def test_two_layers_at_dimension_30_000(monkeypatch):
    """A whole iteration at alpha = 1.2, on all of its 36,000 samples, of which some lie where no small box reaches.

    Its 17 GB of inputs are stood in for by their shape: the calls of the two products do not depend on it, and are counted on
    few samples.
    """
    counts = Counts().watch(monkeypatch)
    n, dimension, period = 36_000, 30_000, 600
    one_kernel(counts, monkeypatch, period)
    problem, data, gamp, state = ready(SEQUENCE, {"name": "softmax", "layers": 2}, 1.2, 30)
    model = type(problem.model)
    counts.clear()
    g = problem.model.forward(data.inputs, state.estimate)
    problem.model.adjoint(data.inputs, g)
    products = counts.launches.total()
    assert counts.waits.total() == 0

    rng = np.random.default_rng(0)
    V = np.array([[0.3, 0.01], [0.01, 0.25]])
    omega = rng.standard_normal((period, 2, 2)) * 0.8
    z = omega + np.clip(rng.standard_normal(omega.shape), -2.5, 2.5) * 0.5
    z[:3] *= 8.0
    omega, y = (np.tile(a, (n // period, 1, 1)) for a in (omega, problem.channel.forward(z)))
    shape = np.broadcast_to(np.zeros(1), (n, 2, dimension))
    inputs = ARRAY._new(shape, device=DEVICE.device)
    signal, latents = (DEVICE.asarray(a) for a in (rng.standard_normal((2, dimension)), omega))
    assert sample_chunks(problem.model, inputs, 2) == [slice(0, n)]
    monkeypatch.setattr(model, "forward", lambda *_: latents)
    monkeypatch.setattr(model, "adjoint", lambda *_: signal)
    data = dataclasses.replace(data, inputs=inputs, labels=DEVICE.asarray(y), sample_ratio=n / dimension)
    state = gamp.init(problem, data, np.random.default_rng(0))
    state, _ = gamp.step(problem, data, state._replace(estimate=signal, V=V))
    launches, waits = iteration(counts, problem, data, gamp, state._replace(V=V))
    assert 120 < launches + products <= 200, counts.launches
    assert 0 < waits <= 6, counts.waits


@pytest.mark.parametrize(("stretch", "launches", "waits"), [(1.0, 60, 1), (1.5, 230, 3), (8.0, 230, 3)])
def test_few_labels_out_of_reach_cost_few_launches(monkeypatch, stretch, launches, waits):
    """In a larger box, or by sampling, which takes the host less time than a device takes for its ten thousand launches."""
    rng = np.random.default_rng(5)
    V, omega = np.array([[0.05, 0.01], [0.01, 0.04]]), rng.standard_normal((200, 2, 2))
    u = output(omega + np.sqrt(0.05) * rng.standard_normal((200, 2, 2)), 1.0)
    u[:3] *= stretch
    expected = two_layers.integrate(u, omega, V, 1.0, 1e-5)
    counts = Counts().watch(monkeypatch)
    one_kernel(counts, monkeypatch)
    there = DEVICE.asarray(u), DEVICE.asarray(omega)
    counts.clear()
    found = two_layers.integrate(*there, V, 1.0, 1e-5)
    assert counts.launches.total() <= launches, counts.launches
    assert counts.waits.total() <= waits, counts.waits
    np.testing.assert_allclose(to_host(found.shift), expected.shift, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("parts", "channel"), [(ATTENTION, {"name": "softmax"}), (SEQUENCE, {"name": "linear", "components": 2})]
)
def test_what_does_not_grow_with_the_samples_is_few(monkeypatch, parts, channel):
    """All but forward, posterior and adjoint."""
    counts = Counts().watch(monkeypatch)
    problem, data, gamp, state = ready(parts, channel, 0.7, 24)
    for owner, name in ((problem.model, "forward"), (problem.model, "adjoint"), (problem.channel, "posterior")):
        counts.leave_out(monkeypatch, type(owner), name)
    found = iteration(counts, problem, data, gamp, state)
    assert 0 < found[0] <= 60, counts.launches
    assert 0 < found[1] <= 3, counts.waits


def test_a_small_memory_makes_chunks_and_changes_nothing(monkeypatch):
    """Resident inputs of extensive rank: products by the piece, posteriors in one."""
    counts = Counts().watch(monkeypatch)
    problem, data, gamp, state = ready(ATTENTION, {"name": "softmax"}, 0.5, 48, steps=1)
    expected, _ = gamp.step(problem, data, state)
    one = iteration(counts, problem, data, gamp, state)
    monkeypatch.setattr("smimbench.backend.memory.SMALLEST_CHUNK", 1 << 16)
    counts.watch(monkeypatch, free=1 << 20)
    found, _ = gamp.step(problem, data, state)
    several = iteration(counts, problem, data, gamp, state)
    assert several[0] > one[0] + 20
    assert several[1] == one[1]
    np.testing.assert_allclose(to_host(found.estimate), to_host(expected.estimate), rtol=0, atol=1e-12)


def test_the_budget_follows_the_free_memory(monkeypatch):
    counts = Counts().watch(monkeypatch)
    inputs = DEVICE.asarray(np.zeros((1, 2, 3)))
    assert chunk_bytes(np.zeros(1)) is None
    assert chunk_bytes(inputs) == LARGEST_CHUNK
    for free, bound in ((1 << 26, 1 << 23), ((1 << 26) + 12345, 1 << 23), ((1 << 26) - 1, 1 << 22), (0, 1 << 20)):
        counts.watch(monkeypatch, free=free)
        assert chunk_bytes(inputs) == bound


@pytest.mark.parametrize("parts", [SEQUENCE, ATTENTION])
def test_streamed_inputs_are_cut_by_their_size_and_resident_ones_are_not(monkeypatch, parts):
    counts = Counts().watch(monkeypatch)
    model = Problem(parts[0], "softmax", parts[1], registry=REGISTRY).model
    host = np.zeros((4096, 2, 128))
    assert sample_chunks(model, DEVICE.asarray(host), 1) == [slice(0, 4096)]
    counts.watch(monkeypatch, free=host.nbytes)
    streamed = list(sample_chunks(model, StreamedInputs(host, DEVICE), 1))
    assert len(streamed) > 8
    assert all((s.stop - s.start) * host[0].nbytes <= host.nbytes // 8 for s in streamed)
    assert sample_chunks(model, host, 1) == model.chunks(4096, 128, 1)


def test_small_matrices_that_were_sent_are_read_without_waiting(monkeypatch):
    counts = Counts().watch(monkeypatch)
    matrix = np.array([[1.0, 0.25], [0.25, 2.0]])
    there = send(matrix, DEVICE.asarray(np.zeros(1)))
    counts.clear()
    np.testing.assert_array_equal(to_host(there), matrix)
    assert not counts.waits
    other = DEVICE.asarray(np.arange(3.0))
    yes = DEVICE.xp.all(other >= 0)
    found = read_together(there, 2.5, other, yes, np.ones(2))
    assert counts.waits.total() == 1
    np.testing.assert_array_equal(found[0], matrix)
    np.testing.assert_array_equal(found[2], np.arange(3.0))
    assert (found[1], bool(found[3]), found[3].dtype) == (2.5, True, np.dtype(bool))
    assert send(matrix, get_backend("numpy").asarray(np.zeros(1, dtype=np.float32)))[0, 1] == 0.25
