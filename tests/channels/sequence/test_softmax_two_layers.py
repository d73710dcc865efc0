"""Two layers, two tokens: the adaptive quadrature against brute force, identities and limits."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_channels.sequence.softmax.channel import SequenceSoftmax

from smimbench.backend.arrays import to_host
from tests.conftest import assert_placed
from tests.measure import assert_nishimori


def softmax_rows(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def outputs(z, skip):
    A = softmax_rows(z[:, 0, :, None] * z[:, 0, None, :]) + skip * np.eye(2)
    return np.einsum("nij,nj->ni", A, z[:, 1])


def draw(rng, n, V, skip):
    """Samples on the Nishimori line: omega of covariance I - V, z of covariance V around it."""
    root = np.linalg.cholesky(np.eye(2) - V + 1e-15 * np.eye(2))
    omega = np.einsum("ab,nbm->nam", root, rng.standard_normal((n, 2, 2)))
    z = omega + np.einsum("ab,nbm->nam", np.linalg.cholesky(V), rng.standard_normal((n, 2, 2)))
    return omega, z


def first_layer_grid(center, width, skip, size, reach):
    """Points (a, b) and log cell areas covering ``center +- reach width``."""
    line = reach * width * (np.arange(size) + 0.5 - size / 2) / (size / 2)
    if skip > 0.0:
        a, b = (axis.ravel() for axis in np.meshgrid(line, line))
        return center[0] + a, center[1] + b, np.full(a.shape, 2.0 * np.log(line[1] - line[0]))
    # A is singular at equal tokens: uniform in the logarithm of their distance
    top = np.log(abs(center[0] - center[1]) + 1.5 * reach * width)
    logs = np.linspace(-9.0, top, 2 * size)
    distance = np.concatenate([np.exp(logs), -np.exp(logs)])
    middle, distance = (axis.ravel() for axis in np.meshgrid(center.mean() + line, distance))
    area = np.log(np.abs(distance) * (logs[1] - logs[0]) * (line[1] - line[0]))
    return middle + 0.5 * distance, middle - 0.5 * distance, area


def brute_force(u, omega, V, skip, size=700, reach=7.0):
    """log Z_out, mean and second moment of one sample by a plain sum over z_1."""
    a, b, area = first_layer_grid(omega[0], np.sqrt(V[0, 0]), skip, size, reach)
    near, far = 1.0 / (1.0 + np.exp(-a * (a - b))), 1.0 / (1.0 + np.exp(-b * (b - a)))
    A = ((skip + near, 1.0 - near), (1.0 - far, skip + far))
    det = A[0][0] * A[1][1] - A[0][1] * A[1][0]
    kept = det > 1e-12  # closer to singular, the likelihood is zero
    det = np.where(kept, det, 1.0)
    z21, z22 = (A[1][1] * u[0] - A[0][1] * u[1]) / det, (A[0][0] * u[1] - A[1][0] * u[0]) / det
    slope = V[0, 1] / V[0, 0]
    noise = V[1, 1] - V[0, 1] ** 2 / V[0, 0]
    da, db = a - omega[0, 0], b - omega[0, 1]
    prior = -0.5 * (da**2 + db**2) / V[0, 0] - np.log(det) + area
    log_weights, points = [], []
    for sign in (1.0, -1.0):
        one, two = sign * z21 - omega[1, 0] - slope * da, sign * z22 - omega[1, 1] - slope * db
        log_weight = prior - 0.5 * (one**2 + two**2) / noise
        important = kept & (log_weight > log_weight[kept].max() - 60.0)
        log_weights.append(log_weight[important])
        points.append(np.stack([a, b, sign * z21, sign * z22], -1)[important])
    log_weight, point = np.concatenate(log_weights), np.concatenate(points)
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    total = weight.sum()
    log_partition = np.log(total) + top
    log_partition -= np.log(2 * np.pi * V[0, 0]) + np.log(2 * np.pi * noise)
    mean = weight @ point / total
    second = (point * weight[:, None]).T @ point / total
    return log_partition, mean.reshape(2, 2), second.reshape(2, 2, 2, 2)


CASES = [  # skip, V_11, V_22, correlation
    (1.0, 1.0, 1.0, 0.0),
    (1.0, 1.0, 0.05, 0.0),
    (1.0, 0.9, 0.3, 0.5),
    (4.0, 0.5, 0.02, -0.6),
    (0.3, 0.2, 0.01, 0.3),
    (0.0, 1.0, 0.3, 0.0),
    (0.0, 0.3, 0.2, -0.4),
    (2.0, 1e-3, 1e-3, 0.5),
    (1.0, 1e-4, 1e-2, 0.2),
]


def covariance(v11, v22, correlation):
    v12 = correlation * np.sqrt(v11 * v22)
    return np.array([[v11, v12], [v12, v22]])


@pytest.mark.parametrize(("skip", "v11", "v22", "correlation"), CASES)
def test_posterior_against_brute_force(rng, skip, v11, v22, correlation):
    V = covariance(v11, v22, correlation)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=skip, accuracy=1e-6)
    omega, z = draw(rng, 3, V, skip)
    y = channel.forward(z)
    result = channel.posterior(y, omega, V, second_moment=True)
    log_partition = channel.log_partition(y, omega, V)
    scale = np.sqrt(np.diag(V))[:, None]
    covariances = []
    for n, u in enumerate(outputs(z, skip)):
        size = 500 if skip == 0.0 else 700
        expected_log, mean, second = brute_force(u, omega[n], V, skip, size=size)
        np.testing.assert_allclose((result.mean[n] - mean) / scale, 0.0, atol=2e-5)
        assert log_partition[n] == pytest.approx(expected_log, abs=2e-5)
        whitened = (result.second_moment[n] - second) / scale[:, :, None, None] / scale
        np.testing.assert_allclose(whitened, 0.0, atol=2e-5 * (1 + np.abs(mean / scale).max() ** 2))
        centred = second - mean[:, :, None, None] * mean
        covariances.append(np.einsum("ambm->ab", centred) / 2)
    np.testing.assert_allclose(
        (result.covariance - np.mean(covariances, 0)) / np.sqrt(np.outer(np.diag(V), np.diag(V))), 0.0, atol=2e-5
    )
    assert result.error < 1e-5


@pytest.mark.parametrize("v", [1e-6, 1e-8])
@pytest.mark.parametrize("skip", [0.0, 1.0])
def test_small_errors_are_gaussian(rng, v, skip):
    # V -> 0: shift = V J^T (J V J^T)^{-1} (u(z) - u(omega)), up to terms of order sqrt(V).
    V = v * covariance(1.0, 0.3, 0.4)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=skip)
    omega, z = draw(rng, 400, V, skip)
    result = channel.posterior(channel.forward(z), omega, V)
    step = 1e-6
    jacobian = np.empty((400, 2, 4))
    for k in range(4):
        shift = np.zeros(4)
        shift[k] = step
        shift = shift.reshape(2, 2)
        jacobian[:, :, k] = (outputs(omega + shift, skip) - outputs(omega - shift, skip)) / (2 * step)
    whole = np.kron(V, np.eye(2))
    spread = np.einsum("nik,kl,njl->nij", jacobian, whole, jacobian)
    residual = np.linalg.solve(spread, (outputs(z, skip) - outputs(omega, skip))[..., None])
    shift = np.einsum("kl,nil,ni->nk", whole, jacobian, residual[..., 0]).reshape(-1, 2, 2)
    error = (result.mean - omega - shift) / np.sqrt(np.diag(V))[:, None]
    # a few samples are strongly curved (nearly equal tokens), so compare a robust measure
    assert np.median(np.abs(error)) < 3.0 * np.sqrt(v)
    assert np.quantile(np.abs(error), 0.9) < 60.0 * np.sqrt(v)


@pytest.mark.parametrize(("skip", "v11", "v22", "correlation"), [(1.0, 0.8, 0.05, 0.0), (0.5, 0.4, 0.4, 0.6)])
def test_nishimori_identities(skip, v11, v22, correlation):
    rng = np.random.default_rng(11)
    V = covariance(v11, v22, correlation)
    n = 6000
    channel = SequenceSoftmax(tokens=2, layers=2, skip=skip)
    omega, z = draw(rng, n, V, skip)
    result = channel.posterior(channel.forward(z), omega, V, second_moment=True)
    assert_nishimori(result, omega, z, V)


@pytest.mark.parametrize(("skip", "v11", "v22", "correlation"), [(1.0, 1.0, 0.1, 0.0), (0.0, 0.5, 0.2, 0.5)])
def test_gradient_of_the_partition_is_g(rng, skip, v11, v22, correlation):
    V = covariance(v11, v22, correlation)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=skip, accuracy=1e-9)
    omega, z = draw(rng, 20, V, skip)
    y = channel.forward(z)
    g = np.einsum("ab,nbm->nam", np.linalg.inv(V), channel.posterior(y, omega, V).mean - omega)
    step = 1e-3 * np.sqrt(v22)
    for a, m in np.ndindex(2, 2):
        shift = np.zeros((1, 2, 2))
        shift[0, a, m] = step
        values = [channel.log_partition(y, omega + k * shift, V) for k in (-2, -1, 1, 2)]
        slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        np.testing.assert_allclose(slope, g[:, a, m], atol=2e-5 / step * 1e-3 + 1e-5)


def test_partition_is_normalised(rng):
    # E over labels drawn at V of p(u; other omega) / p(u; omega) is 1
    V, skip, n = covariance(0.6, 0.5, 0.3), 1.0, 6000
    channel = SequenceSoftmax(tokens=2, layers=2, skip=skip, accuracy=1e-4)
    omega, z = draw(rng, n, V, skip)
    y = channel.forward(z)
    shifted = omega + 0.2 * rng.standard_normal((1, 2, 2))
    ratio = np.exp(channel.log_partition(y, shifted, V) - channel.log_partition(y, omega, V))
    assert abs(ratio.mean() - 1.0) < 4.5 * ratio.std() / np.sqrt(n)


@pytest.mark.parametrize("skip", [0.0, 0.2, 1.0])
def test_reported_error_is_honest(skip):
    rng = np.random.default_rng(3)
    for v11, v22 in ((1.0, 0.3), (1.0, 4e-3), (1.0, 1e-5), (0.1, 1e-3), (1e-4, 1e-6)):
        V = covariance(v11, v22, 0.0)
        omega, z = draw(rng, 40, V, skip)
        y = SequenceSoftmax(tokens=2, layers=2, skip=skip).forward(z)
        exact = SequenceSoftmax(tokens=2, layers=2, skip=skip, accuracy=1e-10)
        exact = exact.posterior(y, omega, V).mean
        for accuracy in (1e-3, 1e-5, 1e-7):
            result = SequenceSoftmax(tokens=2, layers=2, skip=skip, accuracy=accuracy).posterior(y, omega, V)
            error = np.sqrt(np.mean((result.mean - exact) ** 2 / np.diag(V)[:, None]))
            assert error < 3.0 * result.error
            assert error < 5.0 * accuracy
            assert result.error < 10.0 * accuracy


@pytest.mark.parametrize("distance", [8.0, 100.0, 3000.0])
def test_labels_far_from_the_expected(rng, distance):
    # V claims far more than omega knows; no sample may be lost or turned into NaN.
    v = 1e-3
    V = v * covariance(1.0, 0.5, 0.3)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=1.0)
    z = rng.standard_normal((6, 2, 2))
    omega = z + distance * np.sqrt(v) * rng.choice([-0.5, 0.5], size=z.shape)
    y = channel.forward(z)
    result = channel.posterior(y, omega, V)
    assert np.all(np.isfinite(result.mean))
    assert np.all(np.isfinite(channel.log_partition(y, omega, V)))
    if distance < 50:
        assert result.error < 1e-4
        for n, u in enumerate(outputs(z[:3], 1.0)):
            _, mean, _ = brute_force(u, omega[n], V, 1.0, size=1000, reach=12.0)
            np.testing.assert_allclose(result.mean[n], mean, atol=1e-3 * np.sqrt(v))
    # The mean explains the label much better than omega does, up to the sign of u.
    found, start, truth = (outputs(s, 1.0) for s in (result.mean, omega, z))
    for sample in range(len(z)):
        after = min(np.abs(found[sample] - s * truth[sample]).max() for s in (1, -1))
        before = min(np.abs(start[sample] - s * truth[sample]).max() for s in (1, -1))
        assert after < 0.1 * before + 0.05 * min(1.0, result.error)


def test_saturated_labels(rng):
    # u of several tens: probabilities are 0 or 1 to the last bit, the logits still fix the posterior
    V = covariance(0.2, 0.2, 0.0)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=6.0)
    z = 3.0 * rng.standard_normal((4, 2, 2))
    omega = z + np.sqrt(0.2) * rng.standard_normal(z.shape)
    y = channel.forward(z)
    assert np.exp(y).max() == 1.0
    result = channel.posterior(y, omega, V)
    for n, u in enumerate(outputs(z, 6.0)):
        np.testing.assert_allclose(result.mean[n], brute_force(u, omega[n], V, 6.0)[1], atol=2e-4)


def test_equal_tokens_do_not_break():
    channel = SequenceSoftmax(tokens=2, layers=2, skip=1.0)
    z = np.array([[[0.5, 0.5], [0.3, 0.3]], [[0.5, 0.5], [0.3, -1.0]], [[1.0, -0.4], [0.7, 0.7]]])
    result = channel.posterior(channel.forward(z), z + 0.1, 0.05 * np.eye(2))
    assert np.all(np.isfinite(result.mean))


def test_backends(backend, rng):
    V = covariance(0.7, 0.05, 0.3)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=0.8)
    omega, z = draw(rng, 5, V, 0.8)
    expected = channel.posterior(channel.forward(z), omega, V, second_moment=True)
    y = channel.forward(backend.asarray(z))
    result = channel.posterior(y, backend.asarray(omega), backend.asarray(V), second_moment=True)
    shapes = ((5, 2, 2), (2, 2), (5, 2, 2, 2, 2))
    for array, other, shape in zip(result[:3], expected[:3], shapes):
        assert_placed(array, backend, shape)
        np.testing.assert_allclose(to_host(array), other, rtol=1e-10, atol=1e-11)
    assert float(result.error) == pytest.approx(float(expected.error), rel=1e-6)
    log_partition = channel.log_partition(y, backend.asarray(omega), backend.asarray(V))
    assert_placed(log_partition, backend, (5,))
    np.testing.assert_allclose(to_host(log_partition), channel.log_partition(channel.forward(z), omega, V), rtol=1e-10)


def test_float32_in_float32_out(rng):
    V = covariance(0.7, 0.3, 0.0)
    channel = SequenceSoftmax(tokens=2, layers=2)
    omega, z = draw(rng, 50, V, 1.0)
    wide = channel.posterior(channel.forward(z), omega, V)
    y = channel.forward(z.astype(np.float32))
    narrow = channel.posterior(y, omega.astype(np.float32), V.astype(np.float32), second_moment=True)
    assert narrow.mean.dtype == narrow.covariance.dtype == narrow.second_moment.dtype == np.float32
    assert np.median(np.abs(narrow.mean - wide.mean)) < 1e-5


def test_blocks_do_not_matter(rng):
    V = covariance(1.0, 0.05, 0.0)
    channel = SequenceSoftmax(tokens=2, layers=2)
    omega, z = draw(rng, 700, V, 1.0)
    y = channel.forward(z)
    together = channel.posterior(y, omega, V).mean
    apart = np.concatenate([channel.posterior(y[k : k + 100], omega[k : k + 100], V).mean for k in range(0, 700, 100)])
    np.testing.assert_allclose(together, apart, rtol=1e-12, atol=1e-13)


def test_what_has_diverged_stays_diverged(backend, rng):
    channel = SequenceSoftmax(tokens=2, layers=2)
    z = rng.standard_normal((2, 2, 2))
    broken = np.where(z > z.mean(), np.nan, z)
    for omega, V in ((broken, np.eye(2)), (z, np.full((2, 2), np.inf))):
        y = channel.forward(backend.asarray(z))
        result = channel.posterior(y, backend.asarray(omega), backend.asarray(V), second_moment=True)
        assert np.all(np.isnan(to_host(result.mean)))
        assert np.all(np.isnan(to_host(result.covariance)))
        assert np.isnan(float(result.error))


def test_indefinite_covariance_is_refused(rng):
    channel = SequenceSoftmax(tokens=2, layers=2)
    z = rng.standard_normal((2, 2, 2))
    with pytest.raises(ValueError, match="positive definite"):
        channel.posterior(channel.forward(z), z, np.array([[1.0, 2.0], [2.0, 1.0]]))
