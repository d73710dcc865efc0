"""Algorithms with a mistake built in, which claim the prediction of the intact one: a drop-in plugin for ``sabotage.py``.

Every class is a shipped algorithm of which one thing is changed; its ``theory`` is inherited. ``factor = 1`` or ``share = 1`` is
the intact algorithm.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.algorithms.erm import Erm
from smimbench_attention.algorithms.gamp import Gamp
from smimbench_attention.algorithms.nuclear import Nuclear
from smimbench_attention.algorithms.ridge import Ridge
from smimbench_attention.algorithms.sgd import Sgd
from smimbench_attention.algorithms.spectral import Spectral

from smimbench import Problem, hookimpl


class Bent:
    """Wrapper of an object of which some attributes are replaced."""

    def __init__(self, of, **options):
        """Wrap the object ``of``, with ``options`` as the replaced attributes."""
        self._of = of
        self.__dict__.update(options)

    def __getattr__(self, name):
        """Return any other attribute of the wrapped object."""
        return getattr(self._of, name)


class Altered:
    """Algorithm that works on another problem, or on other data, than those that it is given."""

    def seen(self, problem, data):
        """Return the problem and the data that it works on."""
        return problem, data

    def init(self, problem, data, rng):
        """Return the initial state on the altered problem."""
        return super().init(*self.seen(problem, data), rng)

    def step(self, problem, data, state):
        """Run one iteration on the altered problem."""
        return super().step(*self.seen(problem, data), state)


def followed(function, change):
    """Return a function that applies ``change`` to what another function returns."""

    @functools.wraps(function)
    def call(*arguments, **options):
        """Call the function and change what it returns."""
        return change(function(*arguments, **options))

    return call


@dataclass(frozen=True)
class Denoiser(Altered):
    """Sabotage: the denoised estimate is multiplied by a factor."""

    factor: float = 1.0

    def seen(self, problem, data):
        """Return the problem with a prior that has this denoiser."""
        denoise = followed(
            problem.prior.denoise,
            lambda state: state._replace(estimate=self.factor * state.estimate),
        )
        return Bent(problem, prior=Bent(problem.prior, denoise=denoise)), data


@dataclass(frozen=True)
class Posterior(Altered):
    """Sabotage: mean and covariance of the posterior of the latents are each multiplied by a factor."""

    mean: float = 1.0
    covariance: float = 1.0

    def seen(self, problem, data):
        """Return the problem with a channel that has this posterior."""

        def change(state):
            """Multiply mean and covariance of a posterior by the factors."""
            return state._replace(
                mean=self.mean * state.mean,
                covariance=self.covariance * state.covariance,
            )

        posterior = followed(problem.channel.posterior, change)
        return Bent(problem, channel=Bent(problem.channel, posterior=posterior)), data


@dataclass(frozen=True)
class Misled(Altered):
    """Sabotage: the noise of the channel and the rank of the signal are assumed larger by a factor."""

    noise: float = 1.0
    rho: float = 1.0

    def seen(self, problem, data):
        """Return the problem with the assumed noise and rank."""
        return believed(problem, self.noise, self.rho), data


@functools.lru_cache
def believed(problem, noise, rho):
    """Return a problem whose noise and relative rank ``rho`` are multiplied by factors."""
    tables = {
        kind: {key: value for key, value in spec.items() if key != "version"}
        for kind, spec in problem.spec.items()
    }
    tables["channel"]["noise"] *= noise
    if rho != 1:
        tables["prior"]["rho"] *= rho
    return Problem(**tables)


@dataclass(frozen=True)
class Fewer(Altered):
    """Sabotage: only a share of the samples is read."""

    share: float = 1.0

    def seen(self, problem, data):
        """Return the data with the first part of the samples only."""
        n = round(self.share * data.inputs.shape[0])
        ratio = problem.model.sample_ratio(n, data.dimension)
        return problem, replace(
            data, inputs=data.inputs[:n], labels=data.labels[:n], sample_ratio=ratio
        )


@dataclass(frozen=True)
class Labels(Altered):
    """Sabotage: labels are multiplied by a factor."""

    factor: float = 1.0

    def seen(self, problem, data):
        """Return the data with multiplied labels."""
        return problem, replace(data, labels=self.factor * data.labels)


@dataclass(frozen=True)
class Onsager(Gamp):
    """Sabotage of GAMP: the Onsager term is multiplied by a factor."""

    factor: float = 1.0

    def step(self, problem, data, state):
        """Run one iteration with another matrix in front of the previous messages ``g``."""
        if state.g is None:
            return super().step(problem, data, state)
        onsager = state.V if state.Gamma is None else state.Gamma
        next_state, info = super().step(
            problem, data, state._replace(Gamma=self.factor * onsager)
        )
        if next_state.Gamma is not None:  # what damping has kept of it
            next_state = next_state._replace(
                Gamma=next_state.Gamma
                + (1 - state.damping_state.weight) * (1 - self.factor) * onsager
            )
        return next_state, info


@dataclass(frozen=True)
class Ahead(Gamp):
    """Sabotage of GAMP: iterations are counted from 1 instead of 0."""

    def init(self, problem, data, rng):
        """Return the state after one iteration."""
        return self.step(problem, data, super().init(problem, data, rng))[0]


@dataclass(frozen=True)
class Penalty:
    """Sabotage: the penalty of empirical risk minimization is multiplied by a factor."""

    factor: float = 1.0

    def init(self, problem, data, rng):
        """Return the initial state with the multiplied penalty."""
        state = super().init(problem, data, rng)
        return state._replace(penalty=self.factor * state.penalty)


@dataclass(frozen=True)
class Gradient:
    """Sabotage: the gradient of the loss is multiplied by a factor, and the sign of a share of its entries flipped."""

    factor: float = 1.0
    flipped: float = 0.0

    def normalisation(self, problem, data, size):
        """Return the normalization of the gradient of the loss, multiplied by the factor."""
        return self.factor * super().normalisation(problem, data, size)

    def move(self, factor, gradient, memory, rate, count):
        """Make a step along the gradient with flipped signs."""
        is_flipped = np.random.default_rng(count).random(gradient.shape) < self.flipped
        return super().move(
            factor, np.where(is_flipped, -gradient, gradient), memory, rate, count
        )


@dataclass(frozen=True)
class Rate:
    """Sabotage: the learning rate is multiplied by a factor, and 0 for the first ``lost`` steps."""

    factor: float = 1.0
    lost: int = 0

    def move(self, factor, gradient, memory, rate, count):
        """Make a step at the other learning rate; theory reads the schedule, which is right."""
        return super().move(
            factor,
            gradient,
            memory,
            0.0 if count <= self.lost else self.factor * rate,
            count,
        )


@dataclass(frozen=True)
class Decay:
    """Sabotage: the weight decay is multiplied by a factor."""

    factor: float = 1.0

    def penalty(self, data):
        """Return the factor of ``|W|^2 / 2``, multiplied by the factor."""
        return self.factor * super().penalty(data)


@dataclass(frozen=True)
class Momentum(Sgd):
    """Sabotage: the momentum is multiplied by a factor."""

    factor: float = 1.0

    def move(self, factor, gradient, memory, rate, count):
        """Make a step of descent with the other momentum."""
        return Sgd.move(
            replace(self, momentum=self.factor * self.momentum),
            factor,
            gradient,
            memory,
            rate,
            count,
        )


FAMILIES = {
    Gamp: (Denoiser, Posterior, Misled, Fewer, Labels),
    Ridge: (Penalty, Fewer, Labels),
    Erm: (Penalty, Fewer),
    Nuclear: (Penalty, Fewer),
    Spectral: (Denoiser, Labels, Fewer, Misled),
    Sgd: (Gradient, Rate, Decay),
    Adam: (Gradient, Rate, Decay),
}
"""What is changed of which algorithm; ``gamp-denoiser`` and so on are their names."""


def named(cls, *bases):
    """Make a class to register from an algorithm and the sabotages that it inherits from, and name it after them."""
    base = next(
        base_class for base_class in (cls, *bases) if hasattr(base_class, "reference")
    )
    sabotage = bases[0] if bases else cls
    attributes = {
        "name": f"{base.name}-{sabotage.__name__.lower()}",
        "version": 1,
        "reference": f"{base.name}. {sabotage.__doc__}",
        "__doc__": sabotage.__doc__,
        "__module__": __name__,
    }
    return dataclass(frozen=True)(
        type(sabotage.__name__ + base.__name__, (*bases, cls), attributes)
    )


@hookimpl
def smimbench_register_algorithms(register):
    """Register all sabotaged algorithms."""
    for algorithm in (Onsager, Ahead, Momentum):
        register(named(algorithm))
    for base, changes in FAMILIES.items():
        for change in changes:
            register(named(base, change))
