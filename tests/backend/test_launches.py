"""How often an iteration of GAMP calls a device, and how often it waits for one: held, so that it does not grow unnoticed."""

import numpy as np
import pytest
from smimbench_attention.channels.attention.hardmax import kernel
from smimbench_attention.channels.attention.hardmax.kernel import host_moments
from smimbench_attention.channels.sequence.softmax import two_layers
from smimbench_attention.channels.sequence.softmax.network import output
from smimbench_attention.channels.sequence.softmax.two_layers.kernel import host_sums

from smimbench.backend.arrays import to_host
from smimbench.backend.device import LARGEST_CHUNK, chunk_bytes
from smimbench.run.loop import READINGS, Readings
from tests.backend.launches import DEVICE, Counts
from tests.backend.steps import after
from tests.helpers import attention, sequence


def ready(problem, alpha, dimension, steps=3, algorithm="gamp"):
    data = problem.instance(alpha, dimension).data(DEVICE)
    return problem, data, *after(problem, data, steps, algorithm)[:2]


def iteration(counts, problem, data, item, state):
    """Launches and waits of a step and of reading what it reports; what is read are the numbers that it reported."""
    readings = Readings(problem)
    counts.clear()
    _, info = item.step(problem, data, state)
    residual = readings.read(info).residual
    found = counts.launches.total(), counts.waits.total()
    assert residual == pytest.approx(float(info.residual))
    for name in READINGS[:4] if item.name == "gamp" else ():
        np.testing.assert_array_equal(
            getattr(readings.latest, name), to_host(getattr(info, name))
        )
    return found


def one_kernel(counts, monkeypatch):
    """The quadratures of two layers and of hardmax as one launch, as they are on a GPU; what they compute, the host computes."""

    def fused(u, omega, rule, reach, level):
        if isinstance(u, np.ndarray):
            return host_sums(u, omega, rule, reach, level)
        counts.launches["kernel"] += not counts._depth
        with counts.paused():
            u, omega, reach, level = map(to_host, (u, omega, reach, level))
            return tuple(
                DEVICE.asarray(found)
                for found in host_sums(u, omega, rule, reach, level)
            )

    def fused_moments(*arguments):
        counts.launches["kernel"] += not counts._depth
        return host_moments(*arguments)

    monkeypatch.setattr(two_layers, "box_sums", fused)
    monkeypatch.setattr(kernel, "host_moments", fused_moments)


# GAMP computes with matrices between components on the host: it reads what the samples say, and the overlaps at the end; the
# Wishart denoiser reads its eigenvalues. Hardmax looks whether any sample lies in the tail of its normal distribution function,
# which array-api-strict lacks and takes from the host (CuPy has it, and waits once less). With three tokens it looks whether any
# label is unlikely; the host's kernel takes two arrays from the device, which a GPU's does not.
@pytest.mark.parametrize(
    ("problem", "algorithm", "launches", "waits"),
    [
        (sequence("softmax", layers=2), "gamp", 200, 6),
        (sequence("softmax"), "gamp", 80, 2),
        (sequence("linear", components=2, noise=0.2), "gamp", 80, 2),
        (attention("softmax"), "gamp", 120, 3),
        (attention("linear", noise=0.1), "gamp", 120, 3),
        (attention("hardmax"), "gamp", 240, 5),
        (attention("hardmax", tokens=3), "gamp", 120, 6),
        (sequence("softmax"), "adam", 80, 1),
        (attention("softmax"), "adam", 120, 1),
    ],
)
def test_launches_and_waits_of_an_iteration(
    monkeypatch, problem, algorithm, launches, waits
):
    counts = Counts().watch(monkeypatch)
    one_kernel(counts, monkeypatch)
    found = iteration(
        counts,
        *ready(
            problem, 1.2 if problem.components > 1 else 0.3, 30, algorithm=algorithm
        ),
    )
    assert 20 < found[0] <= launches, counts.launches
    assert 0 < found[1] <= waits, counts.waits


def test_the_budget_follows_the_free_memory(monkeypatch):
    counts = Counts().watch(monkeypatch)
    inputs = DEVICE.asarray(np.zeros((1, 2, 3)))
    assert chunk_bytes(np.zeros(1)) is None
    assert chunk_bytes(inputs) == LARGEST_CHUNK
    for free, bound in (
        (1 << 26, 1 << 23),
        ((1 << 26) + 12345, 1 << 23),
        ((1 << 26) - 1, 1 << 22),
        (0, 1 << 20),
    ):
        counts.watch(monkeypatch, free=free)
        assert chunk_bytes(inputs) == bound


@pytest.mark.parametrize(
    ("stretch", "launches", "waits"),
    [(1.0, 60, 1), (1.5, 80, 2), pytest.param(8.0, 80, 2, marks=pytest.mark.slow)],
)
def test_few_labels_out_of_reach_cost_few_launches(
    monkeypatch, stretch, launches, waits
):
    """In a larger box, or by sampling: the host takes less time for them than a device for its launches."""
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
    "problem", [attention("softmax"), sequence("linear", components=2)]
)
def test_what_does_not_grow_with_the_samples_is_few(monkeypatch, problem):
    """All but forward, posterior and adjoint."""
    counts = Counts().watch(monkeypatch)
    problem, data, gamp, state = ready(problem, 0.7, 24)
    for owner, name in (
        (problem.model, "forward"),
        (problem.model, "adjoint"),
        (getattr(problem.channel, "channel", problem.channel), "posterior"),
    ):
        counts.leave_out(monkeypatch, type(owner), name)
    found = iteration(counts, problem, data, gamp, state)
    assert 0 < found[0] <= 60, counts.launches
    assert 0 < found[1] <= 3, counts.waits
