"""A drop-in plugin of GAMP with one mistake each, which claims its prediction all the same, and of one that cheats."""

from __future__ import annotations

import numpy as np
from smimbench_attention.algorithms.gamp import Gamp

from smimbench import Capabilities, hookimpl
from smimbench.problem.instance import seed_sequence


class Onsager(Gamp):
    """Its memory term is 30% too large."""

    name, version = "onsager", 1

    def step(self, problem, data, state):
        return super().step(
            problem, data, state._replace(g=None if state.g is None else 1.3 * state.g)
        )


class Shrunk(Gamp):
    """Its denoiser is 3% too short."""

    name, version = "shrunk", 1

    def step(self, problem, data, state):
        new, info = super().step(problem, data, state)
        return new._replace(estimate=0.97 * new.estimate), info


class Peek:
    """Draws the teacher again from the seed of the suite, so that its error is below what is possible."""

    name, version, reference, capabilities = "peek", 1, "none", Capabilities()

    def fit(self, data, problem):
        for replicate in range(64):

            def stream(name, replicate=replicate):
                place = (problem.identity, data.sample_ratio, data.dimension, replicate)
                return np.random.Generator(
                    np.random.PCG64DXSM(seed_sequence(0, *place, name))
                )

            teacher = problem.prior.sample(
                stream("teacher"), problem.components, data.dimension
            )
            inputs, _ = problem.draw(teacher, 3, stream("data"), "float64")
            if np.allclose(inputs, data.inputs[:3]):
                return 0.9 * teacher
        raise LookupError("it is not among the public seeds")


@hookimpl
def smimbench_register_algorithms(register):
    for item in (Onsager, Shrunk, Peek):
        register(item)
