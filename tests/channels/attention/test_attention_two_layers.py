"""Two layers of attention against dense integrals over the first layer's margins, and identities of Bayes."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.channels.attention.softmax.integrals import integrals
from smimbench_attention.channels.attention.softmax.two_layers import TwoLayerAttention
from smimbench_attention.channels.attention.softmax.weight import sample_parameters

from smimbench.backend.arrays import to_host
from smimbench.interfaces.problem import prior_moments
from smimbench.problem.problem import Problem
from smimbench.theory.coupled import UNFINISHED, CoupledCurve
from smimbench.theory.curve import perfect_recovery_threshold
from smimbench.theory.first_order import tabulated_information
from smimbench.theory.information import information_at, overlap_at
from tests.conftest import assert_placed

SCALE = np.array([math.sqrt(2), 1, math.sqrt(2)])
J = np.array([[1, -1, 0], [0, -1, 1]])
D = np.diag([2.0, 1.0, 2.0])


def root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.clip(values, 0, None))


def labelled(rng, channel, n, Q, V):
    omega = np.einsum(
        "lk,nkc->nlc", root(np.asarray(Q)), rng.standard_normal((n, 2, 3))
    )
    z = omega + np.einsum(
        "lk,nkc->nlc", root(np.asarray(V)), rng.standard_normal((n, 2, 3))
    )
    return channel.forward(z), omega, z


def margins(y, beta):
    return np.stack([y[:, 0, 0] - y[:, 0, 1], y[:, 1, 1] - y[:, 1, 0]], axis=1) / beta


def matrix_of(h):
    return np.array([[h[0], h[1]], [h[1], h[2]]])


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def conditional(channel, phi, omega, v1, v2, grid):
    """Log-weight, h_1's margins, and the Gaussian of h_2 given them, at points of u in units of its prior."""
    beta = channel.beta
    c = channel.skip
    h1 = omega[0] * SCALE
    h2 = omega[1] * SCALE
    u = J @ h1 + math.sqrt(v1) * grid @ np.linalg.cholesky(J @ D @ J.T).T
    p = 1 / (1 + np.exp(-beta * u[:, 0]))
    r = 1 / (1 + np.exp(-beta * u[:, 1]))
    b11 = c + p
    b12 = 1 - p
    b21 = 1 - r
    b22 = c + r
    cross = b11 * b22 + b12 * b21
    rows = [
        [b11**2 - b11 * b21, 2 * b11 * b12 - cross, b12**2 - b12 * b22],
        [b21**2 - b11 * b21, 2 * b21 * b22 - cross, b22**2 - b12 * b22],
    ]
    C = np.moveaxis(np.array(rows), -1, 0)
    S = v2 * C @ D @ np.swapaxes(C, 1, 2)
    determinant = S[:, 0, 0] * S[:, 1, 1] - S[:, 0, 1] ** 2
    good = determinant > 1e-14 * (
        S[:, 0, 0] * S[:, 1, 1]
    )  # where the margins nearly coincide, they have no weight
    gap = phi - C @ h2
    safe = np.where(good, determinant, 1.0)
    first = S[:, 1, 1] * gap[:, 0] - S[:, 0, 1] * gap[:, 1]
    pulled = (
        np.stack([first, S[:, 0, 0] * gap[:, 1] - S[:, 0, 1] * gap[:, 0]], axis=1)
        / safe[:, None]
    )
    log_w = (
        -np.sum(gap * pulled, axis=1) / 2
        - np.log(safe) / 2
        - np.sum(grid**2, axis=1) / 2
    )
    return np.where(good, log_w, -np.inf), u, C, S, pulled


