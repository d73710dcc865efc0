"""A drop-in plugin of GAMP with one mistake each, which claims its prediction all the same, and of two that cheat."""

from __future__ import annotations

import numpy as np
from smimbench_algorithms.gamp import Gamp

from smimbench import Capabilities, hookimpl


class Onsager(Gamp):
    """Its memory term is 30% too large."""

    name, version = "onsager", 1

    def step(self, problem, data, state):
        return super().step(problem, data, state._replace(g=None if state.g is None else 1.3 * state.g))


class Shrunk(Gamp):
    """Its denoiser is 3% too short."""

    name, version = "shrunk", 1

    def step(self, problem, data, state):
        new, info = super().step(problem, data, state)
        return new._replace(estimate=0.97 * new.estimate), info


class Peek:
    """Finds the teacher: seeds of a public suite are public."""

    name, version, reference, capabilities = "peek", 1, "none", Capabilities()

    def fit(self, data, problem):
        for replicate in range(64):
            instance = problem.instance(data.sample_ratio, data.dimension, replicate)
            if np.allclose(instance.labels[:3], data.labels[:3]):
                return 0.9 * instance.signal
        raise LookupError("it is not among the public seeds")


@hookimpl
def smimbench_register_algorithms(register):
    for item in (Onsager, Shrunk, Peek):
        register(item)
