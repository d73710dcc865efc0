"""Posteriors of two layers and more: quadrature and importance sampling against plain sums, each other, identities and limits."""

import decimal

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.channels.sequence.softmax import (
    SequenceSoftmax,
    deep,
    last_layer,
    two_layers,
)
from smimbench_attention.channels.sequence.softmax.deep import output_gap
from smimbench_attention.channels.sequence.softmax.last_layer import tables

from smimbench.backend.arrays import to_host
from smimbench.interfaces import ParameterError
from tests.channels.sequence.deep_attention import (
    brute_force,
    covariance,
    draw,
    grid,
    log_grid,
    outputs,
)

SIZES = [
    (2, 2),
    (3, 2),
    (4, 2),
    (2, 3),
]  # layers and tokens; the first is integrated exactly, the others are sampled
EXACT = SIZES[0]


def relative(values, V):
    """Root mean square of (n, L, M), each layer in units of its ``sqrt(V)``."""
    return np.sqrt(np.mean(values**2 / np.diag(V)[:, None]))


@pytest.mark.parametrize(
    ("skip", "variances", "correlation"),
    [
        (1.0, (1.0, 1.0), 0.0),
        (1.0, (1.0, 0.05), 0.0),
        (1.0, (0.9, 0.3), 0.5),
        (4.0, (0.5, 0.02), -0.6),
        (0.3, (0.2, 0.01), 0.3),
        (0.0, (1.0, 0.3), 0.0),
        (0.0, (0.3, 0.2), -0.4),
        (2.0, (1e-3, 1e-3), 0.5),
        (1.0, (1e-4, 1e-2), 0.2),
    ],
)
def test_quadrature_against_brute_force(rng, skip, variances, correlation):
    V = covariance(variances, correlation)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=skip, accuracy=1e-6)
    omega, z = draw(rng, 3, V)
    y = channel.forward(z)
    result = channel.posterior(y, omega, V, second_moment=True)
    log_partition = channel.log_partition(y, omega, V)
    scale = np.repeat(np.sqrt(variances), 2)
    spread = 0.0
    for n, u in enumerate(outputs(z, skip)):
        points = (
            grid(omega[n], V, 300, 7.0) if skip else log_grid(omega[n], V, 250, 7.0)
        )
        expected, mean, second = brute_force(u, omega[n], V, skip, points)
        assert log_partition[n] == pytest.approx(expected, abs=2e-5)
        assert_allclose((result.mean[n] - mean).ravel() / scale, 0.0, atol=2e-5)
        difference = (result.second_moment[n].reshape(4, 4) - second) / np.outer(
            scale, scale
        )
        assert_allclose(
            difference, 0.0, atol=2e-5 * (1 + np.abs(mean.ravel() / scale).max() ** 2)
        )
        centred = (second - np.outer(mean, mean)).reshape(2, 2, 2, 2)
        spread = spread + np.einsum("ambm->ab", centred) / 6
    assert_allclose(
        (result.covariance - spread) / np.sqrt(np.outer(variances, variances)),
        0.0,
        atol=2e-5,
    )
    assert result.error < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "tokens", "skip", "variances", "correlation", "size"),
    [
        (3, 2, 1.0, (0.4, 0.3, 0.3), 0.3, 20),
        (3, 2, 2.0, (1.0, 0.5, 0.5), 0.0, 24),
        (2, 3, 1.0, (0.5, 0.4), 0.4, 40),
        (2, 3, 0.5, (1.0, 0.6), 0.0, 48),
    ],
)
def test_sampling_against_brute_force(
    rng, layers, tokens, skip, variances, correlation, size
):
    V = covariance(variances, correlation)
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=skip, points=1 << 15)
    omega, z = draw(rng, 2, V, tokens)
    y = channel.forward(z)
    result = channel.posterior(y, omega, V)
    log_partition = channel.log_partition(y, omega, V)
    assert result.error < 0.01
    for n, u in enumerate(outputs(z, skip)):
        expected, mean, _ = brute_force(
            u, omega[n], V, skip, grid(omega[n], V, size, 4.7)
        )
        assert log_partition[n] == pytest.approx(expected, abs=0.02)
        assert relative(result.mean[n] - mean, V) < 5.0 * result.error + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("skip", [0.3, 1.0])
