"""Items that are wrong in one way each: the check that is there for it fails, says what is wrong, and no other does."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.channels.attention.hardmax import AttentionHardmax
from smimbench_attention.channels.linear import SequenceLinear
from smimbench_attention.channels.sequence.softmax import SequenceSoftmax
from smimbench_attention.metrics.mse import MSE
from smimbench_attention.models.attention_indexed import AttentionIndexed
from smimbench_attention.models.sequence_multi_index import SequenceMultiIndex
from smimbench_attention.priors.gaussian import Gaussian
from smimbench_attention.priors.wishart import Wishart

from smimbench import Capabilities, Denoised, Info, ParameterError
from smimbench.interfaces import (
    Algorithm,
    Channel,
    Inputs,
    Law,
    NotMeasured,
    Overlap,
    Prior,
)
from smimbench.testing import all_checks, check
from tests.channels.attention.test_attention_hardmax import ratio_posterior

LOW = Capabilities(models=("sequence-multi-index",))


@dataclass(frozen=True)
class OneDirection(Prior):
    """Signs of a single direction; signals may have their axes exchanged."""

    transposed: bool = False
    name, version, reference, capabilities = "one-direction", 1, "tests", LOW

    def sample(self, rng, components, dimension):
        signal = rng.choice([-1.0, 1.0], size=(components, dimension))
        return signal.T if self.transposed else signal

    def denoise(self, R, Qhat):
        if len(R) > 1:
            raise ParameterError("components", "must be 1 for this prior")
        estimate = np.tanh(Qhat * R)
        return Denoised(estimate, np.reshape(np.mean(1 - estimate**2), (1, 1)))


class Scaled(Inputs):
    """Signs that are shifted or too long; no theory is claimed for them."""

    name, version, reference, capabilities = "scaled", 1, "tests", LOW

    def __init__(self, shift: float = 0.0, variance: float = 1.0):
        self.shift, self.variance = shift, variance

    def draw(self, rng, n, tokens, dimension):
        signs = rng.choice([-1.0, 1.0], (n, tokens, dimension))
        return self.shift + self.variance**0.5 * signs


def failures(item, *only):
    """Messages of the checks that fail, by id."""
    return {
        o.check: o.message
        for o in check(item, only=only or None)
        if o.status == "failed"
    }


def spoiled(item, **members):
    """An item of a subclass whose methods pass what the right ones return, and their arguments, through functions."""

    def method(name, change):
        return lambda self, *given, **options: change(
            getattr(super(cls, self), name)(*given, **options), *given
        )

    body = {k: method(k, v) if callable(v) else v for k, v in members.items()}
    cls = type(f"Wrong{type(item).__name__}", (type(item),), body)
    return cls(
        **{f.name: getattr(item, f.name) for f in dataclasses.fields(item)}
        if dataclasses.is_dataclass(item)
        else {}
    )


@dataclass(frozen=True)
class WorkedOver(Channel):
    """Labels by the engine's likelihood; one class for all that a channel can do wrong besides its mathematics."""

    noise: float = 0.3
    wrong: str = ""

    name: ClassVar[str] = "worked-over"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "none"
    capabilities: ClassVar[Capabilities] = LOW
    symmetry: ClassVar[str] = "none"
    components: ClassVar[int] = 1

    def forward(self, z, *, rng=None):
        if self.wrong == "default generator":
            rng = rng or np.random.default_rng(0)
        elif self.wrong == "global generator":
            return z + self.noise**0.5 * np.random.standard_normal(z.shape)  # noqa: NPY002
        elif rng is None:
            raise ValueError("rng is required")
        if self.wrong == "writes":
            z *= 1.0000001
        y = z + np.sqrt(self.noise) * rng.standard_normal(z.shape)
        return np.float64(y) if self.wrong == "wide" else np.asarray(y, dtype=z.dtype)

    def log_likelihood(self, y, z):
        if self.wrong == "shape":
            return -0.5 * ((y - z) ** 2).sum(axis=2) / self.noise
        factor = {"factor": 1.0, "sign": -0.5, "nan": np.nan}.get(
            self.wrong, 0.5
        )  # 1.0: half the noise
        return -factor * ((y - z) ** 2).sum(axis=(1, 2)) / self.noise


class Growing(Prior):
    """A density that grows with distance: a wrong sign."""

    name, version, reference, capabilities = "growing", 1, "none", LOW

    law = Law(log_density=abs)


