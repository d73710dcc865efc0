"""Items that are wrong in one way each: the check that is there for it fails, and says what is wrong."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from smimbench_algorithms.adam import Adam
from smimbench_channels.attention.hardmax.channel import AttentionHardmax
from smimbench_channels.sequence.linear import SequenceLinear
from smimbench_channels.sequence.softmax.channel import SequenceSoftmax
from smimbench_models.attention_indexed import AttentionIndexed
from smimbench_models.sequence_multi_index import SequenceMultiIndex
from smimbench_priors.gaussian import Gaussian
from smimbench_priors.wishart import Wishart

from smimbench import Capabilities, Denoised, Info, Uncertain
from smimbench.interfaces import Algorithm, Channel, Law, Prior
from smimbench.problem.instance import Instance
from smimbench.testing import check
from tests.channels.attention.test_attention_hardmax import ratio_posterior

LOW = Capabilities(models=("sequence-multi-index",))


def failures(item, *only):
    """Messages of the checks that fail, by id."""
    return {o.check: o.message for o in check(item, only=only or None) if o.status == "failed"}


# -- channels -------------------------------------------------------------------------------------------------------


class RatioHardmax(AttentionHardmax):
    """Density over distribution function of the pair in place of the gradient of its logarithm."""

    def posterior(self, y, omega, V, **options):
        right = super().posterior(y, omega, V, **options)
        return right._replace(mean=ratio_posterior(np.asarray(y), omega, V[0, 0]))


def test_wrong_posterior_of_hardmax():
    found = failures(RatioHardmax(tokens=2), "gradient", "nishimori", "posterior")
    assert set(found) == {"gradient", "nishimori", "posterior"}
    assert "the mean is not that of the law its labels come from" in found["nishimori"]
    assert "E[z | y] of a sample with label" in found["posterior"]
    assert "log_partition changes by" in found["gradient"]


@dataclass(frozen=True)
class Overconfident(SequenceLinear):
    """The right mean with a covariance that is a tenth too small."""

    def posterior(self, y, omega, V, **options):
        right = super().posterior(y, omega, V, **options)
        return right._replace(covariance=0.9 * right.covariance)


def test_wrong_covariance():
    found = failures(Overconfident(tokens=2, noise=0.4), "nishimori", "gradient")
    assert set(found) == {"nishimori"}
    assert "its covariance is not that of its own errors" in found["nishimori"]


@dataclass(frozen=True)
class Biased(SequenceLinear):
    """Adds a little to every mean."""

    def posterior(self, y, omega, V, **options):
        right = super().posterior(y, omega, V, **options)
        return right._replace(mean=right.mean + 0.02)


def test_small_bias():
    assert "its mean overlooks what the label tells" in failures(Biased(tokens=2, noise=0.4), "nishimori")["nishimori"]


@dataclass(frozen=True)
class WrongInformation(SequenceLinear):
    """Theory that is five per cent off."""

    def information(self, Q, V):
        right = super().information(Q, V)
        return Uncertain(1.05 * right.value, right.error, right.method)


def test_wrong_information():
    found = failures(WrongInformation(tokens=2, noise=0.4), "nishimori")
    assert "information at V = " in found["nishimori"]


@dataclass(frozen=True)
class WrongDerivative(SequenceSoftmax):
    """A gradient that forgets a factor."""

    def vjp(self, z, cotangent):
        return 0.5 * super().vjp(z, cotangent)


def test_wrong_vjp():
    assert "differs from finite differences" in failures(WrongDerivative(tokens=2), "vjp")["vjp"]


@dataclass(frozen=True)
class SeesSigns(SequenceSoftmax):
    """States that its labels see signs."""

    symmetry: ClassVar[str] = "none"


@dataclass(frozen=True)
class SeesNoSigns(SequenceLinear):
    """States that its labels see no signs."""

    symmetry: ClassVar[str] = "signs"


def test_wrong_symmetry():
    assert "no label sees the sign" in failures(SeesSigns(tokens=2), "symmetry")["symmetry"]
    assert "labels change with the sign" in failures(SeesNoSigns(tokens=2), "symmetry")["symmetry"]


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
        if self.wrong == "own generator":
            rng = np.random.default_rng(0)
        elif self.wrong == "default generator":
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
        factor = {"factor": 1.0, "sign": -0.5, "nan": np.nan}.get(self.wrong, 0.5)  # 1.0: half the noise
        return -factor * ((y - z) ** 2).sum(axis=(1, 2)) / self.noise


@pytest.mark.parametrize(
    ("wrong", "id", "message"),
    [
        ("factor", "likelihood", "log_likelihood is not that of forward"),
        ("sign", "likelihood", "log_likelihood is not that of forward"),
        ("nan", "likelihood", "log_likelihood must be finite for labels that forward has drawn"),
        ("own generator", "samples", "depends on the other samples, or on a generator of its own"),
        ("default generator", "bad_input", "forward without rng draws noise all the same, and always the same"),
        ("global generator", "determinism", "the same seed gives different labels"),
        ("writes", "purity", "forward: labels writes into its argument 1"),
        ("wide", "dtypes", "forward: labels must be float32 like its inputs, got float64"),
        ("wide", "namespace", ""),
    ],
)
def test_wrong_channel(wrong, id, message):
    assert message in failures(WorkedOver(wrong=wrong), id)[id]


def test_a_bad_value_is_accepted():
    found = failures(WorkedOver(), "bad_parameters", "posterior")
    assert set(found) == {"bad_parameters"}
    assert "noise = -1 is accepted" in found["bad_parameters"]


# -- priors ---------------------------------------------------------------------------------------------------------


class OffByAFactor(Gaussian):
    """Shrinks five per cent too little."""

    def denoise(self, R, Qhat):
        right = super().denoise(R, Qhat)
        return Denoised(1.05 * right.estimate, right.V)


@dataclass(frozen=True)
class OffByAFactorMatrices(Wishart):
    """The same for matrices."""

    def denoise(self, R, Qhat):
        right = super().denoise(R, Qhat)
        return Denoised(1.03 * right.estimate, right.V)


@pytest.mark.parametrize("prior", [OffByAFactor(), OffByAFactorMatrices(rho=0.5)])
def test_denoiser_off_by_a_factor(prior):
    found = failures(prior, "nishimori", "moments", "derivative")
    assert "nishimori" in found
    assert "moments" not in found
    assert "the estimate is not the mean of the law it was drawn from" in found["nishimori"]
    if isinstance(prior, OffByAFactor):
        assert "derivative of the estimate minus V" in found["derivative"]


class WrongMap(Gaussian):
    """State evolution of another prior."""

    def overlap(self, Qhat):
        right = super().overlap(Qhat)
        shift = 0.05 * right.V @ right.Q
        return right._replace(Q=right.Q - shift, V=right.V + shift)


def test_wrong_state_evolution():
    found = failures(WrongMap(), "state_evolution", "nishimori", "derivative")
    assert set(found) == {"state_evolution", "nishimori"}
    assert "simulated" in found["state_evolution"]
    assert "V of the map overlap is not that of denoise" in found["nishimori"]


class Growing(Prior):
    """A density that grows with distance: a wrong sign."""

    name, version, reference, capabilities = "growing", 1, "none", LOW

    law = Law(log_density=abs)


def test_a_law_without_a_norm():
    found = failures(Growing())
    assert set(found) == {"shapes"}
    assert "log_density: must belong to a law with a finite variance" in found["shapes"]


class WrongMoment(Gaussian):
    """Larger signals than it says."""

    def sample(self, rng, components, dimension):
        return 1.1 * super().sample(rng, components, dimension)


def test_wrong_second_moment():
    assert "overlap of signals with themselves" in failures(WrongMoment(), "moments")["moments"]


# -- models ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Greedy(AttentionIndexed):
    """Makes x x^T of every sample."""

    def forward(self, inputs, signal):
        np.einsum("nti,ntj->nij", inputs, inputs)
        return super().forward(inputs, signal)


@dataclass(frozen=True)
class HalfAdjoint(SequenceMultiIndex):
    """Forgets a factor on the way back."""

    def adjoint(self, inputs, g):
        return 0.5 * super().adjoint(inputs, g)


@dataclass(frozen=True)
class Unscaled(AttentionIndexed):
    """Diagonal sites twice as wide as the others."""

    def forward(self, inputs, signal):
        diagonal = np.array([1.0 if a != b else 2**0.5 for a in range(self.tokens) for b in range(a, self.tokens)])
        return super().forward(inputs, signal) * diagonal


def test_wrong_models():
    assert "MB in addition to" in failures(Greedy(tokens=2), "memory")["memory"]
    assert "adjoint_scale" in failures(HalfAdjoint(tokens=2), "transpose")["transpose"]
    assert "covariance of the latents" in failures(Unscaled(tokens=2), "latents")["latents"]


# -- algorithms -----------------------------------------------------------------------------------------------------


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
        xp = data.inputs.__array_namespace__() if not isinstance(data.inputs, np.ndarray) else np
        draw = self.start(rng).standard_normal(problem.model.signal_shape(1, data.dimension))
        place = {"dtype": data.inputs.dtype, "device": data.inputs.device}
        return xp.asarray(draw, **place), rng

    def step(self, problem, data, state):
        w, rng = state
        g = data.labels - problem.model.forward(data.inputs, w)
        return (w + 0.1 * problem.model.adjoint(data.inputs, g), rng), Info(residual=1.0)

    def estimate(self, state):
        return state[0]


def test_the_plain_algorithm_is_right():
    assert failures(Plain()) == {}


class Peeker(Plain):
    """Draws the instance again, with the seeds that a suite would use."""

    def estimate(self, state):
        return state[0]

    def step(self, problem, data, state):
        teacher = problem.instance(0.4, data.dimension).signal
        return (0.5 * (state[0] + teacher), state[1]), Info(residual=1.0)


class FramePeeker(Plain):
    """Looks for the instance in the frames around it."""

    def init(self, problem, data, rng):
        import sys

        frame = sys._getframe()
        while frame is not None and "instance" not in frame.f_locals:
            frame = frame.f_back
        return (frame.f_locals["instance"].signal if frame else super().init(problem, data, rng)[0]), rng


class ClosurePeeker(Plain):
    """Opens the function that draws fresh samples."""

    def init(self, problem, data, rng):
        held = [cell.cell_contents for cell in data.fresh.__closure__ or ()]
        return next(c for c in held if isinstance(c, Instance)).signal, rng


class HeapPeeker(Plain):
    """Asks the garbage collector for instances of this size."""

    def init(self, problem, data, rng):
        fitting = [o.signal for o in gc.get_objects() if type(o) is Instance and o.signal.shape[-1] == data.dimension]
        return sum(fitting), rng


@pytest.mark.parametrize(
    "item", [Peeker(), FramePeeker(), ClosurePeeker(), HeapPeeker()], ids=lambda i: type(i).__name__
)
def test_an_algorithm_that_peeks_at_the_teacher(item):
    found = failures(item, "no_peeking")
    assert "peeks at the teacher: overlap with a teacher that no label knows" in found["no_peeking"]


class Vandal(Plain):
    """Centres the labels where they are."""

    def init(self, problem, data, rng):
        if isinstance(data.labels, np.ndarray) and data.labels.flags.writeable:
            data.labels[...] -= data.labels.mean()
        return super().init(problem, data, rng)


def test_an_algorithm_that_modifies_its_data():
    found = failures(Vandal())
    assert set(found) == {"data_unchanged"}
    assert "modifies its data" in found["data_unchanged"]
    assert "of data.labels have changed" in found["data_unchanged"]


class OwnGenerator(Plain):
    """Starts from a generator with a seed of its own."""

    def start(self, rng):
        return np.random.default_rng(7)


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
        pick = own.permutation(len(data.inputs))[:2] if isinstance(w, np.ndarray) else slice(0, 2)
        x, y = data.inputs[pick, ...], data.labels[pick, ...]
        return (w + 0.5 * problem.model.adjoint(x, y - problem.model.forward(x, w)), own), Info(residual=1.0)


@pytest.mark.parametrize("item", [OwnGenerator(), OwnNumbers(), OwnOrder()], ids=lambda i: type(i).__name__)
def test_an_algorithm_that_ignores_its_seed(item):
    found = failures(item, "seed", "determinism", "no_peeking", "data_unchanged")
    assert set(found) == {"seed"}
    assert "ignores its seed: every seed gives the same estimate" in found["seed"]


class Unseeded(Plain):
    """A generator that nobody can seed."""

    def start(self, rng):
        return np.random.default_rng()


class GlobalNumbers(Plain):
    """NumPy's global generator."""

    def start(self, rng):
        return np.random