def test_sampling_agrees_with_quadrature(skip):
    # the same integral by two methods, over the whole range of V
    rng = np.random.default_rng(4)
    for variances, correlation in (
        ((1.0, 1.0), 0.0),
        ((1.0, 5e-3), 0.0),
        ((0.3, 0.05), 0.6),
        ((1e-3, 0.1), -0.4),
        ((1e-4, 1e-6), 0.3),
        ((1e-6, 1e-8), 0.0),
    ):
        V = covariance(variances, correlation)
        omega, z = draw(rng, 40, V)
        u = outputs(z, skip)
        exact = two_layers.integrate(u, omega, V, skip, 1e-8, True)
        (found,) = deep.integrate(u, omega, V, skip, 1e-5, 4096, True)
        error = np.sqrt(
            np.mean((found.shift - exact.shift) ** 2 / np.diag(V)[:, None], axis=(1, 2))
        )
        assert np.sqrt(np.mean(error**2)) < 2.0 * np.sqrt(np.mean(found.error**2))
        assert np.max(error / found.error) < 8.0
        assert np.sqrt(np.mean(found.error**2)) < 0.04
        assert np.median(np.abs(found.log_partition - exact.log_partition)) < 0.01
        whole = np.repeat(np.sqrt(variances), 2)
        assert (
            np.sqrt(
                np.mean(((found.second - exact.second) / np.outer(whole, whole)) ** 2)
            )
            < 0.1
        )


@pytest.mark.slow
@pytest.mark.parametrize("skip", [0.0, 0.03, 1.0])
def test_nearly_singular_attention_agrees_with_tables(skip):
    """Where only the last of three layers is known its posterior mean is a table's bilinear form, however small the skip."""
    n = 60
    q = np.array([0.0, 0.0, 0.97])
    accuracy = tables.ACCURACY
    case = last_layer.case_at(np.diag(q), np.diag(1.0 - q), skip, accuracy)
    labels = last_layer.LayerLabels(
        *(array[:n] for array in last_layer.draw_labels(case, 0))
    )
    count = tables.rounded_node_count(
        skip, 3, 1.0 - q[-1], tables.relative_node_spacing(False, False), accuracy
    )
    made = tables.make_tables(
        skip, (1.0, 1.0), None, count, tables.farthest_node(skip, 2, accuracy), 2**15, 0
    )
    expected = last_layer.posterior_of_labels(case, made, labels)
    omega = labels.omega
    scale = (1.0 + skip) ** 2
    (found,) = deep.integrate(
        scale * labels.ut,
        omega,
        np.diag(1.0 - q),
        skip,
        1e-5,
        2048,
        u_gap=scale * labels.gap,
    )
    off = np.sqrt(((found.shift[:, -1] - expected.shift) ** 2).mean(1) / (1.0 - q[-1]))
    assert np.sqrt((off**2).mean()) < 0.12
    assert np.sqrt(((off / found.error) ** 2).mean()) < 1.5
    assert (off < 6 * found.error).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "v", "skip"),
    [(EXACT, v, skip) for v in (1e-6, 1e-8) for skip in (0.0, 1.0)]
    + [(size, 1e-8, 1.0) for size in SIZES[1:]],
)
def test_small_errors_are_gaussian(rng, size, v, skip):
    # V -> 0: shift = V J^T (J V J^T)^{-1} (u(z) - u(omega)), up to terms of order sqrt(V)
    (layers, tokens), n = size, 400 if size == EXACT else 80
    V = v * covariance([1.0, 0.1, 0.3, 0.02][:layers], 0.2)
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=skip)
    omega, z = draw(rng, n, V, tokens)
    result = channel.posterior(channel.forward(z), omega, V)
    jacobian = np.empty((n, tokens, layers * tokens))
    for k, shift in enumerate(1e-6 * np.eye(layers * tokens)):
        shift = shift.reshape(layers, tokens)
        jacobian[:, :, k] = (
            outputs(omega + shift, skip) - outputs(omega - shift, skip)
        ) / 2e-6
    whole = np.kron(V, np.eye(tokens))
    spread = np.einsum("nik,kl,njl->nij", jacobian, whole, jacobian)
    residual = np.linalg.solve(
        spread, (outputs(z, skip) - outputs(omega, skip))[..., None]
    )
    shift = np.einsum("kl,nil,ni->nk", whole, jacobian, residual[..., 0]).reshape(
        omega.shape
    )
    error = np.abs(result.mean - omega - shift) / np.sqrt(np.diag(V))[:, None]
    # a few samples are strongly curved (nearly equal tokens), so compare a robust measure
    assert np.median(error) < 3.0 * np.sqrt(v) + (
        0 if size == EXACT else 2.0 * result.error + 1e-3
    )
    assert result.error < 0.03
    if size == EXACT:
        assert np.quantile(error, 0.9) < 60.0 * np.sqrt(v)


