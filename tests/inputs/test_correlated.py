"""Correlated tokens: latents against their definition, posteriors against plain conditioning, theory against exact estimates,
plain draws and message passing."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr
from smimbench_attention.channels.sequence.perceptron import Probit, Sign

import smimbench
from smimbench.backend.arrays import to_host
from smimbench.interfaces import Capabilities, Inputs
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.registry import using
from smimbench.suite.reader import load_suite
from smimbench.testing import check
from smimbench.testing.context import OverlayRegistry
from smimbench.theory.predictions import solve, theory_point, thresholds
from smimbench.theory.verification import verify_point
from suites.asv.calibration import verify_information
from tests.helpers import run_once, scalar, suite_text, write_suite

THREE = [[1.5, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]]
COVARIANCES = [{"decay": 0.5}, {"decay": -0.9}, {"covariance": THREE}]
SEQUENCE = "sequence-multi-index"
ATTENTION = "attention-indexed"
PRIOR = {SEQUENCE: "gaussian", ATTENTION: {"name": "wishart", "rho": 0.5}}


def problem_of(model, channel, law, tokens=3):
    inputs = "gaussian" if law is None else {"name": "correlated-tokens", **law}
    return Problem({"name": model, "tokens": tokens}, channel, PRIOR[model], inputs)


def matrix_of(law, tokens=3):
    return np.array(
        law.get(
            "covariance",
            [
                [law.get("decay", 0) ** abs(s - t) for t in range(tokens)]
                for s in range(tokens)
            ],
        )
    )


def signal_of(problem, D, rng):
    return problem.prior.sample(rng, problem.components, D)


CHANNELS = [
    (SEQUENCE, {"name": "linear", "noise": 0.3}),
    (SEQUENCE, {"name": "linear", "components": 2, "noise": 0.3}),
    (SEQUENCE, "softmax"),
    (ATTENTION, {"name": "linear", "noise": 0.3}),
    (ATTENTION, {"name": "linear", "noise": 0.3, "noise_convention": "plain"}),
    (ATTENTION, {"name": "softmax", "beta": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize("law", COVARIANCES)
def test_the_published_checks(law):
    item = problem_of(SEQUENCE, "linear", law).inputs
    assert {one.status for one in check(item)} == {"passed"}


@pytest.mark.parametrize("law", COVARIANCES)
def test_labels_are_those_of_the_correlated_tokens(law, rng):
    """From the definitions: ``z = w x / sqrt(D)``, and ``h = (x S x - C tr S) / sqrt(D)``, of the tokens that everybody sees."""
    C = matrix_of(law)
    D = 12
    one = problem_of(SEQUENCE, "linear", law).instance(1.0, D)
    assert_allclose(
        one.labels,
        np.einsum("ntd,pd->npt", one.inputs, one.signal) / np.sqrt(D),
        atol=1e-12,
    )
    two = problem_of(ATTENTION, "softmax", law).instance(0.3, D)
    S = two.signal[0]
    h = (
        np.einsum("nad,de,nbe->nab", two.inputs, S, two.inputs) - C * np.trace(S)
    ) / np.sqrt(D)
    y = h - np.log(np.exp(h).sum(-1, keepdims=True))
    assert_allclose(two.labels, y, atol=1e-11)


@pytest.mark.parametrize("model", [SEQUENCE, ATTENTION])
def test_latents_are_whitened_and_the_adjoint_is_the_transpose(model, rng):
    problem = problem_of(model, "linear", {"covariance": THREE})
    D = 7
    n = 4000
    x = problem.inputs.transform(rng.standard_normal((n, 3, D)))
    S = signal_of(problem, D, rng)
    z = problem.model.forward(x, S)[:, 0]
    size = problem.model.inner(S, S)[0, 0]
    errors = np.std(z[:, :, None] * z[:, None, :], axis=0) / np.sqrt(n)
    assert np.all(
        np.abs(
            np.mean(z[:, :, None] * z[:, None, :], axis=0) - size * np.eye(z.shape[1])
        )
        < 5 * errors
    )
    assert np.all(np.abs(z.mean(0)) < 5 * z.std(0) / np.sqrt(n))
    u = np.linalg.solve(np.linalg.cholesky(THREE), x)
    assert_allclose(z, problem.model.model.forward(u, S)[:, 0], atol=1e-12)
    g = rng.standard_normal((n, 1, problem.model.sites))
    assert_allclose(
        problem.model.adjoint(x, g), problem.model.model.adjoint(u, g), atol=1e-9
    )
    if model == ATTENTION:
        F = rng.standard_normal((1, D, 2))
        z, pull = problem.model.forward_gram(x, F)
        same, other = problem.model.model.forward_gram(u, F)
        assert_allclose(z, same, atol=1e-11)
        assert_allclose(pull(g), other(g), atol=1e-9)


def gaussian_posterior(problem, y, omega, V):
    """Mean and covariance of vec(zeta) for one label ``y = H zeta + noise``, by conditioning of one Gaussian vector."""
    P, C = omega.shape
    name = problem.spec["channel"]["name"]
    noise = problem.spec["channel"].get("noise", 0.0)
    prior = np.kron(V, np.eye(C))
    A = np.kron(np.eye(P), problem.mixing)
    if problem.spec["model"]["name"] == SEQUENCE:
        H = A
        N = noise * np.eye(P * C)
    else:
        pairs = [(a, b) for a in range(3) for b in range(a, 3)]
        scale = np.array([np.sqrt(2.0) if a == b else 1.0 for a, b in pairs])
        H = np.diag(scale) @ A
        plain = problem.spec["channel"].get("noise_convention") == "plain"
        N = noise * np.diag(np.ones(C) if plain else scale**2)
        if (
            name == "softmax"
        ):  # differences of h within each row, and by symmetry all differences
            rows = []
            values = []
            for a in range(3):
                for b in range(3):
                    unit = np.zeros(C)
                    unit[pairs.index((min(a, b), max(a, b)))] += 1
                    unit[pairs.index((min(a, 2), max(a, 2)))] -= 1
                    rows.append(unit @ H)
                    values.append((y[a, b] - y[a, 2]) / problem.spec["channel"]["beta"])
            H = np.array(rows)
            y = np.array(values)
            N = np.zeros((9, 9))
    gain = prior @ H.T @ np.linalg.pinv(H @ prior @ H.T + N, rcond=1e-12)
    mean = omega.ravel() + gain @ (np.ravel(y) - H @ omega.ravel())
    return mean.reshape(P, C), prior - gain @ H @ prior


@pytest.mark.parametrize("law", COVARIANCES)
@pytest.mark.parametrize(
    ("model", "channel"), [one for one in CHANNELS if one[1] != "softmax"]
)
def test_gaussian_posteriors(model, channel, law, rng):
    problem = problem_of(model, channel, law)
    P = problem.components
    C = problem.model.sites
    root = rng.standard_normal((P, P))
    V = root @ root.T + 0.1 * np.eye(P)
    omega = rng.standard_normal((4, P, C))
    y = problem.channel.forward(
        omega + np.linalg.cholesky(V) @ rng.standard_normal((4, P, C)), rng=rng
    )
    found = problem.channel.posterior(y, omega, V, second_moment=True)
    exact = [gaussian_posterior(problem, *each, V) for each in zip(y, omega)]
    assert_allclose(found.mean, [mean for mean, _ in exact], atol=1e-9)
    moments = [covariance + np.outer(mean, mean) for mean, covariance in exact]
    assert_allclose(
        np.reshape(found.second_moment, (4, P * C, P * C)), moments, atol=1e-9
    )
    covariance = np.reshape(exact[0][1], (P, C, P, C))
    assert_allclose(found.covariance, np.einsum("pcqc->pq", covariance) / C, atol=1e-9)
    inverse = np.linalg.inv(V)
    information = (
        C * inverse - inverse @ np.einsum("pcqc->pq", covariance) @ inverse
    )  # E sum g g^T = - E sum dg/domega
    assert_allclose(problem.channel.information(0 * V, V).value, information, rtol=1e-9)


@pytest.mark.parametrize("law", COVARIANCES)
def test_two_points_of_one_layer_on_tokens(law, rng):
    """The label leaves ``+-z``: their weights are the densities of N(A omega, V C)."""
    problem = problem_of(SEQUENCE, "softmax", law)
    C = matrix_of(law)
    omega = rng.standard_normal((5, 1, 3))
    V = scalar(0.4)
    z = omega + np.sqrt(0.4) * rng.standard_normal((5, 1, 3))
    found = problem.channel.posterior(
        problem.channel.forward(z), omega, V, second_moment=True
    )
    mean = []
    for zeta, centre in zip(z[:, 0], omega[:, 0]):
        raw = problem.mixing @ zeta
        middle = problem.mixing @ centre
        logs = [
            -(s * raw - middle) @ np.linalg.solve(0.4 * C, s * raw - middle) / 2
            for s in (1, -1)
        ]
        mean.append(zeta * np.tanh((logs[0] - logs[1]) / 2))
    assert_allclose(found.mean[:, 0], mean, rtol=1e-9)
    assert_allclose(
        found.second_moment[:, 0, :, 0], z[:, 0, :, None] * z[:, 0, None, :], rtol=1e-9
    )


@pytest.mark.parametrize("noise", [0.01, 0.5])
@pytest.mark.parametrize("law", COVARIANCES)
def test_theory_is_the_error_of_the_exact_estimate(law, noise):
    """Linear labels of a Gaussian signal: the posterior mean is a linear solve in the correlated tokens. It shares no code."""
    D = 600
    alpha = 0.4
    problem = problem_of(SEQUENCE, {"name": "linear", "noise": noise}, law)
    errors = []
    rng = np.random.default_rng(3)
    for _ in range(4):
        x = np.linalg.cholesky(matrix_of(law)) @ rng.standard_normal(
            (int(alpha * D), 3, D)
        )
        X = x.reshape(-1, D) / np.sqrt(D)
        w = rng.standard_normal(D)
        y = X @ w + np.sqrt(noise) * rng.standard_normal(len(X))
        errors.append(
            np.mean((w - np.linalg.solve(X.T @ X + noise * np.eye(D), X.T @ y)) ** 2)
        )
    (point,) = solve(problem, [alpha])
    spread = np.std(errors, ddof=1) / 2 + 2 / D
    assert abs(np.mean(errors) - point.mse[0]) < 4 * spread


class Both(Inputs):
    """Correlated tokens whose features have a spectrum."""

    name = "both"
    version = 1
    reference = "this test"
    capabilities = Capabilities()
    gaussian = True
    shape = (None, 400)

    def token_covariance(self, tokens):
        """Covariance of the tokens."""
        return matrix_of({"decay": 0.6}, tokens)

    def feature_variances(self, dimension):
        """Variances of the features."""
        return np.linspace(0.1, 1.9, dimension)

    def transform(self, z):
        """Tokens from normal numbers."""
        return (
            np.linalg.cholesky(self.token_covariance(z.shape[1]))
            @ z
            * np.sqrt(self.feature_variances(z.shape[2]))
        )


def test_inputs_of_ones_own_may_be_correlated_and_have_a_spectrum():
    with using(OverlayRegistry({"inputs": Both()})):
        problem = Problem(
            {"name": SEQUENCE, "tokens": 3},
            {"name": "linear", "noise": 0.2},
            "gaussian",
            "both",
        )
    errors = []
    for k in range(6):
        instance = problem.instance(0.5, 400, k)
        X = instance.inputs.reshape(-1, 400) / 20
        y = instance.labels.ravel()
        w = np.linalg.solve(X.T @ X + 0.2 * np.eye(400), X.T @ y)
        errors.append(
            np.mean(Both().feature_variances(400) * (w - instance.signal[0]) ** 2)
        )
    (point,) = solve(problem, [0.5])
    assert (
        abs(np.mean(errors) - point.mse[0])
        < 4 * np.std(errors, ddof=1) / np.sqrt(6) + 2 / 400
    )


@pytest.mark.parametrize("law", COVARIANCES)
@pytest.mark.parametrize("model", [SEQUENCE, ATTENTION])
@pytest.mark.parametrize("channel", ["linear", "softmax"])
def test_noiseless_labels_are_as_informative_as_of_independent_tokens(
    model, channel, law
):
    """They show as many combinations of the signal: theory is the same, to rounding."""
    mixed, plain = (problem_of(model, channel, one) for one in (law, None))
    alphas = [0.05, 0.1, 0.2, 0.3, 0.6]
    for one, other in zip(solve(mixed, alphas), solve(plain, alphas)):
        assert one.mse == pytest.approx(other.mse, abs=1e-10)
    assert json.dumps(thresholds(mixed).document()) == json.dumps(
        thresholds(plain).document()
    )


@pytest.mark.slow
@pytest.mark.parametrize("law", COVARIANCES)
@pytest.mark.parametrize(("model", "channel"), CHANNELS)
def test_theory_holds_against_plain_draws(model, channel, law):
    problem = problem_of(model, channel, law)
    for point in solve(problem, [0.15, 0.4]):
        for one in verify_point(problem, theory_point(problem, point), 0.05):
            assert abs(one.z) < 4, one


@pytest.mark.parametrize(("model", "channel", "alpha", "D"), [
    (SEQUENCE, {"name": "linear", "noise": 0.2}, 0.5, 500),
    pytest.param(SEQUENCE, "softmax", 0.3, 1000, marks=pytest.mark.slow),
    (ATTENTION, {"name": "linear", "noise": 0.2, "noise_convention": "plain"}, 0.15, 60), (ATTENTION, "softmax", 0.05, 60),
])  # fmt: skip
def test_message_passing_lands_on_theory(model, channel, alpha, D):
    problem = problem_of(model, channel, {"decay": 0.7})
    (point,) = solve(problem, [alpha])
    from smimbench_attention.algorithms.gamp import Gamp

    errors = [
        run_once(problem, problem.instance(alpha, D, k), Gamp()).metrics["mse"][0]
        for k in range(5)
    ]
    # d is small, and close to perfect recovery one run in a few stops early
    assert np.median(errors) == pytest.approx(point.mse[0], rel=0.2)


def test_gradients_do_not_know_of_whitening(rng):
    """The loss and its gradient with respect to the signal are those of the correlated tokens."""
    from smimbench_attention.algorithms.gradient.loss import loss_gradient

    problem = problem_of(SEQUENCE, "softmax", {"covariance": THREE})
    instance = problem.instance(1.0, 10)
    w = rng.standard_normal((1, 10))
    targets = problem.channel.observable(instance.labels)

    def loss(w):
        z = np.einsum("ntd,pd->npt", instance.inputs, w)[:, 0] / np.sqrt(10)
        h = z[:, :, None] * z[:, None, :]
        p = np.exp(h) / np.exp(h).sum(-1, keepdims=True)
        return np.sum((p - targets) ** 2)

    found = loss_gradient(problem, instance.inputs, targets, w)
    assert found.loss == pytest.approx(loss(w))
    step = 1e-6 * np.eye(10)[3]
    assert found.gradient[0, 3] == pytest.approx(
        (loss(w + step) - loss(w - step)) / 2e-6, rel=1e-6
    )


@pytest.mark.parametrize("law", COVARIANCES)
def test_ridge_is_optimal_for_a_gaussian_signal_and_predicts_it(law):
    """Of correlated tokens the combinations that are observed have unlike noise."""
    from smimbench_attention.algorithms.ridge import Ridge

    problem = problem_of(SEQUENCE, {"name": "linear", "noise": 0.2}, law)
    (point,) = solve(problem, [0.4])
    assert Ridge().theory(problem, 0.4).mse == pytest.approx(point.mse, rel=1e-9)


@pytest.mark.parametrize("model", [SEQUENCE, ATTENTION])
def test_the_softmax_in_place_of_hardmax_sees_the_same_latents(model, rng):
    from smimbench_attention.algorithms.gradient.loss import surrogate

    problem = problem_of(model, "hardmax", {"decay": 0.7}, 2)
    z = rng.standard_normal((50, 1, problem.model.sites))
    steep = surrogate(problem, 1e4)
    wanted = problem.channel.observable(problem.channel.forward(z))
    assert np.mean(np.abs(steep.observable(steep.forward(z)) - wanted) > 0.1) < 0.02


def test_a_matrix_is_a_value_and_a_list_of_decays_an_axis(tmp_path):
    def suite(written):
        text = suite_text(f'model = {{ name = "{SEQUENCE}", tokens = 2 }}\nchannel = "linear"\nprior = "gaussian"\n'
                          f'inputs = {{ name = "correlated-tokens", {written} }}', [1.0], 20, 1, 'name = "gamp"')  # fmt: skip
        return load_suite(write_suite(tmp_path, text))

    assert len(suite("covariance = [[1, 0.5], [0.5, 1]]").plans) == 1
    assert (
        len(suite("covariance = [[[1, 0.5], [0.5, 1]], [[1, 0], [0, 1]]]").plans) == 2
    )
    assert len(suite("decay = [0.1, 0.2, 0.3]").plans) == 3
    for written, message in (
        ("decay = 1.0", "inputs.decay: must be between -1 and 1"),
        (
            "covariance = [[1, 2], [2, 1]]",
            "inputs.covariance: must be symmetric and positive definite",
        ),
        (
            "covariance = [[1, 0.5], [0.4, 1]]",
            "inputs.covariance: must be symmetric and positive definite",
        ),
        (
            "covariance = [[1, 0.5], [0.5, 2]]",
            "inputs.covariance: must have mean 1 along its diagonal, got 1.5",
        ),
        (
            "covariance = [[1.0]]",
            "model.tokens: must be 1, the number of tokens of the inputs, got 2",
        ),
        ("covariance = [1.0, 0.5]", "inputs.covariance"),
        (
            "covariance = [[1, 0.5], [0.5]]",
            "inputs.covariance: must be a square matrix",
        ),
        ("covariance = []", "inputs.covariance: must be a square matrix, got []"),
        (
            "decay = 0.3, covariance = [[1, 0.5], [0.5, 1]]",
            "inputs.decay: must be left out where a covariance is given",
        ),
    ):
        with pytest.raises(smimbench.suite.SuiteError) as error:
            suite(written)
        assert message in str(error.value)


@pytest.mark.parametrize(("model", "channel", "tokens"), [
    (SEQUENCE, "sign", 2), (SEQUENCE, {"name": "probit", "noise": 0.5}, 2), (SEQUENCE, "hardmax", 2), (ATTENTION, "hardmax", 2),
])  # fmt: skip
def test_a_channel_with_a_likelihood_is_integrated(model, channel, tokens, rng):
    """Its posterior is the mean of the draws of z that give the label."""
    problem = problem_of(model, channel, {"decay": 0.7}, tokens)
    omega = rng.standard_normal((1, 1, problem.model.sites))
    V = scalar(0.6)
    z = omega + np.sqrt(0.6) * rng.standard_normal((400_000, 1, problem.model.sites))
    y = problem.channel.forward(z, rng=rng)
    one = y[:1]
    kept = z[(y == one).reshape(len(y), -1).all(axis=1)]
    found = problem.channel.posterior(one, omega, V)
    assert np.all(
        np.abs(kept.mean(0) - found.mean[0])
        < 0.02 * np.sqrt(0.6) + 5 * kept.std(0) / np.sqrt(len(kept))
    )


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "method"), [(2, "quadrature"), (3, "Monte Carlo")])
@pytest.mark.parametrize("q", [0.2, 0.7])
def test_information_of_an_integrated_channel_says_how_it_was_made_and_holds(
    q, tokens, method
):
    """Against plain draws, which would see 10%; what curves do with information that is sampled has tests of its own."""
    problem = problem_of(SEQUENCE, "sign", {"decay": 0.7}, tokens)
    Q = scalar(q)
    V = scalar(1 - q)
    assert method in problem.channel.information(Q, V).method
    for one in verify_information(problem, Q, V, 5000):
        assert abs(one.z) < 4, one
        assert abs(replace(one, printed=1.1 * one.printed).z) > 4, one


def by_gauss_hermite(mixing, q, v, noise):
    """Information of probit labels of two tokens, from the definition: means over latents in a mean over their prior means."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    points = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / (2 * np.pi)
    z = (np.sqrt(q) * points[:, None] + np.sqrt(v) * points) @ mixing.T
    total = 0.0
    for label in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        joint = weights * ndtr(np.array(label) * z / np.sqrt(noise)).prod(axis=-1)
        score = joint @ points / np.sqrt(v)
        total += weights @ (np.sum(score**2, axis=1) / joint.sum(axis=1))
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("q", "v"), [(0.0, 1.0), (0.3, 0.7), (0.8, 0.2)])
@pytest.mark.parametrize("covariance", [[[1.2, 0.7], [0.7, 0.8]], [[1, -0.9], [-0.9, 1]]])  # fmt: skip
def test_information_of_two_correlated_signs_is_that_of_its_definition(
    q, v, covariance
):
    problem = problem_of(
        SEQUENCE, {"name": "probit", "noise": 0.5}, {"covariance": covariance}, 2
    )
    found = problem.channel.information(scalar(q), scalar(v))
    exact = by_gauss_hermite(problem.mixing, q, v, 0.5)
    assert found.value[0, 0] == pytest.approx(exact, rel=2e-9)
    assert found.error[0, 0] < 1e-9


