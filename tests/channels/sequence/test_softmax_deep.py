"""More layers or more tokens: importance sampling against brute force, quadrature, identities and limits."""

from __future__ import annotations

import decimal
import itertools

import numpy as np
import pytest
from smimbench_channels.sequence.softmax.channel import SequenceSoftmax
from smimbench_channels.sequence.softmax.deep import importance
from smimbench_channels.sequence.softmax.deep.integrand import output_gap
from smimbench_channels.sequence.softmax.last_layer import information as last_layer
from smimbench_channels.sequence.softmax.last_layer import tables
from smimbench_channels.sequence.softmax.two_layers import posterior as two_layers

from smimbench.backend.arrays import to_host
from smimbench.interfaces import ParameterError
from tests.conftest import assert_placed
from tests.measure import assert_nishimori


def attention(v, skip):
    logits = v[..., :, None] * v[..., None, :]
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) + skip * np.eye(v.shape[-1])


def product(w, skip):
    """B for the layers w (n, K, M)."""
    B = np.broadcast_to(np.eye(w.shape[-1]), (len(w), w.shape[-1], w.shape[-1]))
    for layer in range(w.shape[1]):
        B = attention(np.einsum("nij,nj->ni", B, w[:, layer]), skip) @ B
    return B


def outputs(z, skip):
    return np.einsum("nij,nj->ni", product(z[:, :-1], skip), z[:, -1])


def covariance(variances, correlation):
    scale = np.sqrt(variances)
    return np.outer(scale, scale) * (correlation + (1.0 - correlation) * np.eye(len(scale)))


def draw(rng, n, V, tokens):
    layers = len(V)
    root = np.linalg.cholesky(np.eye(layers) - V + 1e-14 * np.eye(layers))
    omega = root @ rng.standard_normal((n, layers, tokens))
    return omega, omega + np.linalg.cholesky(V) @ rng.standard_normal((n, layers, tokens))


def brute_force(u, omega, V, skip, size, reach=4.7):
    """log Z_out and the mean of one sample by a plain sum over a grid of z_1 .. z_{L-1}."""
    layers, tokens = omega.shape
    before = layers - 1
    line = reach * (2.0 * np.arange(size) + 1.0 - size) / size
    cell = (line[1] - line[0]) ** (before * tokens)
    root = np.linalg.cholesky(V[:before, :before])
    slopes = np.linalg.solve(V[:before, :before], V[:before, before])
    noise = V[before, before] - slopes @ V[:before, before]
    rest = np.array(list(itertools.product(line, repeat=before * tokens - 1)))
    total, mean = 0.0, np.zeros((layers, tokens))
    for x in line:
        white = np.concatenate([np.full((len(rest), 1), x), rest], 1).reshape(-1, before, tokens)
        dw = root @ white
        B = product(omega[:before] + dw, skip)
        plus = np.linalg.solve(B, np.broadcast_to(u[:, None], (len(B), tokens, 1)))[..., 0]
        center = omega[before] + np.einsum("l,nlm->nm", slopes, dw)
        prior = np.exp(-0.5 * (white**2).sum((1, 2))) / np.abs(np.linalg.det(B))
        for sign in (1.0, -1.0):
            weight = prior * np.exp(-0.5 * ((sign * plus - center) ** 2).sum(-1) / noise)
            total += weight.sum()
            mean[:before] += np.einsum("n,nlm->lm", weight, dw)
            mean[before] += weight @ (sign * plus - omega[before])
    constant = 0.5 * before * tokens * np.log(2 * np.pi) + 0.5 * tokens * np.log(2 * np.pi * noise)
    return np.log(total * cell) - constant, omega + mean / total