@pytest.mark.parametrize("skip", [0.0, 0.2, 1.0])
def test_reported_error_of_quadrature(skip):
    rng = np.random.default_rng(3)
    for variances in ((1.0, 0.3), (1.0, 4e-3), (1.0, 1e-5), (0.1, 1e-3), (1e-4, 1e-6)):
        V = np.diag(variances)
        omega, z = draw(rng, 40, V)
        y = SequenceSoftmax(tokens=2, layers=2, skip=skip).forward(z)
        exact = (
            SequenceSoftmax(tokens=2, layers=2, skip=skip, accuracy=1e-10)
            .posterior(y, omega, V)
            .mean
        )
        for accuracy in (1e-3, 1e-5, 1e-7):
            result = SequenceSoftmax(
                tokens=2, layers=2, skip=skip, accuracy=accuracy
            ).posterior(y, omega, V)
            assert relative(result.mean - exact, V) < min(
                3.0 * result.error, 5.0 * accuracy
            )
            assert result.error < 10.0 * accuracy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "distance"), [(2, 8.0), (2, 100.0), (2, 3000.0), (3, 30.0)]
)
def test_labels_far_from_the_expected(rng, layers, distance):
    # V claims far more than omega knows; no sample may be lost or turned into NaN
    v = 1e-3
    V = v * covariance([1.0, 0.5, 0.5][:layers], 0.3)
    channel = SequenceSoftmax(tokens=2, layers=layers, skip=1.0)
    z = rng.standard_normal((6, layers, 2))
    omega = z + distance * np.sqrt(v) * rng.choice([-0.5, 0.5], size=z.shape)
    y = channel.forward(z)
    result = channel.posterior(y, omega, V)
    assert np.all(np.isfinite(result.mean))
    assert np.all(np.isfinite(channel.log_partition(y, omega, V)))
    if distance == 8.0:
        assert result.error < 1e-4
        for n, u in enumerate(outputs(z[:3], 1.0)):
            _, mean, _ = brute_force(u, omega[n], V, 1.0, grid(omega[n], V, 400, 12.0))
            assert_allclose(result.mean[n], mean, atol=1e-3 * np.sqrt(v))
    # The mean explains the label much better than omega does, up to the sign of u.
    found, start, truth = (outputs(s, 1.0) for s in (result.mean, omega, z))
    after, before = (
        np.minimum(*(np.abs(u - s * truth).max(1) for s in (1, -1)))
        for u in (found, start)
    )
    assert np.all(after < 0.2 * before + 0.05 * min(1.0, result.error + (layers > 2)))


