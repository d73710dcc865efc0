"""What all channels have in common: each channel, at several overlaps, against identities that hold for every one."""

import math
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.channels.attention.hardmax import AttentionHardmax
from smimbench_attention.channels.attention.softmax import AttentionSoftmax
from smimbench_attention.channels.linear import AttentionLinear, SequenceLinear
from smimbench_attention.channels.sequence import hardmax
from smimbench_attention.channels.sequence.hardmax import SequenceHardmax
from smimbench_attention.channels.sequence.hardmax import information as information_fit
from smimbench_attention.channels.sequence.perceptron import Probit, Sign
from smimbench_attention.channels.sequence.softmax import SequenceSoftmax

from smimbench.backend.arrays import to_host
from smimbench.interfaces import ParameterError
from tests.conftest import assert_placed

LINEAR = AttentionLinear(3, noise=0.3, noise_convention="plain")
TWO_LAYERS = AttentionSoftmax(2, layers=2)
SMOOTH = [
    LINEAR,
    AttentionSoftmax(2, beta=1.3),
    AttentionSoftmax(3, beta=3.0),
    TWO_LAYERS,
    AttentionSoftmax(2, layers=2, beta=1.7, skip=0.4),
]
HARDMAX = [
    AttentionHardmax(tokens, samples=None if tokens == 2 else 1 << 11)
    for tokens in (2, 3, 4, 5)
]
GIBBS = AttentionHardmax(6, samples=1 << 8)
ONE_LAYER = SequenceSoftmax(3)
DEEP = SequenceSoftmax(2, layers=2)
SIGNS = SequenceHardmax(3)
SAMPLED = [
    SequenceSoftmax(tokens, layers=layers, skip=0.8, points=256)
    for tokens, layers in ((2, 3), (3, 2))
]
VECTORS = [
    SequenceLinear(2, components=2, noise=0.3),
    Sign(2),
    Probit(2, noise=0.5),
    ONE_LAYER,
    SIGNS,
]
POLYNOMIAL = cache(information_fit.scaled_information.__wrapped__)
"""Information of SIGNS, fitted through few points: it takes a second, not sixteen, and is read as the one of many points is."""
DIFFERENCES = (
    (1, 0.75),
    (2, -0.15),
    (3, 1 / 60),
)  # of sixth order, over twice the step


def shape_of(channel):
    return getattr(channel, "components", 1), getattr(channel, "sites", channel.tokens)


def root(matrix):
    values, vectors = np.linalg.eigh(np.asarray(matrix, dtype=float))
    return vectors * np.sqrt(np.clip(values, 0, None))


def draw(rng, channel, n, Q, V):
    """Labels, omega and z from the law with overlap Q and error V."""
    omega, rest = (
        root(matrix) @ rng.standard_normal((n, *shape_of(channel))) for matrix in (Q, V)
    )
    return channel.forward(omega + rest, rng=rng), omega, omega + rest


def matrices(channel, q, v):
    """Q and V: the numbers, or these matrices, for as many layers as the channel has."""
    P = shape_of(channel)[0]
    return tuple(np.asarray(a) if np.ndim(a) else a * np.eye(P) for a in (q, v))


def information(channel, Q, V):
    few = {"labels": 1 << 11} if getattr(channel, "layers", 1) > 1 else {}
    return channel.information(Q, V, **few)


@pytest.mark.parametrize(
    ("channel", "v"),
    [
        *((channel, 0.4) for channel in (*SMOOTH, *HARDMAX[:3], *VECTORS, DEEP)),
        pytest.param(HARDMAX[3], 0.4, marks=pytest.mark.slow),
        *((HARDMAX[0], v) for v in (1.0, 0.02)),
        (HARDMAX[1], 1e-3),
        (TWO_LAYERS, [[0.1, 0.1], [0.1, 0.3]]),
        (TWO_LAYERS, [[0.01, 0.0], [0.0, 0.02]]),
    ],
    ids=str,
)
def test_mean_is_the_gradient_of_the_partition(channel, v, rng):
    Q, V = matrices(channel, 1.0, v)
    y, omega, _ = draw(rng, channel, 16, Q, V)
    if channel is HARDMAX[0]:  # also far outside the likely region
        y = rng.integers(0, 2, y.shape)
    g = np.linalg.inv(V) @ (channel.posterior(y, omega, V).mean - omega)
    closed = isinstance(channel, AttentionLinear) or (
        shape_of(channel)[0] == 1 and channel.tokens == 2
    )
    for p, c in np.ndindex(*shape_of(channel)):
        width = math.sqrt(V[p, p])
        unit = np.zeros(shape_of(channel))
        unit[p, c] = step = (0.02 if closed else 0.2) * width
        both = [
            [channel.log_partition(y, omega + sign * k * unit, V) for sign in (1, -1)]
            for k, _ in DIFFERENCES
        ]
        slope = (
            sum(w * (up - down) for (_, w), (up, down) in zip(DIFFERENCES, both)) / step
        )
        gap = (slope - g[:, p, c]) * width
        # Integrals over the first layer, or over the maxima of the rows, are good to 1e-5 for usual labels.
        assert np.sqrt(np.mean(gap**2)) < (2e-7 if closed else 5e-3)
        assert np.median(np.abs(gap)) < (1e-8 if closed else 5e-4)


