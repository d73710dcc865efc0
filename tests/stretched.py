"""A drop-in prior whose entries have neither unit variance nor, if asked for, a zero mean; ``registry()`` knows it."""

from contextlib import contextmanager
from dataclasses import dataclass

from smimbench import Capabilities, hookimpl
from smimbench.interfaces import Law
from smimbench.problem.problem import Problem
from smimbench.registry.registry import Registry, using


@dataclass(frozen=True)
class Stretched:
    """Gaussian entries of standard deviation ``scale`` around ``shift``."""

    scale: float = 3.0
    shift: float = 0.0
    name, version, reference = "stretched", 1, "the tests"
    capabilities = Capabilities(models=("sequence-multi-index",))

    def sample(self, rng, components, dimension):
        return self.shift + self.scale * rng.standard_normal((components, dimension))

    @property
    def law(self):
        return Law(log_density=lambda w: -((w - self.shift) ** 2) / (2 * self.scale**2))


@hookimpl
def smimbench_register_priors(register):
    register(Stretched)


@contextmanager
def stretched(channel, **parameters):
    """A sequence problem with that prior, while its registry is the one in use."""
    with using(Registry([__file__])):
        yield Problem(
            {"name": "sequence-multi-index", "tokens": 2},
            channel,
            {"name": "stretched", **parameters},
        )