class Coupled(Prior):
    """Gaussian components with the correlation 1/2."""

    name, version, reference, capabilities = "coupled", 1, "none", LOW

    def second_moment(self, components):
        return (np.eye(components) + 1) / 2

    def mean_overlap(self, components):
        return np.zeros((components, components))

    def mean(self, components, dimension):
        return np.zeros((components, dimension))

    def sample(self, rng, components, dimension):
        return np.linalg.cholesky(self.second_moment(components)) @ rng.standard_normal(
            (components, dimension)
        )

    def overlap(self, Qhat):
        second = self.second_moment(Qhat.shape[-1])
        V = np.linalg.inv(np.linalg.inv(second) + Qhat)
        return Overlap(second - V, V)

    def denoise(self, R, Qhat):
        V = self.overlap(Qhat).V
        return Denoised(V @ Qhat @ R, V)


@dataclass(frozen=True)
class Plain(Algorithm):
    """A correct algorithm that knows little: the direction in which labels pull, from a random start."""

    name: ClassVar[str] = "plain"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "none"
    capabilities: ClassVar[Capabilities] = LOW
    steps: ClassVar[int] = 3

    def refuses(self, problem):
        return None if problem.channel.name == "linear" else "labels must be latents"

    def start(self, rng):
        return rng

    def init(self, problem, data, rng):
        xp = (
            data.inputs.__array_namespace__()
            if not isinstance(data.inputs, np.ndarray)
            else np
        )
        draw = self.start(rng).standard_normal(
            problem.model.signal_shape(1, data.dimension)
        )
        place = {"dtype": data.inputs.dtype, "device": data.inputs.device}
        return xp.asarray(draw, **place), rng

    def step(self, problem, data, state):
        w, rng = state
        g = data.labels - problem.model.forward(data.inputs, w)
        return (w + 0.1 * problem.model.adjoint(data.inputs, g), rng), Info(
            residual=1.0
        )

    def estimate(self, state):
        return state[0]


class Vandal(Plain):
    """Centers the labels where they are."""

    def init(self, problem, data, rng):
        if isinstance(data.labels, np.ndarray) and data.labels.flags.writeable:
            data.labels[...] -= data.labels.mean()
        return super().init(problem, data, rng)


_TABLE = np.random.default_rng(8).standard_normal(2000)


class OwnNumbers(Plain):
    """Starts from numbers drawn when it was imported, in a way that no watched generator shows."""

    def init(self, problem, data, rng):
        w, rng = super().init(problem, data, rng)
        numbers = np.reshape(_TABLE[: data.dimension], w.shape)
        return (w * 0 + numbers if isinstance(w, np.ndarray) else w), rng


class OwnOrder(Plain):
    """Goes through the samples in an order of its own seed."""

    def init(self, problem, data, rng):
        w, rng = super().init(problem, data, rng)
        return 0 * w, np.random.default_rng(9)

    def step(self, problem, data, state):
        w, own = state
        pick = (
            own.permutation(len(data.inputs))[:2]
            if isinstance(w, np.ndarray)
            else slice(0, 2)
        )
        x, y = data.inputs[pick, ...], data.labels[pick, ...]
        return (
            w + 0.5 * problem.model.adjoint(x, y - problem.model.forward(x, w)),
            own,
        ), Info(residual=1.0)


class InPlace(Plain):
    """Every state is the same array."""

    def step(self, problem, data, state):
        new, info = super().step(problem, data, state)
        state[0][...] = new[0]
        return state, info


class Mixed(Plain):
    """Its joint steps are those of the first run's data for all."""

    def joint_step(self, problem):
        return lambda data, states: [
            self.step(problem, data[0], state) for state in states
        ]


class Hoarder(Plain):
    """Its steps use a number of its data that it keeps in itself: joint steps use that of the first run."""

    def init(self, problem, data, rng):
        self.mean_square = float((data.inputs**2).mean())
        return super().init(problem, data, rng)

    def step(self, problem, data, state):
        (w, rng), info = super().step(problem, data, state)
        return (self.mean_square * w, rng), info

    def joint_step(self, problem):
        return lambda data, states: [
            self.step(problem, *run) for run in zip(data, states)
        ]


class Fragile(Plain):
    """Raises on some problems."""

    def step(self, problem, data, state):
        raise ZeroDivisionError("nothing to divide by")


@dataclass(frozen=True)
class Climber(Adam):
    """Adam with the wrong sign."""

    def move(self, factor, gradient, memory, rate, count):
        return super().move(factor, -gradient, memory, rate, count)


@dataclass(frozen=True)
class Opaque(Plain):
    """A parameter that cannot be written down."""

    how: object = np.tanh


class Silent(MSE):
    def measure(self, instance, estimate, claims):
        raise NotMeasured


class Raw(MSE):
    """Forgets to remove the symmetry."""

    def measure(self, instance, estimate, claims):
        return [float(np.mean((a - b) ** 2)) for a, b in zip(instance.signal, estimate)]


