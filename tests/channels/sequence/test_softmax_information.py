"""Information of deep attention: control variates, limits and identities."""

import numpy as np
import pytest
from smimbench_attention.channels.sequence.softmax import SequenceSoftmax, deep
from smimbench_attention.channels.sequence.softmax import information as over_labels
from smimbench_attention.channels.sequence.softmax.network import Network, output

from smimbench.derive import label_means
from smimbench.derive.sampled_information import _control_variates, without_overlap
from tests.channels.sequence.deep_attention import diagonal


@pytest.mark.slow
def test_labels_of_two_layers_are_as_many_as_their_error_takes():
    network = Network(2, 2, 1.0)
    few, some, many = (
        over_labels.default_labels(network, *diagonal(*q))
        for q in ((0.9995, 0.999996), (0.98, 0.9999), (0.1, 0.98))
    )
    assert over_labels.FEWEST_LABELS <= few < some < many <= over_labels.MOST_LABELS
    found = SequenceSoftmax(tokens=2, layers=2).information(*diagonal(0.98, 0.9999))
    assert np.all(
        np.diagonal(found.error)
        < 1.5 * over_labels.TARGET_ERROR * np.diagonal(found.value)
    )


@pytest.mark.slow
def test_runs_of_a_sampled_posterior_have_independent_errors():
    # they share their Gaussians, not their points: the mean product of their errors is far below the mean square
    z = np.random.default_rng(3).standard_normal((200, 3, 2))
    V = np.diag([0.6, 0.7, 0.01])
    omega = z - np.sqrt(np.diagonal(V))[:, None] * np.random.default_rng(
        4
    ).standard_normal(z.shape)
    u = output(z, 1.0)
    (exact,) = deep.integrate(u, omega, V, 1.0, 0.0, 1 << 14, seed=9)
    one, two = (
        (run.shift - exact.shift) / np.sqrt(np.diagonal(V))[:, None]
        for run in deep.integrate(u, omega, V, 1.0, 0.0, 1024, runs=2)
    )
    assert abs((one * two).mean()) < 0.25 * np.sqrt((one**2).mean() * (two**2).mean())


def test_error_is_honest():
    channel = SequenceSoftmax(tokens=2, layers=2)
    Q = np.stack([diagonal(*q)[0] for q in ((0.1, 0.3), (0.5, 0.9), (0.95, 0.999))])
    V = np.eye(2) - Q
    few, many = (channel.information(Q, V, labels=labels) for labels in (1024, 16384))
    used = few.value > 0.0
    score = (few.value - many.value)[used] / np.hypot(few.error, many.error)[used]
    assert np.all(np.abs(score) < 4.5)
    assert np.all(many.error[used] < 0.6 * few.error[used])
    assert np.all(many.error[used] < 0.03 * many.value[used])
    assert "Monte Carlo" in few.method


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "q"), [(2, 0.2), (2, 0.8), (3, 0.8)])
def test_strong_skip_leaves_one_layer(layers, q):
    # c -> infinity: u -> (1 + c)^{L-1} z_L; nothing is left to say about the others
    channel = SequenceSoftmax(tokens=2, layers=layers, skip=1e5)
    Q, V = diagonal(*([0.3] * (layers - 1)), q)
    found = channel.information(Q, V, labels=4096 if layers == 2 else 512)
    single = SequenceSoftmax(tokens=2).information(Q[-1:, -1:], V[-1:, -1:])
    assert (
        abs(found.value[-1, -1] - single.value[0, 0])
        < 4.5 * found.error[-1, -1] + 1e-3 * single.value[0, 0]
    )
    assert np.all(
        np.abs(np.diagonal(found.value)[:-1])
        < 1e-2 + 4.5 * np.diagonal(found.error)[:-1]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "tokens"), [(2, 2), (3, 2), (2, 3)])
def test_small_error_counts_equations(layers, tokens):
    # V -> 0: a label is M linear equations, so tr(V Phi) = M whatever the network
    v = 1e-7 * np.array([1.0, 0.3, 0.1][:layers])
    V = np.diag(v)
    found = SequenceSoftmax(tokens=tokens, layers=layers).information(
        np.eye(layers) - V, V, labels=512
    )
    trace = np.sum(v * np.diagonal(found.value))
    error = np.sum(v * np.diagonal(found.error))
    assert abs(trace - tokens) < 4.5 * error + 0.01
    assert error < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skip", "q", "labels"),
    [(1.0, (0.0, 0.5), 8192), (0.3, (0.0, 0.9), 8192), (1.0, (0.0, 0.0, 0.8), 2048)],
)
def test_table_and_integration_agree(skip, q, labels):
    # the table knows nothing of the integrators: it uses that B has two parameters
    Q, V = diagonal(*q)
    channel = SequenceSoftmax(tokens=2, layers=len(q), skip=skip)
    own = over_labels.label_averages(Network(len(q), 2, skip), Q, V, labels)
    for table, value, error in (
        (channel.information(Q, V), own[0], own[1]),
        (channel.susceptibility(Q, V), own[2], own[3]),
    ):
        difference = np.abs(table.value - value)
        assert np.all(difference <= 4.5 * np.hypot(error, table.error) + 1e-12)
        assert np.max(error) < 0.15 * np.max(value)
        assert "quadrature" in table.method