COUPLED = [[0.9, 0.4], [0.4, 0.9]]
PRIOR_MEAN = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("channel", "q", "v", "n"),
    [
        *(
            (channel, q, v, 20_000)
            for channel in SMOOTH[:3]
            for q, v in ((0.8, 0.7), (1.4, 0.05))
        ),
        *(
            (HARDMAX[0], q, v, 60_000)
            for q, v in ((0.0, 1.0), (0.8, 0.7), (1.45, 0.05))
        ),
        *((HARDMAX[1], q, v, 8000) for q, v in ((0.4, 1.0), (1.2, 0.15))),
        *((HARDMAX[2], q, v, 4000) for q, v in ((0.4, 1.0), (1.2, 0.15))),
        *((GIBBS, q, v, 400) for q, v in ((0.4, 1.0), (1.2, 0.02))),
        (AttentionHardmax(16, samples=64), 0.7, 0.6, 12),
        *(
            (AttentionSoftmax(2, layers=2, skip=skip), q, v, 1200)
            for skip, q, v in (
                (1.0, PRIOR_MEAN, 1.0),
                (1.0, [[0.5, 0.5], [0.5, 1.4]], [[1.0, 0.0], [0.0, 1e-3]]),
                (1.0, [[1.4, 0.5], [0.5, 1.3]], [[0.1, 0.0], [0.0, 0.2]]),
                (1.0, COUPLED, [[0.6, 0.25], [0.25, 0.5]]),
                (0.0, PRIOR_MEAN, 1.0),
                (0.9, PRIOR_MEAN, 1.0),
            )
        ),
        *(
            pytest.param(
                AttentionSoftmax(2, layers=2, skip=skip),
                q,
                v,
                1200,
                marks=pytest.mark.slow,
            )
            for skip, q, v in (
                (0.2, [[0.5, 0.5], [0.5, 1.4]], [[0.9, 0.0], [0.0, 0.05]]),
                (0.6, COUPLED, [[0.1, 0.0], [0.0, 1e-3]]),
            )
        ),
        *(
            (channel, q, v, 10_000)
            for channel in VECTORS
            for q, v in ((0.3, 0.7), (0.9, 0.1))
        ),
        *(
            pytest.param(
                SequenceSoftmax(tokens, layers=len(V), skip=skip, points=2048),
                np.eye(len(V)) - V,
                V,
                n,
                marks=pytest.mark.slow if tokens + len(V) > 4 else (),
            )
            for tokens, skip, V, n in (
                (2, 1.0, np.diag([0.8, 0.05]), 6000),
                (2, 0.5, np.array([[0.4, 0.24], [0.24, 0.4]]), 6000),
                (2, 0.7, np.array([[0.5, -0.1], [-0.1, 0.3]]), 6000),
                (2, 1.0, np.diag([0.5, 0.3, 0.05]), 400),
                (2, 1.0, np.full((3, 3), 0.12) + 0.18 * np.eye(3), 400),
                (2, 1.0, np.diag([0.9, 0.5, 0.3, 0.2]), 400),
                (3, 1.0, np.array([[0.6, 0.05], [0.05, 0.05]]), 400),
            )
        ),
    ],
    ids=str,
)
def test_bayes(channel, q, v, n, rng):
    """Errors of the posterior mean are uncorrelated with it and as large as it says, and g is as large as the information."""
    Q, V = matrices(channel, q, v)
    P, C = shape_of(channel)
    y, omega, z = draw(rng, channel, n, Q, V)
    found = channel.posterior(y, omega, V, rng=rng)
    unit = np.sqrt(np.diagonal(V))[:, None]
    rest, moved, true = (
        (a - b) / unit for a, b in ((z, found.mean), (found.mean, omega), (z, omega))
    )
    known = channel is GIBBS or (
        found.error < 1e-3
        and channel is not SIGNS
        and (np.ndim(v) or getattr(channel, "skip", 1) == 1)
    )
    told = information(channel, Q, V) if known else None
    white = np.linalg.inv(V) * unit.T
    g = white @ moved
    slope = white @ true
    noise = (
        found.error**2
    )  # of a sampled mean: it makes products negative by its own square

    def agree(sample, expected, error=0.0):
        assert (
            abs(sample.mean() - expected)
            < 4.5 * math.hypot(sample.std() / math.sqrt(n), error) + 1e-12
        )

    for i, j in np.ndindex(P, P):
        agree(np.sum(moved[:, i] * rest[:, j], axis=1) + C * noise, 0.0)
        claimed = found.covariance[i, j] / (unit[i, 0] * unit[j, 0])
        agree(np.mean(rest[:, i] * rest[:, j], axis=1), claimed, noise)
        if told is not None:
            error = np.broadcast_to(told.error, (P, P))[i, j]
            agree(np.sum(g[:, i] * slope[:, j], axis=1), told.value[i, j], error)
            if channel is not GIBBS:
                agree(np.sum(g[:, i] * g[:, j], axis=1), told.value[i, j], error)


