"""Channels given by their likelihood alone, against closed forms that are coded here."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, optimize, stats
from scipy.special import log_ndtr, ndtr

from smimbench.backend.arrays import namespace, to_host
from smimbench.derive import complete_channel, predict
from smimbench.derive.channel import LARGEST_DIMENSION, IntegratedChannel
from smimbench.interfaces import Capabilities, Channel, ParameterError
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.registry import Entry, Registry, using
from smimbench.theory.generalization import generalization_error
from smimbench.theory.scalar import scalar_curve
from tests.conftest import assert_placed
from tests.helpers import scalar


class Sign(Channel):
    """Signs of all latents of the first component."""

    name = "own-sign"

    def forward(self, z, *, rng=None):
        xp = namespace(z)
        return xp.astype(z[:, 0, :] > 0, xp.int64)

    def log_likelihood(self, y, z):
        xp = namespace(z)
        agree = self.forward(z) == y
        right = functools.reduce(
            xp.logical_and, (agree[:, k] for k in range(agree.shape[1]))
        )
        zero = xp.zeros(right.shape, dtype=z.dtype, device=z.device)
        return xp.where(right, zero, zero - math.inf)


class Probit(Channel):
    """Sign of one noisy latent, as a floating-point number."""

    name = "own-probit"

    def __init__(self, noise=0.5):
        self.noise = noise

    def forward(self, z, *, rng=None):
        return np.sign(z[:, 0, 0] + self.noise * rng.standard_normal(len(z)))

    def log_likelihood(self, y, z):
        return log_ndtr(y * z[:, 0, 0] / self.noise)


class Sum(Channel):
    """A weighted sum of all latents with Gaussian noise; the posterior is Gaussian."""

    name = "sum"

    def __init__(self, components, sites, noise):
        self.components = components
        self.noise = noise
        self.weights = np.random.default_rng(5).standard_normal((components, sites))

    def forward(self, z, *, rng=None):
        return (self.weights * z).sum((1, 2)) + self.noise * rng.standard_normal(len(z))

    def log_likelihood(self, y, z):
        return -0.5 * ((y - (self.weights * z).sum((1, 2))) / self.noise) ** 2


class Modulus(Probit):
    """|z| with Gaussian noise."""

    name = "modulus"

    def forward(self, z, *, rng=None):
        return np.abs(z[:, 0, 0]) + self.noise * rng.standard_normal(len(z))

    def log_likelihood(self, y, z):
        return -0.5 * ((y - np.abs(z[:, 0, 0])) / self.noise) ** 2


def sites(count: int) -> SimpleNamespace:
    return SimpleNamespace(sites=count)


def random_cases(rng, n, P, C):
    root = rng.standard_normal((P, P))
    return rng.standard_normal((n, P, C)), root @ root.T / P + 0.1 * np.eye(P)


def low_rank(channel) -> Problem:
    """A problem of one token with a Gaussian prior and this very channel."""
    taken = {
        name: getattr(channel, name, None) for name in ("forward", "log_likelihood")
    }
    item = type(
        "Item",
        (),
        taken | {"__new__": lambda cls: channel, "name": channel.name, "version": 1},
    )
    item.reference, item.capabilities = "here", Capabilities()
    registry = Registry(third_party=False)
    registry._entries.append(Entry("channel", channel.name, item, "here"))
    with using(registry):
        return Problem(
            {"name": "sequence-multi-index", "tokens": 1}, channel.name, "gaussian"
        )


@pytest.mark.parametrize(
    ("P", "C", "noise"),
    [(1, 1, 1e-3), (1, 1, 2.0), (1, 3, 0.05), (2, 2, 0.5), (3, 2, 0.05), (3, 4, 0.5)],
)
def test_a_gaussian_posterior_in_up_to_twelve_dimensions(rng, P, C, noise):
    n = 40
    channel = Sum(P, C, noise)
    omega, V = random_cases(rng, n, P, C)
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((n, P, C))
    y = channel.forward(z, rng=rng)
    found = IntegratedChannel(channel, C).posterior(y, omega, V, second_moment=True)
    response = V @ channel.weights
    variance = (channel.weights * response).sum() + noise**2
    gap = (y - (channel.weights * omega).sum((1, 2)))[:, None, None]
    mean = omega + gap * response / variance
    scale = np.sqrt(np.diag(V))[:, None]
    miss = math.sqrt((((found.mean - mean) / scale) ** 2).mean())
    assert miss < max(0.03, 1e-3 * C)
    assert miss < 4 * found.error + 1e-6
    assert np.abs(
        found.covariance - (V - response @ response.T / variance / C)
    ).max() < 0.05 * np.trace(V)
    joint = (
        np.einsum("pq,cd->pcqd", V, np.eye(C))
        - np.einsum("pc,qd->pcqd", response, response) / variance
    )
    moment = joint + mean[:, :, :, None, None] * mean[:, None, None, :, :]
    size = (scale * scale[:, 0])[None, :, None, :, None] * (
        1 + np.abs(omega).max()
    ) ** 2
    assert (np.abs(found.second_moment - moment) / size).mean() < 0.02


def test_truncated_normal_laws_and_the_gradient_of_the_log_partition(rng):
    channel = IntegratedChannel(Sign(), 2)
    V = scalar(0.7)
    omega = 2 * rng.standard_normal((60, 1, 2))
    y = channel.forward(omega + math.sqrt(0.7) * rng.standard_normal((60, 1, 2)))
    found = channel.posterior(y, omega, V)
    sign = 2 * y[:, None, :] - 1
    x = sign * omega / math.sqrt(0.7)
    ratio = np.exp(stats.norm.logpdf(x) - log_ndtr(x))
    assert np.abs(found.mean - omega - sign * math.sqrt(0.7) * ratio).max() < 0.05
    assert (
        np.sqrt(((found.mean - omega - sign * math.sqrt(0.7) * ratio) ** 2).mean())
        < 0.01
    )
    assert found.covariance[0, 0] == pytest.approx(
        0.7 * (1 - ratio * (x + ratio)).mean(), abs=5e-3
    )
    assert (
        np.abs(channel.log_partition(y, omega, V) - log_ndtr(x).sum((1, 2))).max()
        < 0.05
    )
    one = IntegratedChannel(Probit(), 1)
    omega = omega[:, :, :1]
    y = sign[:, 0, 0]
    step = 1e-3
    slope = (
        one.log_partition(y, omega + step, V) - one.log_partition(y, omega - step, V)
    ) / (2 * step)
    assert (
        np.abs(slope - (one.posterior(y, omega, V).mean - omega)[:, 0, 0] / 0.7).max()
        < 1e-3
    )


def test_equal_inputs_give_equal_results_and_are_not_modified(rng):
    channel = IntegratedChannel(Sum(2, 2, 0.1), 2)
    omega, V = random_cases(rng, 20, 2, 2)
    y = channel.forward(omega, rng=rng)
    kept = y.copy(), omega.copy(), V.copy()
    first, second = (channel.posterior(y, omega, V).mean for _ in range(2))
    assert (first == second).all()
    assert all((a == b).all() for a, b in zip((y, omega, V), kept))


def test_every_namespace(backend):
    channel = IntegratedChannel(Sign(), 2)
    host = np.random.default_rng(4).standard_normal((9, 1, 2))
    omega = backend.asarray(host)
    V = backend.asarray(scalar(0.5))
    y = channel.forward(omega)
    found = channel.posterior(y, omega, V, second_moment=True)
    assert_placed(found.mean, backend, (9, 1, 2))
    assert_placed(found.covariance, backend, (1, 1))
    assert_placed(found.second_moment, backend, (9, 1, 2, 1, 2))
    assert_placed(channel.log_partition(y, omega, V), backend, (9,))
    plain = channel.posterior(to_host(y), host, scalar(0.5))
    assert np.abs(to_host(found.mean) - plain.mean).max() < 1e-9


def sign_information(Q: float, V: float, noise: float = 0.0) -> float:
    """``E g^2`` of the sign of ``z + noise``: ``2 E phi(x)^2 / Phi(x) / (V + noise^2)``, by quadrature."""
    total = V + noise**2

    def integrand(w):
        x = w * math.sqrt(Q / total)
        return stats.norm.pdf(w) * math.exp(2 * stats.norm.logpdf(x) - log_ndtr(x))

    return 2 * integrate.quad(integrand, -12, 12, limit=400, epsabs=1e-13)[0] / total


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_error_of_the_sign_channel_is_that_of_its_closed_form(noise):
    channel = Sign() if noise == 0 else Probit(noise)
    problem = low_rank(channel)
    for alpha in (0.4, 1.5, 6.0):

        def gap(V, alpha=alpha):
            return V - 1 / (1 + alpha * sign_information(1 - V, V, noise))

        exact = optimize.brentq(gap, 1e-8, 1 - 1e-12)
        found = scalar_curve(problem).predict([alpha])[0]
        assert found.V[0, 0] == pytest.approx(exact, abs=1e-3)
        assert found.V[0, 0] == pytest.approx(exact, abs=3 * found.error[0] + 1e-6)


def test_errors_of_prediction_of_the_sign():
    found = generalization_error(low_rank(Sign()), scalar(0.6), scalar(0.4))
    # Two signs of latents with correlation c differ with probability arccos(c) / pi; labels are 0 and 1.
    assert found["plugin"].value == pytest.approx(
        math.acos(math.sqrt(0.6)) / math.pi, abs=2e-3
    )
    assert found["bayes"].value == pytest.approx(math.acos(0.6) / math.pi / 2, abs=2e-3)
    assert found["constant"].value == pytest.approx(0.25, abs=2e-3)


def test_thresholds_of_a_label_that_sees_no_sign():
    problem = low_rank(Modulus(0.3))
    assert problem.channel.symmetry == "signs"

    def slope(y):
        weights = np.exp(
            -0.5 * ((y - np.abs(GRID)) / 0.3) ** 2 - GRID**2 / 2
        ) / math.sqrt(2 * math.pi * 0.09)
        norm = weights.sum() * STEP / math.sqrt(2 * math.pi)
        return norm * ((weights * GRID**2).sum() / weights.sum() - 1) ** 2

    exact = 1 / integrate.quad(slope, -2, 9, limit=200)[0]
    weak = scalar_curve(problem).weak_limit()
    assert weak.value == pytest.approx(exact, rel=1e-5)
    assert abs(weak.value - exact) < 3 * weak.error < 3e-4
    faint = problem.channel.information(scalar(1e-4), scalar(1 - 1e-4))
    assert faint.value[0, 0] * 1e4 == pytest.approx(1 / exact, rel=2e-3)


GRID = np.linspace(-9, 9, 4001)
STEP = GRID[1] - GRID[0]


@pytest.mark.parametrize(("sites_", "Q", "V"), [(2, 1 - 1e-6, 1e-6), (3, 0.5, 0.5)])
def test_independent_signs_inform_as_much_as_their_number(sites_, Q, V):
    found = IntegratedChannel(Sign(), sites_).information(scalar(Q), scalar(V))
    exact = sites_ * sign_information(Q, V) if V > 1e-3 else sites_ * edge(Q, V)
    assert found.value[0, 0] == pytest.approx(exact, rel=0.03 if V > 1e-3 else 0.05)


def edge(Q, V):
    """The limit of little error: ``E g^2 -> 2 / sqrt(2 pi Q V) int phi^2 / Phi``."""
    bulk = integrate.quad(
        lambda x: math.exp(2 * stats.norm.logpdf(x) - log_ndtr(x)), -30, 12, limit=400
    )[0]
    return 2 * bulk / math.sqrt(2 * math.pi * Q * V)


def test_labels_that_are_drawn_inform_as_they_should():
    channel = IntegratedChannel(Sum(2, 1, 0.4), 1)
    weights = channel.channel.weights
    Q = np.diag([0.3, 0.6])
    V = np.diag([0.7, 0.4])
    exact = weights @ weights.T / ((weights * (V @ weights)).sum() + 0.16)
    found = channel.information(Q, V)
    assert np.abs(found.value - exact).max() < 0.05 * np.trace(exact)
    assert (np.abs(found.value - exact) < 6 * found.error + 1e-3).all()


def test_a_gradient_by_differences_and_predictions_without_noise(rng):
    z = rng.standard_normal((30, 1, 1))
    probit = IntegratedChannel(Probit(0.5), 1)
    assert np.abs(predict(probit, z) - (2 * ndtr(z[:, 0, 0] / 0.5) - 1)).max() < 1e-12
    cotangent = rng.standard_normal(30)
    exact = cotangent * 4 * stats.norm.pdf(z[:, 0, 0] / 0.5)
    assert np.abs(probit.vjp(z, cotangent)[:, 0, 0] - exact).max() < 1e-6
    total = IntegratedChannel(Sum(2, 2, 0.3), 2)
    z = rng.standard_normal((30, 2, 2))
    cotangent = rng.standard_normal(30)
    gradient = total.vjp(z, cotangent)
    assert (
        np.abs(gradient - cotangent[:, None, None] * total.channel.weights).max() < 1e-6
    )
    assert IntegratedChannel(Sign(), 2).vjp is None


class Own(Probit):
    def predict(self, z):
        return 0 * z[:, 0, 0] + 7.0

    def vjp(self, z, cotangent):
        return 0 * z + 3.0


def test_what_a_channel_gives_itself_is_not_replaced():
    channel = IntegratedChannel(Own(), 1)
    z = np.ones((2, 1, 1))
    assert (predict(channel, z) == 7.0).all()
    assert (channel.vjp(z, np.ones(2)) == 3.0).all()
    problem = Problem(
        {"name": "sequence-multi-index", "tokens": 2}, "hardmax", "gaussian"
    )
    hardmax = problem.channel.channel
    assert problem.channel.posterior == hardmax.posterior
    assert problem.channel.predict is None  # labels are not noisy: forward predicts


class Complete(Own):
    symmetry = "none"

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        raise NotImplementedError


class NeverProbed(Own):
    """Its labels are drawn when a member is asked for that depends on them, and not before."""

    symmetry = "none"
    predict = vjp = None
    posterior = Complete.posterior

    def forward(self, z, *, rng=None):
        raise KeyError("forward was called")


def test_labels_are_drawn_when_a_member_depends_on_them():
    model = sites(1)
    channel = Complete()
    assert complete_channel(channel, model) is channel
    derived = complete_channel(NeverProbed(), model)
    with pytest.raises(KeyError, match="forward was called"):
        _ = derived.predict


class Product(Sum):
    """A label of components whose group of symmetries is a parameter."""

    def __init__(self, what):
        self.components = 3
        self.noise = 0.5
        self.what = what

    def _label(self, z):
        return {
            "rotations": lambda: (z**2).sum((1, 2)),
            "signed-permutations": lambda: (z**4).sum((1, 2)),
            "permutations": lambda: (z**3).sum((1, 2)),
            "signs": lambda: z[:, 0, 0] ** 2 + 2 * z[:, 1, 0] ** 2 + np.abs(z[:, 2, 0]),
            "common-sign": lambda: z[:, 0, 0] * z[:, 1, 0] + z[:, 1, 0] * z[:, 2, 0],
            "permutations-common-sign": lambda: (
                z[:, 0, 0] * z[:, 1, 0]
                + z[:, 1, 0] * z[:, 2, 0]
                + z[:, 2, 0] * z[:, 0, 0]
            ),
            "none": lambda: z[:, 0, 0] * z[:, 1, 0] + z[:, 2, 0],
        }[self.what]()

    def forward(self, z, *, rng=None):
        return self._label(z) + self.noise * rng.standard_normal(len(z))

    def log_likelihood(self, y, z):
        return -0.5 * ((y - self._label(z)) / self.noise) ** 2


@pytest.mark.parametrize(
    "what",
    [
        "rotations",
        "signed-permutations",
        "permutations",
        "permutations-common-sign",
        "signs",
        "common-sign",
        "none",
    ],
)
def test_the_symmetry_is_found_where_it_is_not_given(what):
    assert IntegratedChannel(Product(what), 1).symmetry == what


class Exact(Modulus):
    def forward(self, z, *, rng=None):
        return np.abs(z[:, 0, 0])


class Crooked(Probit):
    def log_likelihood(self, y, z):
        return np.zeros((len(z), 2))


class Impossible(Probit):
    def log_likelihood(self, y, z):
        return np.full(len(z), -np.inf)


class Broken(Probit):
    def log_likelihood(self, y, z):
        raise RuntimeError("two\nlines")


class Blind(Probit):
    def forward(self, z, *, rng=None):
        return 0.5


@pytest.mark.parametrize(
    ("channel", "count", "message"),
    [
        (
            Exact(),
            1,
            "a continuous function of the latents without noise.*define a posterior",
        ),
        (
            Crooked(),
            1,
            r"log_likelihood must return one number per sample, shape \(16,\), got \(16, 2\)",
        ),
        (
            Impossible(),
            1,
            "log_likelihood must be finite for labels that forward has drawn.*got -inf",
        ),
        (Blind(), 1, "forward must return one label per sample"),
        (
            Sum(3, 5, 0.1),
            5,
            f"in at most {LARGEST_DIMENSION} latent dimensions: 3 components . 5 sites",
        ),
    ],
)
def test_refusals(channel, count, message):
    with pytest.raises(ParameterError, match=message) as caught:
        complete_channel(channel, sites(count))
    assert "\n" not in str(caught.value)


def test_a_likelihood_that_fails_is_named_with_its_problem():
    with pytest.raises(
        ProblemError,
        match=r"channel.name: this channel cannot be built: RuntimeError: two lines",
    ) as caught:
        low_rank(Broken())
    assert "\n" not in str(caught.value)


class Hardmax(Channel):
    """Two tokens of attention-indexed hardmax from the definition of the label alone."""

    name = "mine"
    symmetry = "none"
    components = 1

    def forward(self, z, *, rng=None):
        a = math.sqrt(2) * z[:, 0, 0]
        b = z[:, 0, 1]
        c = math.sqrt(2) * z[:, 0, 2]
        return np.stack([a > b, c > b], axis=1)

    def log_likelihood(self, y, z):
        with np.errstate(divide="ignore"):
            first, second = (self.forward(z) == y).T
            return np.log((first & second).astype(float))


def test_hardmax_from_its_likelihood_agrees_with_the_channel_that_knows_its_formulas():
    model = {"name": "attention-indexed", "tokens": 2}
    known = Problem(model, "hardmax", {"name": "wishart", "rho": 0.5})
    mine = IntegratedChannel(Hardmax(), 3)
    curve = scalar_curve(known)
    alpha = 1.1
    (exact,) = curve.predict([alpha])
    information = known.channel.information(exact.Q, exact.V).value
    qhat = 2 * alpha * float(np.asarray(information).squeeze())
    # One Newton step from the known root, with the slopes of the known curve.
    around = math.log(qhat) + np.array([-0.1, 0.1])
    slope = np.diff(np.log(curve.alpha_of(around)[0]))[0]
    response = np.diff(curve._overlap(around)[1])[0]
    gap = math.log(2 * alpha * mine.information(exact.Q, exact.V).value[0, 0] / qhat)
    assert abs(response / slope * gap) < 1e-3