@pytest.mark.slow
def test_susceptibility_of_three_tokens():
    # I_22 = lambda_22 q to first order, and lambda_aa <= M (M + 1) by Jensen's inequality
    channel = SequenceSoftmax(tokens=3, layers=2, skip=2.0)
    found = channel.susceptibility(*diagonal(0.0, 0.0), labels=256)
    slope = channel.information(*diagonal(0.0, 3e-3), labels=512)
    error = np.hypot(found.error[1, 1], slope.error[1, 1] / 3e-3)
    assert abs(slope.value[1, 1] / 3e-3 - found.value[1, 1]) < 4.5 * error
    assert found.value[0, 0] < found.value[1, 1] < 12.0 + 4.5 * found.error[1, 1]
    assert found.value[0, 1] ** 2 <= found.value[0, 0] * found.value[1, 1]


@pytest.mark.slow
def test_error_is_the_scatter_of_independent_labels_and_points():
    """Where posteriors are sampled: twelve disjoint sets of labels and points scatter as much as they say."""
    Q, V = diagonal(0.4, 0.5, 0.98)
    network = Network(3, 2, 1.0)
    found = []
    for k in range(12):
        found.append(
            label_means(
                lambda s, k=k: over_labels._draw_labels(network, Q, V, 24, 8 * k + s),
                Q,
                V,
                scrambles=8,
            )
        )
    values, errors = (
        np.diagonal(np.stack([one[i] for one in found]), axis1=1, axis2=2)
        for i in (0, 1)
    )
    ratio = values.std(0, ddof=1) / np.sqrt((errors**2).mean(0))
    assert np.all((ratio > 0.45) & (ratio < 1.7))
    whole = SequenceSoftmax(tokens=2, layers=3).information(Q, V)
    difference = values.mean(0) - np.diagonal(whole.value)
    assert np.all(
        np.abs(difference)
        < 4 * np.hypot(values.std(0, ddof=1) / np.sqrt(12), np.diagonal(whole.error))
    )


@pytest.mark.slow
def test_symmetry_is_exact():
    channel = SequenceSoftmax(tokens=2, layers=3)
    found = channel.information(*diagonal(0.2, 0.4, 0.8), labels=1)
    off = ~np.eye(3, dtype=bool)
    assert np.all(found.value[off] == 0.0)
    assert np.all(np.diagonal(found.value) > 0.0)
    blind = SequenceSoftmax(tokens=3, layers=2).information(
        *diagonal(0.0, 0.8), labels=256
    )
    assert blind.value[0, 0] == blind.error[0, 0] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "tokens", "q"),
    [(2, 2, (0.3, 0.8)), (3, 2, (0.3, 0.5, 0.8)), (2, 3, (0.4, 0.8))],
)
def test_control_variates_have_mean_zero(layers, tokens, q):
    Q, V = diagonal(*q)
    Q = Q + 0.05 * (1 - np.eye(layers))
    V = V - 0.05 * (1 - np.eye(layers))
    network = Network(layers, tokens, 1.0)
    labels = 64 if layers == tokens == 2 else 16
    zeros = np.stack(
        [
            _control_variates(
                over_labels._draw_labels(network, Q, V, labels, k),
                V,
                without_overlap(Q),
            ).mean(0)
            for k in range(16)
        ]
    )
    spread = zeros.std(0, ddof=1) / np.sqrt(16)
    used = spread > 1e-6  # products with the mean of an unknown layer vanish
    scores = zeros.mean(0)[used] / spread[used]
    assert np.all(np.abs(scores) < 5.0)


def test_susceptibility_of_one_layer_is_its_bound():
    for tokens in (2, 3, 5):
        found = SequenceSoftmax(tokens=tokens).susceptibility(
            np.zeros((1, 1)), np.eye(1)
        )
        assert found.value[0, 0] == tokens * (tokens + 1)
    assert (
        SequenceSoftmax(tokens=2)
        .susceptibility(0.3 * np.eye(1), 0.7 * np.eye(1))
        .value[0, 0]
        == 0.0
    )


def test_weak_recovery_of_the_last_layer():
    # Phi_22 -> F q with F = E sum (E[z z^T | y] - I)^2 at omega = 0, and F <= M (M + 1)
    channel = SequenceSoftmax(tokens=2, layers=2, skip=2.0)
    Q, V = diagonal(0.0, 1e-3)
    found = channel.information(Q, V)
    rng = np.random.default_rng(0)
    z = rng.standard_normal((8000, 2, 2))
    posterior = channel.posterior(
        channel.forward(z), np.zeros_like(z), np.eye(2), second_moment=True
    )
    G = posterior.second_moment[:, 1, :, 1, :] - np.eye(2)
    sample = (G**2).sum((1, 2))
    F = sample.mean()
    error = sample.std() / np.sqrt(len(z))
    assert abs(found.value[1, 1] / 1e-3 - F) < 4.5 * np.hypot(
        error, found.error[1, 1] / 1e-3
    )
    assert 6.0 + 4.5 * error > F