@pytest.mark.parametrize(
    ("channel", "v"),
    [
        # two layers: by cells, and mostly by the Gauss-Hermite rule
        *(
            (channel, v)
            for channel in (SMOOTH[2], TWO_LAYERS, HARDMAX[0], ONE_LAYER, DEEP)
            for v in (0.3, 0.05)
        ),
        *((channel, 0.3) for channel in (HARDMAX[1], SIGNS)),
        (GIBBS, 0.05),
        *((channel, 0.3) for channel in (LINEAR, VECTORS[0])),
        *(pytest.param(channel, 0.3, marks=pytest.mark.slow) for channel in SAMPLED),
    ],
    ids=str,
)
def test_every_namespace_and_float32_give_the_same(
    channel, v, backend, rng, monkeypatch
):
    monkeypatch.setattr(information_fit, "NORMAL_POINTS", 8)
    monkeypatch.setattr(information_fit, "PLANE_POINTS", 8)
    monkeypatch.setattr(hardmax, "scaled_information", POLYNOMIAL)
    P, C = shape_of(channel)
    Q, V = matrices(channel, 1.0, v)
    y, omega, _ = draw(rng, channel, 20, Q, V)
    omega[0] = -omega[0]  # an unlikely label too
    full = channel is not GIBBS  # a sampler's second moments are noise
    expected = channel.posterior(y, omega, V, second_moment=full)
    arrays = [backend.asarray(a) for a in (y, omega, V)]
    found = channel.posterior(*arrays, second_moment=full)
    shapes = (20, P, C), (P, P), (20, P, C, P, C)
    for one, other, shape in zip(found[: 2 + full], expected[: 2 + full], shapes):
        assert_placed(one, backend, shape)
        assert_allclose(to_host(one), other, atol=1e-8)
    assert float(found.error) == pytest.approx(float(expected.error), rel=1e-6)
    if full:
        log_z = channel.log_partition(*arrays)
        assert_placed(log_z, backend, (20,))
        assert_allclose(to_host(log_z), channel.log_partition(y, omega, V), atol=1e-8)
    batch = [np.stack([a, scale * a]) for a, scale in ((Q, 0.5), (V, 0.2))]
    several = information(channel, *(backend.asarray(a) for a in batch))
    for part in (
        several.value,
        np.zeros((2, P, P)) if isinstance(several.error, float) else several.error,
    ):
        assert tuple(part.shape) == (2, P, P)
    assert_placed(several.value, backend, (2, P, P))
    alone = information(channel, batch[0][1], batch[1][1]).value
    assert_allclose(to_host(several.value)[1], alone, rtol=1e-12)
    if backend.name != "numpy":
        return
    short = [
        a.astype(np.float32) if a.dtype == np.float64 else a for a in (y, omega, V)
    ]
    found = channel.posterior(*short, second_moment=full)
    exact = channel.posterior(
        *(a.astype(float) if a.dtype == np.float32 else a for a in short),
        second_moment=full,
    )
    for one, other in zip(found[: 2 + full], exact[: 2 + full]):
        assert one.dtype == np.float32
        assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize(
    "channel",
    [AttentionSoftmax(2, beta=2.5), HARDMAX[0], HARDMAX[1], AttentionHardmax(6)],
    ids=str,
)
@pytest.mark.parametrize(("q", "v"), [(0.6, 0.8), (1.2, 0.2)])
def test_errors_of_prediction_agree_with_simulation(channel, q, v, rng):
    Q, V = matrices(channel, q, v)
    y, omega, _ = draw(rng, channel, 60_000, Q, V)
    other = channel.forward(omega + math.sqrt(v) * rng.standard_normal(omega.shape))
    truth, other, guess = (
        channel.observable(a) for a in (y, other, channel.forward(omega))
    )
    # E |y - E[y]|^2 = E |y - y'|^2 / 2 for two posterior draws
    samples = {
        "bayes": (truth - other) ** 2 / 2,
        "plugin": (truth - guess) ** 2,
        "constant": (truth - truth.mean(0)) ** 2,
    }
    found = channel.generalization_error(Q, V)
    for key, sample in samples.items():
        sums = sample.sum(axis=(1, 2))
        assert abs(sums.mean() - float(found[key].value)) < 4 * sums.std() / math.sqrt(
            len(sums)
        ), key
        assert float(found[key].error) < 1e-7