def test_saturated_labels(rng):
    # u of several tens: probabilities are 0 or 1 to the last bit, the logits still fix the posterior
    V = 0.2 * np.eye(2)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=6.0)
    z = 3.0 * rng.standard_normal((4, 2, 2))
    omega = z + np.sqrt(0.2) * rng.standard_normal(z.shape)
    y = channel.forward(z)
    assert np.exp(y).max() == 1.0
    result = channel.posterior(y, omega, V)
    for n, u in enumerate(outputs(z, 6.0)):
        _, mean, _ = brute_force(u, omega[n], V, 6.0, grid(omega[n], V, 300, 7.0))
        assert_allclose(result.mean[n], mean, atol=2e-4)


def test_equal_tokens_do_not_break():
    channel = SequenceSoftmax(tokens=2, layers=2, skip=1.0)
    z = np.array(
        [[[0.5, 0.5], [0.3, 0.3]], [[0.5, 0.5], [0.3, -1.0]], [[1.0, -0.4], [0.7, 0.7]]]
    )
    result = channel.posterior(channel.forward(z), z + 0.1, 0.05 * np.eye(2))
    assert np.all(np.isfinite(result.mean))


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "n", "part"), [(2, 700, 100), (3, 5, 5)])
def test_equal_inputs_give_equal_results(rng, layers, n, part):
    V = 0.3 * np.eye(layers)
    channel = SequenceSoftmax(tokens=2, layers=layers, points=512)
    omega, z = draw(rng, n, V)
    y = channel.forward(z)
    together = channel.posterior(y, omega, V).mean
    apart = [
        channel.posterior(y[k : k + part], omega[k : k + part], V).mean
        for k in range(0, n, part)
    ]
    assert_array_equal(together, np.concatenate(apart))


def test_what_has_diverged_stays_diverged(backend, rng):
    channel = SequenceSoftmax(tokens=2, layers=2)
    z = rng.standard_normal((2, 2, 2))
    broken = np.where(z > z.mean(), np.nan, z)
    for omega, V in ((broken, np.eye(2)), (z, np.full((2, 2), np.inf))):
        y = channel.forward(backend.asarray(z))
        result = channel.posterior(
            y, backend.asarray(omega), backend.asarray(V), second_moment=True
        )
        assert np.all(np.isnan(to_host(result.mean)))
        assert np.all(np.isnan(to_host(result.covariance)))
        assert np.isnan(float(result.error))


def test_indefinite_covariance_is_refused(rng):
    channel = SequenceSoftmax(tokens=2, layers=2)
    z = rng.standard_normal((2, 2, 2))
    with pytest.raises(ValueError, match="positive definite"):
        channel.posterior(channel.forward(z), z, np.array([[1.0, 2.0], [2.0, 1.0]]))


def test_labels_without_digits_are_refused():
    """Many layers without a skip connection make tokens alike: what double precision does not hold is not guessed."""
    channel = SequenceSoftmax(tokens=2, layers=4, skip=0.0)
    z = np.random.default_rng(5).standard_normal((100, 4, 2))
    with pytest.raises(ParameterError, match="skip: must be larger with 4 layers"):
        channel.posterior(channel.forward(z), np.zeros_like(z), np.eye(4))