@pytest.mark.parametrize(
    ("layers", "tokens", "skip", "variances", "correlation", "size"),
    [
        (3, 2, 1.0, (0.4, 0.3, 0.3), 0.3, 20),
        (3, 2, 2.0, (1.0, 0.5, 0.5), 0.0, 24),
        (2, 3, 1.0, (0.5, 0.4), 0.4, 40),
        (2, 3, 0.5, (1.0, 0.6), 0.0, 48),
    ],
)
def test_posterior_against_brute_force(rng, layers, tokens, skip, variances, correlation, size):
    V = covariance(variances, correlation)
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=skip, points=1 << 15)
    omega, z = draw(rng, 2, V, tokens)
    y = channel.forward(z)
    result = channel.posterior(y, omega, V)
    log_partition = channel.log_partition(y, omega, V)
    error = result.error
    assert error < 0.01
    for n, u in enumerate(outputs(z, skip)):
        expected, mean = brute_force(u, omega[n], V, skip, size)
        assert log_partition[n] == pytest.approx(expected, abs=0.02)
        difference = np.sqrt(np.mean((result.mean[n] - mean) ** 2 / np.diag(V)[:, None]))
        assert difference < 5.0 * error + 1e-4


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
        omega, z = draw(rng, 40, V, 2)
        u = outputs(z, skip)
        exact = two_layers.integrate(u, omega, V, skip, 1e-8, True)
        found = importance.integrate(u, omega, V, skip, 1e-5, 4096, True)
        scale = np.sqrt(np.diag(V))[:, None]
        error = np.sqrt(np.mean((found.shift - exact.shift) ** 2 / scale**2, axis=(1, 2)))
        assert np.sqrt(np.mean(error**2)) < 2.0 * np.sqrt(np.mean(found.error**2))
        assert np.max(error / found.error) < 8.0
        assert np.sqrt(np.mean(found.error**2)) < 0.04
        assert np.median(np.abs(found.log_partition - exact.log_partition)) < 0.01
        whole = np.repeat(scale[:, 0], 2)
        second = (found.second - exact.second) / np.outer(whole, whole)
        assert np.sqrt(np.mean(second**2)) < 0.1


@pytest.mark.parametrize(("layers", "tokens"), [(3, 2), (4, 2), (2, 3)])
def test_small_errors_are_gaussian(rng, layers, tokens):
    # V -> 0: shift = V J^T (J V J^T)^{-1} (u(z) - u(omega))
    V = 1e-8 * covariance([1.0, 0.1, 0.3, 0.02][:layers], 0.2)
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=1.0)
    size = layers * tokens
    omega, z = draw(rng, 80, V, tokens)
    result = channel.posterior(channel.forward(z), omega, V)
    jacobian = np.empty((80, tokens, size))
    for k in range(size):
        shift = np.zeros(size)
        shift[k] = 1e-6
        shift = shift.reshape(layers, tokens)
        jacobian[:, :, k] = (outputs(omega + shift, 1.0) - outputs(omega - shift, 1.0)) / 2e-6
    whole = np.kron(V, np.eye(tokens))
    spread = np.einsum("nik,kl,njl->nij", jacobian, whole, jacobian)
    residual = np.linalg.solve(spread, (outputs(z, 1.0) - outputs(omega, 1.0))[..., None])
    shift = np.einsum("kl,nil,ni->nk", whole, jacobian, residual[..., 0]).reshape(omega.shape)
    error = np.abs(result.mean - omega - shift) / np.sqrt(np.diag(V))[:, None]
    assert np.median(error) < 2.0 * result.error + 1e-3
    assert result.error < 0.03


@pytest.mark.parametrize(
    ("layers", "tokens", "variances", "correlation"),
    [
        (3, 2, (0.5, 0.3, 0.05), 0.0),
        (3, 2, (0.3, 0.3, 0.3), 0.4),
        (4, 2, (1.0, 0.5, 0.3, 0.2), 0.0),
        (2, 3, (0.6, 0.05), 0.3),
    ],
)
def test_nishimori_identities(layers, tokens, variances, correlation):
    rng = np.random.default_rng(8)
    V = covariance(variances, correlation)
    n = 400
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=1.0, points=2048)
    omega, z = draw(rng, n, V, tokens)
    result = channel.posterior(channel.forward(z), omega, V, second_moment=True)
    assert_nishimori(result, omega, z, V, slack=2.0 * result.error * np.abs(V).max())


@pytest.mark.parametrize(("layers", "tokens"), [(3, 2), (2, 3)])
def test_partition_is_normalised(rng, layers, tokens):
    # E over labels drawn at omega of p(u; omega') / p(u; omega) is 1
    V = covariance([0.6, 0.5, 0.4][:layers], 0.2)
    n = 500
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=1.0, points=1024)
    omega, z = draw(rng, n, V, tokens)
    y = channel.forward(z)
    other = omega + 0.2 * rng.standard_normal((1, layers, tokens))
    ratio = np.exp(channel.log_partition(y, other, V) - channel.log_partition(y, omega, V))
    assert abs(ratio.mean() - 1.0) < 4.5 * ratio.std() / np.sqrt(n) + 0.01