@pytest.mark.parametrize("v", [0.7, 1e-6, 1e-18, 1e-40, 0.0])
@pytest.mark.parametrize("channel", [Sign(tokens=2), Probit(tokens=2, noise=1e-3)])
def test_two_signs_are_those_of_independent_tokens_where_nothing_mixes(channel, v):
    Q = scalar(0.8)
    V = scalar(v)
    found = channel.mixed(np.eye(2)).information(Q, V)
    assert_allclose(found.value, channel.information(Q, V).value, rtol=1e-10)


def test_signs_of_narrow_posteriors_are_independent():
    """Labels are in doubt one at a time: each token has the information of a sign of its own latent."""
    mixing = np.linalg.cholesky([[1.2, 0.7], [0.7, 0.8]])
    found = Sign(tokens=2).mixed(mixing).information(scalar(1), scalar(1e-12))
    assert_allclose(
        found.value, Sign(tokens=2).information(scalar(1), scalar(1e-12)).value, rtol=1e-5
    )  # fmt: skip


def test_what_pairs_labels_with_latents_one_by_one_refuses_mixed_ones():
    from smimbench_attention.algorithms.erm import Erm

    assert (
        "for each latent of independent tokens, as tokens are correlated"
        in Erm().refuses(problem_of(SEQUENCE, "linear", {"decay": 0.5}))
    )
    assert Erm().refuses(problem_of(SEQUENCE, "linear", None)) is None


