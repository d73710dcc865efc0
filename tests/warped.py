"""A drop-in channel whose labels are a function of each latent; ``warped`` knows it while it is asked."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from smimbench import Capabilities, hookimpl
from smimbench.problem.problem import Problem
from smimbench.registry.registry import Registry, using

SHAPES = {
    "positive part": lambda z: np.maximum(z, 0.0),
    "exponential": lambda z: np.exp(z / 2),
}
MOMENTS = {
    "positive part": (0.5, 0.5),
    "exponential": (0.5 * np.exp(0.125), np.exp(0.5)),
}
"""``E y z`` and ``E y^2`` of a standard normal z."""


@dataclass(frozen=True)
class Warped:
    """Labels ``f(z)`` without noise, of one component; their posterior is not needed."""

    shape: str = "positive part"
    tokens: int = 1
    name, version, reference, symmetry, components = "warped", 1, "the tests", "none", 1
    capabilities = Capabilities(models=("sequence-multi-index",))

    def forward(self, z, *, rng=None):
        return SHAPES[self.shape](z)

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        raise NotImplementedError


@hookimpl
def smimbench_register_channels(register):
    register(Warped)


@contextmanager
def warped(shape, tokens=1):
    """A sequence problem with that channel, while its registry is the one in use."""
    with using(Registry([__file__])):
        model, channel = (
            {"name": "sequence-multi-index", "tokens": tokens},
            {"name": "warped", "shape": shape},
        )
        yield Problem(model, channel, "gaussian")