@pytest.mark.parametrize(("layers", "tokens"), [(3, 2), (2, 3)])
def test_partition_falls_with_g(rng, layers, tokens):
    # log Z(omega + t s) - log Z(omega - t s) = 2 t s.g + O(t^3)
    V = covariance([0.5, 0.4, 0.3][:layers], 0.0)
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=1.0, points=1 << 14)
    omega, z = draw(rng, 20, V, tokens)
    y = channel.forward(z)
    g = (channel.posterior(y, omega, V).mean - omega) / np.diag(V)[:, None]
    direction = rng.standard_normal((20, layers, tokens))
    t = 0.05
    change = channel.log_partition(y, omega + t * direction, V) - channel.log_partition(y, omega - t * direction, V)
    slope = (g * direction).sum((1, 2))
    assert np.sqrt(np.mean((change / (2 * t) - slope) ** 2)) < 0.1 * np.sqrt(np.mean(slope**2))


@pytest.mark.parametrize(
    ("layers", "tokens", "variances"),
    [(3, 2, (1.0, 0.3, 0.01)), (3, 2, (1e-2, 0.2, 1e-3)), (4, 2, (0.3, 0.2, 0.1, 0.01)), (2, 3, (0.5, 5e-3))],
)
def test_reported_error_is_honest(layers, tokens, variances):
    rng = np.random.default_rng(6)
    V = covariance(variances, 0.0)
    omega, z = draw(rng, 24, V, tokens)
    channels = [SequenceSoftmax(tokens=tokens, layers=layers, points=points) for points in (1024, 1 << 15)]
    y = channels[0].forward(z)
    few, many = (channel.posterior(y, omega, V) for channel in channels)
    error = np.sqrt(np.mean((few.mean - many.mean) ** 2 / np.diag(V)[:, None]))
    assert many.error < 0.5 * few.error
    assert error < 2.0 * few.error
    assert few.error < 8.0 * error  # nor exaggerated


def test_modest_accuracy_costs_fewer_points(rng):
    V = covariance((0.3, 0.2, 0.1), 0.0)
    omega, z = draw(rng, 20, V, 2)
    u = outputs(z, 1.0)
    rough = importance.integrate(u, omega, V, 1.0, 0.05, 1 << 13)
    fine = importance.integrate(u, omega, V, 1.0, 1e-5, 1 << 13)
    left = rough.error > 1.5 * fine.error
    assert left.any()
    assert rough.error[left].max() < 0.05


def test_labels_far_from_the_expected(rng):
    # nothing may turn into NaN, and the error must say that the answer is rough
    V = 1e-4 * np.eye(3)
    channel = SequenceSoftmax(tokens=2, layers=3)
    z = rng.standard_normal((6, 3, 2))
    omega = z + 0.3 * rng.standard_normal(z.shape)
    result = channel.posterior(channel.forward(z), omega, V)
    assert np.all(np.isfinite(result.mean))
    found, start, truth = (outputs(s, 1.0) for s in (result.mean, omega, z))
    for sample in range(len(z)):
        after = min(np.abs(found[sample] - s * truth[sample]).max() for s in (1, -1))
        before = min(np.abs(start[sample] - s * truth[sample]).max() for s in (1, -1))
        assert after < 0.2 * before + 0.05


@pytest.mark.parametrize(("layers", "tokens", "skip"), [(3, 2, 0.0), (4, 2, 0.01), (2, 3, 0.0)])
def test_little_skip_connection(rng, layers, tokens, skip):
    V = covariance([0.8, 0.5, 0.5, 0.5][:layers], 0.0)
    channel = SequenceSoftmax(tokens=tokens, layers=layers, skip=skip, points=1024)
    omega, z = draw(rng, 10, V, tokens)
    result = channel.posterior(channel.forward(z), omega, V, second_moment=True)
    assert np.all(np.isfinite(result.second_moment))
    assert np.linalg.eigvalsh(result.covariance).min() > 0.0
    assert np.isfinite(result.error)


@pytest.mark.parametrize(("layers", "tokens"), [(3, 2), (2, 3)])
def test_backends(backend, rng, layers, tokens):
    V = covariance([0.6, 0.2, 0.1][:layers], 0.2)
    channel = SequenceSoftmax(tokens=tokens, layers=layers, points=256)
    omega, z = draw(rng, 3, V, tokens)
    expected = channel.posterior(channel.forward(z), omega, V, second_moment=True)
    y = channel.forward(backend.asarray(z))
    result = channel.posterior(y, backend.asarray(omega), backend.asarray(V), second_moment=True)
    shapes = ((3, layers, tokens), (layers, layers), (3, layers, tokens, layers, tokens))
    for array, other, shape in zip(result[:3], expected[:3], shapes):
        assert_placed(array, backend, shape)
        np.testing.assert_allclose(to_host(array), other, rtol=1e-8, atol=1e-9)
    log_partition = channel.log_partition(y, backend.asarray(omega), backend.asarray(V))
    assert_placed(log_partition, backend, (3,))
    assert float(result.error) == pytest.approx(float(expected.error), rel=1e-6)