def written_to(found, instance, estimate, claims):
    estimate *= 0
    return found


LINEAR, SHIFT = (
    SequenceLinear(tokens=2, noise=0.4),
    lambda right: 0.05 * right.V @ right.Q,
)
DIAGONAL = np.array([2**0.5, 1.0, 2**0.5])
HARDMAX = spoiled(  # density over distribution function of the pair in place of the gradient of its logarithm
    AttentionHardmax(tokens=2),
    posterior=lambda p, y, omega, V: p._replace(
        mean=ratio_posterior(np.asarray(y), omega, V[0, 0])
    ),
)
LAW = (
    "the mean is not the posterior mean of the distribution that labels are drawn from"
)
SEED = "ignores its seed: every seed gives the same estimate"


@pytest.mark.parametrize(("item", "messages", "others"), [
    # channels
    (HARDMAX, {"nishimori": LAW, "gradient": "log_partition changes by"}, ()),
    (
        spoiled(LINEAR, posterior=lambda p, *_: p._replace(covariance=0.9 * p.covariance)),
        {"nishimori": "the covariance differs by 0.036 of V from that computed from the second moments"},
        ("gradient",),
    ),
    (
        spoiled(LINEAR, posterior=lambda p, *_: p._replace(mean=p.mean + 0.02)),
        {"nishimori": f"{LAW}, on average"},
        (),
    ),
    (spoiled(LINEAR, information=lambda u, *_: u._replace(value=1.05 * u.value)), {"nishimori": "information at V = "}, ()),
    (spoiled(SequenceSoftmax(tokens=2), vjp=lambda g, *_: 0.5 * g), {"vjp": "vjp changes by"}, ()),
    (spoiled(SequenceSoftmax(tokens=2), symmetry="none"), {"symmetry": "but its labels have symmetry 'signs'"}, ()),
    (spoiled(LINEAR, symmetry="signs"), {"symmetry": "declares symmetry 'signs', but its labels have symmetry 'none'"}, ()),
    (WorkedOver(wrong="factor"), {"likelihood": "log_likelihood is not that of forward"}, ()),
    (WorkedOver(wrong="sign"), {"likelihood": "log_likelihood is not that of forward"}, ()),
    (WorkedOver(wrong="shape"), {"log_likelihood": "must return real numbers of shape (6,), got float64 (6, 1)"}, ()),
    (spoiled(WorkedOver(), forward=lambda y, *_: y[:2]), {"labels": "must return labels of shape (3, ...), got (2, 1, 2)"}, ()),
    (WorkedOver(wrong="nan"), {"likelihood": "log_likelihood must be finite for labels that forward has drawn"}, ()),
    (
        spoiled(SequenceSoftmax(tokens=2), forward=lambda y, *_: y + 1e-6 * y.mean(0)),
        {"nishimori": "forward: a label must depend on the latents of its own sample and on rng only"},
        (),
    ),
    (WorkedOver(wrong="default generator"), {"bad_input": "forward draws noise without rng, but returns"}, ()),
    (WorkedOver(wrong="global generator"), {"determinism": "forward: labels draws from NumPy's global generator"}, ()),
    (WorkedOver(wrong="writes"), {"purity": "forward: labels writes into its arguments"}, ()),
    (WorkedOver(wrong="wide"), {"dtypes": "forward: labels must be float32 like its inputs, got float64", "namespace": ""}, ()),
    (WorkedOver(), {"bad_parameters": "noise = -1 is accepted"}, ("likelihood",)),
    # inputs
    (Scaled(), {}, ("covariance", "gaussianity")),
    (Scaled(variance=2.0), {"covariance": "variance 2.0; theory expects 0 and 1"}, ("shapes",)),
    (Scaled(shift=3**0.5), {"covariance": "mean 1.7, variance 1.0; theory expects 0 and 1"}, ("shapes",)),
    # priors
    (OneDirection(), {}, ("shapes", "nishimori")),
    (OneDirection(transposed=True), {"shapes": "sample must have shape (1, 12), got (12, 1)"}, ()),
    (
        spoiled(Gaussian(), denoise=lambda d, *_: Denoised(1.05 * d.estimate, d.V)),
        {"nishimori": "the estimate is not the posterior mean of the distribution that signals are drawn from"},
        ("shapes",),
    ),
    (
        spoiled(Wishart(rho=0.5), denoise=lambda d, *_: Denoised(1.03 * d.estimate, d.V)),
        {"nishimori": "the estimate is not the posterior mean of the distribution that signals are drawn from"},
        ("shapes",),
    ),
    (
        spoiled(Gaussian(), overlap=lambda o, *_: o._replace(Q=o.Q - SHIFT(o), V=o.V + SHIFT(o))),
        {"nishimori": "V in units of the variance is"},
        ("shapes",),
    ),
    (Growing(), {"shapes": "log_density: must be the log-density of a law with finite variance"}, "all"),
    (spoiled(Gaussian(), sample=lambda S, *_: 1.1 * S), {"nishimori": "the estimate is not the posterior mean"}, ()),
    (spoiled(Gaussian(), mean=lambda m, *_: m + 0.05), {"nishimori": "mean differs from that of drawn signals"}, ()),
    (
        spoiled(Coupled(), sample=lambda S, *_: S * [[1.0], [-1.0]][: len(S)]),
        {"nishimori": "the estimate is not the posterior mean"},
        ("shapes",),
    ),
    (Coupled(), {}, ("nishimori", "shapes")),
    # models
    (
        spoiled(AttentionIndexed(tokens=2), forward=lambda z, X, S: z + 0 * np.einsum("nti,ntj->nij", X, X).sum()),
        {"memory": "MB in addition to"},
        (),
    ),
    (spoiled(SequenceMultiIndex(tokens=2), adjoint=lambda g, *_: 0.5 * g), {"transpose": "adjoint_scale"}, ()),
    (spoiled(AttentionIndexed(tokens=2), forward=lambda z, *_: z * DIAGONAL), {"latents": "covariance of the latents"}, ()),
    # algorithms
    (Plain(), {}, "all"),
    (Vandal(), {"data_unchanged": "modifies its input: data.labels has changed"}, "all"),
    (
        spoiled(Plain(), start=lambda *_: np.random.default_rng(7)),
        {"seed": SEED},
        ("determinism", "data_unchanged"),
    ),
    (OwnNumbers(), {"seed": SEED}, ("determinism", "data_unchanged")),
    (OwnOrder(), {"seed": SEED}, ("determinism", "data_unchanged")),
    (spoiled(Plain(), start=lambda *_: np.random.default_rng()), {"determinism": "the same seed gives different"}, ()),
    (spoiled(Plain(), start=lambda *_: np.random), {"determinism": "NumPy's global generator"}, ()),
    (Climber(), {"learns": "the steps go in the wrong direction, or the learning rate"}, ("determinism",)),
    (Adam(), {}, ("learns",)),
    (InPlace(), {"state_copies": "changes an estimate that was returned before"}, ()),
    (Mixed(), {"joint_steps": "joint step 1 of three runs must return"}, ()),
    (Hoarder(), {"joint_steps": "use no numbers that init stored in the algorithm"}, ()),
    (spoiled(Plain(), estimate=lambda w, *_: w[:, 1:]), {"shapes": "must have shape"}, ()),
    (Fragile(), {"runs": "ZeroDivisionError: nothing to divide by"}, ()),
    (Opaque(), {"parameters": "not a JSON value"}, ()),
    # metrics
    (MSE(), {}, "all"),
    (spoiled(MSE(), measure=lambda found, *_: [*found, 0.0]), {"values": "per_component asks"}, ()),
    (spoiled(MSE(), measure=lambda found, *_: [math.inf for _ in found]), {"values": "JSON cannot hold"}, ()),
    (spoiled(MSE(), measure=lambda found, *_: 0.5), {"values": "must return a list of numbers, got 0.5"}, ()),
    (spoiled(MSE(), measure=written_to), {"values": "writes into the estimate"}, ()),
    (Silent(), {"values": "NotMeasured without a reason"}, ()),
    (Raw(), {"invariance": "is applied to the estimate"}, ()),
    (spoiled(MSE(), direction="higher"), {"truth": "worse than"}, ()),
    (spoiled(MSE(), theory=lambda *_: ([], [])), {"theory": "theory returns 0 values"}, ()),
    (
        spoiled(
            MSE(),
            theory=lambda found, problem, point: ([math.inf] * problem.components, [0.0] * problem.components),
        ),
        {"theory": "errors >= 0, got inf"},
        (),
    ),
])  # fmt: skip
def test_what_is_wrong_is_found(item, messages, others):
    found = failures(item, *(() if others == "all" else (*messages, *others)))
    assert set(found) == set(messages)
    assert all(message in found[id] for id, message in messages.items())


def test_one_wrong_algorithm_does_not_spoil_the_next():
    before = failures(Adam(steps=5), "data_unchanged", "seed")
    failures(Vandal(), "data_unchanged")
    assert failures(Adam(steps=5), "data_unchanged", "seed") == before == {}


def test_every_check_of_a_metric_applies_to_mse():
    assert [o.status for o in check(MSE())] == ["passed"] * len(all_checks("metric"))