def test_an_algorithm_that_nobody_can_repeat():
    assert "two runs with the same seed differ" in failures(Unseeded(), "determinism")["determinism"]
    assert "NumPy's global generator" in failures(GlobalNumbers(), "determinism")["determinism"]


class InPlace(Plain):
    """Every state is the same array."""

    def step(self, problem, data, state):
        new, info = super().step(problem, data, state)
        state[0][...] = new[0]
        return state, info


class WrongShape(Plain):
    """No signal."""

    def estimate(self, state):
        return state[0][:, 1:]


class Fragile(Plain):
    """Raises on some problems."""

    def step(self, problem, data, state):
        raise ZeroDivisionError("nothing to divide by")


@dataclass(frozen=True)
class Climber(Adam):
    """Adam with the wrong sign."""

    def move(self, factor, gradient, memory, rate, count):
        return super().move(factor, -gradient, memory, rate, count)


def test_an_optimizer_that_climbs():
    found = failures(Climber(), "learns", "determinism")
    assert set(found) == {"learns"}
    assert "a step in the wrong direction, or a rate that is too large" in found["learns"]
    assert failures(Adam(), "learns") == {}


@dataclass(frozen=True)
class Opaque(Plain):
    """A parameter that cannot be written down."""

    how: object = np.tanh


def test_other_wrong_algorithms():
    assert "changes the estimate that was handed out before" in failures(InPlace(), "state_copies")["state_copies"]
    assert "must have shape" in failures(WrongShape(), "shapes")["shapes"]
    assert "ZeroDivisionError: nothing to divide by" in failures(Fragile(), "runs")["runs"]
    assert "no plain JSON value" in failures(Opaque(), "parameters")["parameters"]


def test_one_wrong_algorithm_does_not_spoil_the_next():
    before = failures(replace(Adam(steps=5)), "data_unchanged", "seed")
    failures(Vandal(), "data_unchanged")
    assert failures(replace(Adam(steps=5)), "data_unchanged", "seed") == before == {}