def test_equal_inputs_give_equal_results(rng):
    V = 0.3 * np.eye(3)
    channel = SequenceSoftmax(tokens=2, layers=3, points=512)
    omega, z = draw(rng, 5, V, 2)
    y = channel.forward(z)
    one, two = (channel.posterior(y, omega, V).mean for _ in range(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("skip", [0.0, 0.03, 1.0])
def test_nearly_singular_attention_agrees_with_tables(skip):
    """Where only the last of three layers is known its posterior mean is a table's bilinear form, however small the skip."""
    n, q = 60, np.array([0.0, 0.0, 0.97])
    accuracy = tables.Accuracy(table_points=2**15)
    case = last_layer._Case(skip, q, 1.0 - q, None, [0, 1], accuracy)
    labels = last_layer._Labels(*(array[:n] for array in last_layer._draw_labels(case, 0)))
    count = tables.node_count(skip, 3, 1.0 - q[-1], accuracy.step, accuracy)
    expected = last_layer._posterior_of_labels(
        case, tables.make_tables(skip, (1.0, 1.0), None, 0.0, count, 0, accuracy), labels, None
    )
    omega = np.zeros((n, 3, 2))
    omega[:, -1] = labels.omega_last
    scale = (1.0 + skip) ** 2
    found = importance.integrate(scale * labels.ut, omega, np.diag(1.0 - q), skip, 1e-5, 2048, gap=scale * labels.gap)
    off = np.sqrt(((found.shift[:, -1] - expected.shift) ** 2).mean(1) / (1.0 - q[-1]))
    assert np.sqrt((off**2).mean()) < 0.12
    assert np.sqrt(((off / found.error) ** 2).mean()) < 1.5
    assert (off < 6 * found.error).all()


def test_labels_without_digits_are_refused():
    """Many layers without a skip connection make tokens alike: what double precision does not hold is not guessed."""
    channel = SequenceSoftmax(tokens=2, layers=4, skip=0.0)
    z = np.random.default_rng(5).standard_normal((100, 4, 2))
    with pytest.raises(ParameterError, match="skip: must be larger with 4 layers"):
        channel.posterior(channel.forward(z), np.zeros_like(z), np.eye(4))


def test_the_gap_keeps_its_digits():
    """Against the same product in a hundred digits."""
    z = np.array([[[0.3, 0.3 + 1e-3], [0.5, -0.7], [1.1, 0.2]]])
    with decimal.localcontext(prec=100):
        layers = [[decimal.Decimal(x) for x in row] for row in z[0].tolist()]
        (a, b), (c, d) = (1, 0), (0, 1)
        for x, y in layers[:-1]:
            h, k = a * x + b * y, c * x + d * y
            p, q = 1 / (1 + (h * (k - h)).exp()), 1 / (1 + (k * (h - k)).exp())
            a, b, c, d = p * a + (1 - p) * c, p * b + (1 - p) * d, (1 - q) * a + q * c, (1 - q) * b + q * d
        x, y = layers[-1]
        expected = float((a - c) * x + (b - d) * y)
    assert abs(expected) < 1e-12
    assert output_gap(z, 0.0)[0] == pytest.approx(expected, rel=1e-9)


def test_resampled_posteriors_have_points_of_their_own():
    """Errors of two sets of points are independent; the same index is the same set; what is exact or closed is unchanged."""
    channel = SequenceSoftmax(tokens=2, layers=3, skip=1.0, points=512)
    rng = np.random.default_rng(0)
    omega = 0.7 * rng.standard_normal((200, 3, 2))
    V = 0.5 * np.eye(3)
    y = channel.forward(omega + np.sqrt(0.5) * rng.standard_normal(omega.shape))
    means = [other.posterior(y, omega, V).mean for other in (channel, *map(channel.resampled, (0, 1, 1, 7)))]
    np.testing.assert_array_equal(means[2], means[3])
    exact = np.mean([channel.resampled(k).posterior(y, omega, V).mean for k in range(20, 44)], axis=0)
    first, second = means[1] - exact, means[2] - exact
    assert 0 < np.sqrt(np.mean(first**2)) < 0.1
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.25
    assert channel == channel.resampled(3)
    for closed in (SequenceSoftmax(tokens=3), SequenceSoftmax(tokens=2, layers=2)):
        assert closed.resampled(3) is closed