@pytest.mark.slow
def test_resampled_posteriors_have_points_of_their_own():
    """Errors of two sets of points are independent; the same index is the same set; what is exact or closed is unchanged."""
    channel = SequenceSoftmax(tokens=2, layers=3, skip=1.0, points=512)
    rng = np.random.default_rng(0)
    omega = 0.7 * rng.standard_normal((200, 3, 2))
    V = 0.5 * np.eye(3)
    y = channel.forward(omega + np.sqrt(0.5) * rng.standard_normal(omega.shape))
    means = [
        other.posterior(y, omega, V).mean
        for other in (channel, *map(channel.sampling.resampled, (0, 1, 1, 7)))
    ]
    assert_array_equal(means[2], means[3])
    exact = np.mean(
        [
            channel.sampling.resampled(k).posterior(y, omega, V).mean
            for k in range(20, 44)
        ],
        axis=0,
    )
    first = means[1] - exact
    second = means[2] - exact
    assert 0 < np.sqrt(np.mean(first**2)) < 0.1
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.25
    assert channel == channel.sampling.resampled(3)
    for closed in (SequenceSoftmax(tokens=3), SequenceSoftmax(tokens=2, layers=2)):
        assert closed.sampling.resampled(3) is closed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "tokens", "skip"), [(3, 2, 0.0), (4, 2, 0.01), (2, 3, 0.0)]
)
def test_little_skip_connection(rng, layers, tokens, skip):
    V = np.diag([0.8, 0.5, 0.5, 0.5][:layers])
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=skip, points=1024)
    omega, z = draw(rng, 10, V, tokens)
    result = channel.posterior(channel.forward(z), omega, V, second_moment=True)
    assert np.all(np.isfinite(result.second_moment))
    assert np.linalg.eigvalsh(result.covariance).min() > 0.0
    assert np.isfinite(result.error)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "tokens"), [EXACT, (3, 2), (2, 3)])
def test_partition_is_normalised(rng, layers, tokens):
    # E over labels drawn at omega of p(u; other omega) / p(u; omega) is 1
    V = covariance([0.6, 0.5, 0.4][:layers], 0.2)
    n = 6000 if (layers, tokens) == EXACT else 500
    channel = SequenceSoftmax(
        tokens=tokens, layers=layers, skip=1.0, points=1024, accuracy=1e-4
    )
    omega, z = draw(rng, n, V, tokens)
    y = channel.forward(z)
    other = omega + 0.2 * rng.standard_normal((1, layers, tokens))
    ratio = np.exp(
        channel.log_partition(y, other, V) - channel.log_partition(y, omega, V)
    )
    assert abs(ratio.mean() - 1.0) < 4.5 * ratio.std() / np.sqrt(n) + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "variances"),
    [
        (2, (1.0, 0.3, 0.01)),
        (2, (1e-2, 0.2, 1e-3)),
        (2, (0.3, 0.2, 0.1, 0.01)),
        (3, (0.5, 5e-3)),
    ],
)
def test_reported_error_of_sampling(tokens, variances):
    rng = np.random.default_rng(6)
    V = np.diag(variances)
    omega, z = draw(rng, 24, V, tokens)
    channels = [
        SequenceSoftmax(tokens=tokens, layers=len(V), points=points)
        for points in (1024, 1 << 15)
    ]
    y = channels[0].forward(z)
    few, many = (channel.posterior(y, omega, V) for channel in channels)
    error = relative(few.mean - many.mean, V)
    assert many.error < 0.5 * few.error
    assert few.error / 8.0 < error < 2.0 * few.error


def test_the_gap_keeps_its_digits():
    """Against the same product in a hundred digits."""
    z = np.array([[[0.3, 0.3 + 1e-3], [0.5, -0.7], [1.1, 0.2]]])
    with decimal.localcontext(prec=100):
        layers = [[decimal.Decimal(x) for x in row] for row in z[0].tolist()]
        (a, b), (c, d) = (1, 0), (0, 1)
        for x, y in layers[:-1]:
            h = a * x + b * y
            k = c * x + d * y
            p = 1 / (1 + (h * (k - h)).exp())
            q = 1 / (1 + (k * (h - k)).exp())
            a, b, c, d = (
                p * a + (1 - p) * c,
                p * b + (1 - p) * d,
                (1 - q) * a + q * c,
                (1 - q) * b + q * d,
            )
        x, y = layers[-1]
        expected = float((a - c) * x + (b - d) * y)
    assert abs(expected) < 1e-12
    assert output_gap(z, 0.0)[0] == pytest.approx(expected, rel=1e-9)