def dense(channel, phi, omega, v1, v2, points=200):
    """Partition, mean and second moment of z (2, 3) for one label, straight from the linear map of the second layer.

    Given the margins u of the first layer both margins of the second are linear in h_2; everything is
    Gaussian but u, which is summed over a grid, and over a finer one where the first has found something.
    """
    low = np.full(2, -7.5)
    high = np.full(2, 7.5)
    for _ in range(3):
        step = (high - low) / points
        axes = [low[k] + step[k] * (np.arange(points) + 0.5) for k in range(2)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        log_w, u, C, S, pulled = conditional(channel, phi, omega, v1, v2, grid)
        keep = log_w > log_w.max() - 30
        low = grid[keep].min(0) - 2 * step
        high = grid[keep].max(0) + 2 * step
    top = log_w.max()
    w = np.exp(log_w[keep] - top)
    log_z = top + math.log(w.sum() * step[0] * step[1]) - 2 * math.log(2 * math.pi)
    w /= w.sum()
    lift = D @ J.T @ np.linalg.inv(J @ D @ J.T)
    mean1 = (omega[0] * SCALE + (u[keep] - J @ (omega[0] * SCALE)) @ lift.T) / SCALE
    back = np.einsum("ij,nkj,nk->ni", v2 * D, C[keep], pulled[keep])
    both = np.concatenate([mean1, omega[1] + back / SCALE], axis=1)
    mean = w @ both
    second = np.einsum("n,ni,nj->ij", w, both, both)
    cov1 = v1 * (np.eye(3) - (lift @ J @ D) / np.outer(SCALE, SCALE))
    removed = np.einsum(
        "nki,nkl,nlj->nij", C[keep] @ D, np.linalg.inv(S[keep]), C[keep] @ D
    )
    cov2 = (v2 * D - v2**2 * np.einsum("n,nij->ij", w, removed)) / np.outer(
        SCALE, SCALE
    )
    second[:3, :3] += cov1
    second[3:, 3:] += cov2
    return log_z, mean.reshape(2, 3), second


@pytest.mark.parametrize(("beta", "skip"), [(1.0, 1.0), (2.0, 0.3), (0.5, 0.0)])
def test_labels_follow_the_definition(beta, skip, backend, rng):
    channel = TwoLayerAttention(beta, skip)
    z = rng.standard_normal((20, 2, 3)) * 2
    y = channel.forward(backend.asarray(z))
    assert_placed(y, backend, (20, 2, 2))
    for i in range(20):
        B = skip * np.eye(2) + softmax(beta * matrix_of(z[i, 0] * SCALE))
        expected = softmax(beta * (B @ matrix_of(z[i, 1] * SCALE) @ B.T))
        assert_allclose(np.exp(to_host(y)[i]), expected, rtol=1e-12)
        assert_allclose(to_host(channel.observable(y))[i].sum(-1), 1)


def test_margins_survive_saturation(rng):
    channel = TwoLayerAttention()
    z = 100 * rng.standard_normal((50, 2, 3))
    phi = margins(channel.forward(z), 1.0)
    for i in range(50):
        B = np.eye(2) + softmax(matrix_of(z[i, 0] * SCALE))
        M = B @ matrix_of(z[i, 1] * SCALE) @ B.T
        assert_allclose(
            phi[i], [M[0, 0] - M[0, 1], M[1, 1] - M[0, 1]], rtol=1e-9, atol=1e-9
        )


CASES = [
    (1.0, 1.0, 1.0, 1.0),
    (1.0, 1.0, 1.0, 0.05),
    (1.0, 1.0, 0.02, 1.0),
    (1.0, 1.0, 0.1, 0.1),
    (2.0, 1.0, 0.5, 0.5),
    pytest.param(1.0, 0.5, 0.5, 0.3, marks=pytest.mark.slow),
    (1.0, 0.0, 0.5, 0.5),
    (1.0, 3.0, 0.7, 0.2),
    # The first layer has to be known to the width of the second, or else every label is a contradiction.
    *((1.0, 1.0, 0.02, 0.02 * ratio) for ratio in (1e-2, 1e-3, 1e-4)),
]


@pytest.mark.parametrize(("beta", "skip", "v1", "v2"), CASES)
def test_posterior_agrees_with_a_dense_integral(beta, skip, v1, v2, rng):
    channel = TwoLayerAttention(beta, skip)
    V = np.diag([v1, v2])
    y, omega, _ = labelled(rng, channel, 40, [[0.8, 0.3], [0.3, 0.9]], V)
    phi = margins(y, beta)
    found = channel.posterior(y, omega, V, second_moment=True)
    log_z = channel.log_partition(y, omega, V)
    unit = np.sqrt([v1, v2])[:, None]
    gaps = []
    for i in range(3):
        # with c < 1 the weight may be narrow around s = 0
        total, mean, second = dense(
            channel, phi[i], omega[i], v1, v2, points=150 if skip >= 1 else 400
        )
        gaps.append(
            [np.abs((found.mean[i] - mean) / unit).max(), abs(log_z[i] - total)]
        )
        scale = np.sqrt(np.outer(*[np.repeat(unit[:, 0], 3)] * 2))
        moment = found.second_moment[i].reshape(6, 6) - np.outer(mean, mean)
        assert_allclose(
            moment / scale**2, (second - np.outer(mean, mean)) / scale**2, atol=2e-2
        )
    gaps = np.array(gaps)
    assert np.sqrt(np.mean(gaps[:, 0] ** 2)) < 3e-3
    assert gaps[:, 1].max() < 2e-2
    assert found.error < 3e-3


@pytest.mark.parametrize(
    ("beta", "v1", "v2", "least_share"),
    [(1.0, 1.0, 1.0, 0.9), (1.0, 0.5, 0.2, 0.8), (4.0, 0.05, 1e-4, 0.0)],
)
def test_rules_for_all_of_the_plane_agree_with_cells(beta, v1, v2, least_share, rng):
    """Where they are taken: of labels of a first layer that is hardly known, nearly everywhere."""
    channel = TwoLayerAttention(beta, 1.0)
    V = np.diag([v1, v2])
    y, omega, _ = labelled(rng, channel, 60, (1.5 - v1) * np.eye(2), V)
    samples, weight = sample_parameters(beta, 1.0, y, omega, V)
    found = integrals(samples, weight, try_plane=True, try_gauss_hermite=False)
    cells = integrals(samples, weight, try_gauss_hermite=False)
    fine = integrals(samples, weight, 1.0, try_gauss_hermite=False)
    taken = (found.mean != cells.mean).any(axis=1)
    assert taken.mean() >= least_share
    for exact, sums in zip(fine[:3], found):
        assert_allclose(sums[taken], exact[taken], atol=2e-5 if beta == 1 else 1e-3)


@pytest.mark.parametrize(
    ("skip", "v1", "v2"),
    [
        (0.0, 0.05, 0.05),
        (0.2, 0.1, 0.01),
        (0.2, 0.05, 0.05),
        (0.6, 1.0, 1.0),
        (0.95, 1.0, 0.2),
    ],
)
def test_two_peaks_around_the_singular_line(skip, v1, v2, rng):
    """With c < 1 the label tells s^2 better than the sign of s: both signs are to be weighed."""
    channel = TwoLayerAttention(1.0, skip)
    V = np.diag([v1, v2])
    y, omega, z = labelled(rng, channel, 400, np.eye(2) * 0.3, V)
    u = z[:, 0, :] * SCALE @ J.T
    s = np.sum(1 / (1 + np.exp(-u)), axis=1) + skip - 1
    nearest = np.argsort(np.abs(np.abs(s) - 0.05))[:3]
    found = channel.posterior(y[nearest], omega[nearest], V)
    unit = np.sqrt([v1, v2])[:, None]
    for k, i in enumerate(nearest):
        _, mean, _ = dense(channel, margins(y, 1.0)[i], omega[i], v1, v2, points=250)
        assert np.abs((found.mean[k] - mean) / unit).max() < 5e-3


def test_what_takes_too_many_cells_is_given_up_and_said():
    """A label that is improbable under omega, close to s = 0: a narrow curve in a large square."""
    channel = TwoLayerAttention(2.0, 0.3)
    seen = np.array([[0.5, -(2**-0.5), 0.5], [2**-0.5, 0, -(2**-0.5)]])
    omega = (np.array([[-0.74129038, -1.52414472], [1.17818277, -1.62992381]]) @ seen)[
        None
    ]
    y = np.array([[[2 * -0.08509124, 0], [0, 2 * 0.08741356]]])
    y = y - np.log(np.exp(y).sum(-1, keepdims=True))
    found = channel.posterior(y, omega, np.diag([2.3e-6, 1.6e-7]))
    assert np.isfinite(found.mean).all()
    assert found.error > 0.1


def test_a_weight_outside_the_square_is_said(rng):
    channel = TwoLayerAttention(1.0, 1.0)
    V = np.eye(2) * 1e-3
    y, _, z = labelled(rng, channel, 20, np.eye(2), V)
    near = channel.posterior(y, z, V)
    far = channel.posterior(y, z + 1.0, V)  # thirty prior widths off
    assert near.error < 1e-3
    assert far.error > 0.1


def test_no_samples_are_no_error():
    found = TwoLayerAttention().posterior(
        np.zeros((0, 2, 2)), np.zeros((0, 2, 3)), np.eye(2)
    )
    assert found.mean.shape == (0, 2, 3)
    assert np.isfinite(found.covariance).all()


def test_one_layer_known_leaves_a_linear_problem(rng):
    """V_11 -> 0: the second layer's margins are two linear functions of known coefficients."""
    channel = TwoLayerAttention()
    V = np.diag([1e-10, 0.7])
    y, omega, _ = labelled(rng, channel, 200, np.eye(2), V)
    found = channel.posterior(y, omega, V)
    phi = margins(y, 1.0)
    for i in range(200):
        B = np.eye(2) + softmax(matrix_of(omega[i, 0] * SCALE))
        basis = [B @ matrix_of(e * SCALE) @ B.T for e in np.eye(3)]
        C = np.array(
            [[b[0, 0] - b[0, 1] for b in basis], [b[1, 1] - b[0, 1] for b in basis]]
        )
        expected = omega[i, 1] + C.T @ np.linalg.solve(
            C @ C.T, phi[i] - C @ omega[i, 1]
        )
        assert_allclose(found.mean[i, 1], expected, atol=2e-3)
    assert found.covariance[1, 1] == pytest.approx(0.7 / 3, rel=1e-3)


@pytest.mark.parametrize(
    "V", [[[0.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]], [[1.0, 1.0], [1.0, 1.0]]]
)
def test_refuses_variances_that_are_none(V):
    channel = TwoLayerAttention()
    with pytest.raises(ValueError, match="positive definite"):
        channel.posterior(np.zeros((1, 2, 2)), np.zeros((1, 2, 3)), np.array(V))


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "skip"), [(1.0, 1.0), (2.0, 0.0), (0.5, 2.0)])
def test_information_near_perfect_recovery(beta, skip):
    """Two numbers are seen of six, so that sum_l V_ll I_ll -> 2, and the layer that is known less takes most of them.

    So a balance exists, and counting says where perfect recovery becomes stable: two layers of ``rho (1 - rho / 2)`` unknowns.
    """
    channel = TwoLayerAttention(beta=beta, skip=skip)
    shares = []
    table = {"name": "softmax", "layers": 2, "skip": skip, "beta": beta}
    problem = Problem(
        {"name": "attention-indexed", "tokens": 2},
        table,
        {"name": "wishart", "rho": 0.5},
    )
    assert problem.channel.equations == 2.0
    for ratio in (1e-3, 1.0, 1e3):
        V = 1e-8 * np.diag([1.0, ratio]) / max(1.0, ratio)
        found = channel.information(
            np.array([[1.5, 0.5], [0.5, 1.5]]), V, labels=1 << 12
        )
        parts = np.diagonal(found.value) * np.diagonal(V)
        error = float(np.sum(np.diagonal(found.error) * np.diagonal(V)))
        assert error < 0.04
        assert abs(parts.sum() - 2) < 3 * error + 1e-3
        shares.append(parts[0] / parts.sum())
    assert shares[0] > 0.6
    assert shares[0] > shares[1] > shares[2] < 0.1
    limit = perfect_recovery_threshold(problem)
    assert abs(limit.value - 0.375) < 4 * limit.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skip", "alpha", "share"), [(1.0, 0.1, 0.1), (0.5, 0.05, 1.0)]
)
def test_theory_from_few_accurate_values(skip, alpha, share):
    """What rough values lead to is a fixed point of the accurate recursion: the residual is below the stated error.

    Where s may vanish (c < 1), sampled values jump by a third of their error, and nothing closer can be found.
    """
    table = {"name": "softmax", "layers": 2, "skip": skip}
    problem = Problem(
        {"name": "attention-indexed", "tokens": 2},
        table,
        {"name": "wishart", "rho": 0.3},
    )
    point, _ = CoupledCurve(problem).solve(alpha)
    V = overlap_at(
        problem,
        problem.model.kappa * alpha * information_at(problem, point.Q, point.V).value,
    )[1]
    assert (np.abs(np.diagonal(V - point.V)) < share * point.error).all()
    assert UNFINISHED not in point.method
    # A trajectory's information joins the accurate one at both ends.
    bottom = prior_moments(problem)[1]
    way = tabulated_information(
        problem, bottom, prior_moments(problem)[0] - bottom, point.Q
    )
    between = (bottom + point.Q) / 2
    rest = np.diag(np.diagonal(prior_moments(problem)[0] - between))
    accurate = np.diagonal(information_at(problem, between, rest).value)
    assert_allclose(
        np.diagonal(way(between, rest)), accurate, rtol=0.02 if skip == 1 else 0.05
    )