def test_what_cannot_be_integrated_is_not_offered():
    for channel, name, offered in (
        (AttentionSoftmax(2), "generalization_error", True),
        (AttentionSoftmax(3), "generalization_error", False),
        (AttentionHardmax(5), "log_partition", True),
        (AttentionHardmax(6), "log_partition", False),
    ):
        assert (getattr(channel, name) is not None) == offered


@pytest.mark.parametrize(
    ("make", "parameters", "message"),
    [
        *(
            (AttentionHardmax, {"tokens": t}, "^tokens: must be ")
            for t in (1, 0, -3, 17, 2.0, True, "2", None)
        ),
        *(
            (AttentionHardmax, {"tokens": 3, "sweeps": s}, "^sweeps: ")
            for s in (1, 8.0)
        ),
        (AttentionHardmax, {"tokens": 3, "samples": 3}, "^samples: "),
        (AttentionHardmax, {"tokens": 2, "samples": 4096}, "^samples: "),
        (AttentionSoftmax, {"tokens": 1}, "^tokens: must be an integer >= 2, got 1$"),
        (AttentionSoftmax, {"tokens": True}, "^tokens: must be an integer >= 2"),
        (
            AttentionSoftmax,
            {"tokens": 2, "layers": 0},
            "^layers: must be an integer >= 1",
        ),
        (AttentionSoftmax, {"tokens": 2, "layers": 3}, "^layers: must be at most 2"),
        (
            AttentionSoftmax,
            {"tokens": 3, "layers": 2},
            "^layers: must be 1 for more than two tokens",
        ),
        (
            AttentionSoftmax,
            {"tokens": 2, "beta": 0},
            "^beta: must be a finite number > 0, got 0$",
        ),
        *(
            (AttentionSoftmax, {"tokens": 2, "beta": b}, "^beta: ")
            for b in (-1.0, math.nan, "1")
        ),
        (AttentionSoftmax, {"tokens": 2, "layers": 2, "beta": 9.0}, "^beta: "),
        (
            AttentionSoftmax,
            {"tokens": 2, "skip": 0.5},
            "^skip: has no effect with layers = 1",
        ),
        (
            AttentionSoftmax,
            {"tokens": 2, "skip": -1.0},
            "^skip: must be a finite number >= 0",
        ),
        *(
            (
                AttentionLinear,
                {"tokens": 2, "noise": n},
                "^noise: must be a finite number >= 0, got",
            )
            for n in (-0.1, math.inf)
        ),
        (
            AttentionLinear,
            {"tokens": 2, "noise_convention": "x"},
            "^noise_convention: must be 'scaled' or 'plain'",
        ),
        *(
            (linear, {"tokens": 0}, "^tokens: must be an integer >= 1, got 0")
            for linear in (AttentionLinear, SequenceLinear)
        ),
        *(
            (
                SequenceLinear,
                {"tokens": 2, "components": c},
                "^components: must be an integer >= 1",
            )
            for c in (0, 1.0)
        ),
        *(
            (SequenceLinear, {"tokens": 2, "noise": n}, "^noise: ")
            for n in (math.nan, True)
        ),
        *((SequenceHardmax, {"tokens": t}, "^tokens: ") for t in (1, 4, 2.5, True)),
        *(
            (SequenceSoftmax, {"tokens": t}, "^tokens: must be .*got")
            for t in (1, 2.5, "two")
        ),
        *(
            (SequenceSoftmax, {"tokens": t, "layers": n}, "^layers: must be .*got")
            for t, n in ((2, 0), (2, 5), (3, 3), (4, 2))
        ),
        *(
            (
                SequenceSoftmax,
                {"tokens": 2, "layers": 2, "skip": s},
                "^skip: must be .*got",
            )
            for s in (-0.1, math.nan, "1")
        ),
        *(
            (SequenceSoftmax, {"tokens": 2, "accuracy": a}, "^accuracy: must be .*got")
            for a in (0.0, 1.0)
        ),
        *(
            (
                SequenceSoftmax,
                {"tokens": 2, "layers": 3, "points": n},
                "^points: must be .*got",
            )
            for n in (10, 1e3)
        ),
    ],
)
def test_refuses_bad_parameters(make, parameters, message):
    with pytest.raises(ParameterError, match=message):
        make(**parameters)