def test_a_channel_without_a_posterior_for_them_is_refused():
    with pytest.raises(
        ProblemError,
        match=r"channel\.name: channel 'softmax' has no posterior for correlated tokens",
    ):
        problem_of(SEQUENCE, {"name": "softmax", "layers": 2}, {"decay": 0.5}, tokens=2)


def test_a_device_gives_the_same_numbers(backend, rng):
    for model, channel in CHANNELS:
        problem = problem_of(model, channel, {"covariance": THREE})
        P = problem.components
        C = problem.model.sites
        z = rng.standard_normal((3, P, C))
        omega = rng.standard_normal((3, P, C))
        V = 0.3 * np.eye(P)
        y = problem.channel.forward(z, rng=np.random.default_rng(1))
        host = problem.channel.posterior(y, omega, V, second_moment=True)
        there = problem.channel.posterior(
            *map(backend.asarray, (y, omega, V)), second_moment=True
        )
        for one, other in zip(host[:3], there[:3]):
            assert_allclose(one, to_host(other), atol=1e-10)


def test_generalization_errors_of_linear_labels_against_draws(rng):
    for model in (SEQUENCE, ATTENTION):
        problem = problem_of(
            model, {"name": "linear", "noise": 0.2}, {"covariance": THREE}
        )
        sites = problem.model.sites
        Q = np.array([[0.7]])
        V = np.array([[0.4]])
        found = problem.channel.generalization_error(Q, V)
        gap = problem.channel.predict(
            np.sqrt(0.4) * rng.standard_normal((20_000, 1, sites))
        ).reshape(20_000, -1)
        squares = np.sum(gap**2, axis=1)
        assert abs(squares.mean() - found["bayes"].value) < 5 * squares.std() / np.sqrt(
            20_000
        )