def test_common_shift_of_the_last_layer_is_invisible(rng):
    channel = TwoLayerAttention()
    V = np.diag([0.4, 0.4])
    y, omega, z = labelled(rng, channel, 50, np.eye(2), V)
    shift = np.zeros((2, 3))
    shift[1] = 5 / SCALE
    assert_allclose(channel.forward(z + shift), y, atol=1e-12)
    moved = channel.posterior(y, omega + shift, V).mean
    assert_allclose(moved, channel.posterior(y, omega, V).mean + shift, atol=1e-9)


def test_equations_of_one_layer_are_the_limit_of_its_information():
    problem = Problem(
        {"name": "attention-indexed", "tokens": 3},
        "softmax",
        {"name": "wishart", "rho": 0.5},
    )
    V = np.array([[1e-9]])
    assert problem.channel.equations == pytest.approx(
        float(V[0, 0] * problem.channel.information(1.5 - V, V).value[0, 0])
    )
    assert problem.channel.sampling is None


@pytest.mark.parametrize("v2", [1e-2, 1e-3, 1e-4])
def test_narrow_second_layer(v2, rng):
    """The first layer has to be known to the width of the second, or else every label is a contradiction."""
    channel = TwoLayerAttention()
    v1 = 0.02
    V = np.diag([v1, v2 * v1])
    y, omega, _ = labelled(rng, channel, 20, [[1.2, 0.4], [0.4, 1.2]], V)
    found = channel.posterior(y, omega, V)
    for i in range(2):
        _, mean, _ = dense(channel, margins(y, 1.0)[i], omega[i], v1, v2 * v1)
        gap = (found.mean[i] - mean) / np.sqrt(np.diagonal(V))[:, None]
        assert np.abs(gap).max() < 3e-3


def test_shared_mean_of_the_layers_gives_a_coupling():
    channel = TwoLayerAttention()
    V = np.eye(2)
    apart = channel.information(np.array([[0.5, 0.0], [0.0, 0.5]]), V, labels=1 << 13)
    shared = channel.information(np.array([[0.5, 0.5], [0.5, 0.5]]), V, labels=1 << 13)
    assert abs(apart.value[0, 1]) < 4 * apart.error[0, 1]
    assert shared.value[0, 1] > 4 * shared.error[0, 1]
    assert_array_equal(shared.value, shared.value.T)
