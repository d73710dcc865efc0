"""A drop-in plugin whose items raise, leave or answer nonsense in one method each, in whatever process they are asked."""

import sys
from typing import ClassVar

import numpy as np
from smimbench_attention.inputs.independent import GaussianInputs

from smimbench import Capabilities, Info, hookimpl
from smimbench.interfaces import Metric, Plan


def raises(*_):
    raise KeyError("[/no such key]")


def leaves(*_):
    sys.exit(3)


def answers_nonsense(*_):
    return "nonsense"


ACTS = (raises, leaves, answers_nonsense)


class Moments:
    """One step: the correlation of inputs and labels."""

    version: ClassVar[int] = 1
    steps: ClassVar[int] = 1
    reference: ClassVar[str] = "none"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, *, scale: float = 1.0):
        self.scale = scale

    def init(self, problem, data, rng):
        x, y = (
            np.reshape(data.inputs, (-1, data.dimension)),
            np.reshape(data.labels, -1),
        )
        return self.scale * (x.T @ y)[None] / len(y)

    def step(self, problem, data, state):
        return state, Info(residual=1.0)

    def estimate(self, state):
        return state


class One(Metric):
    """Always 1."""

    version, reference, capabilities = 1, "none", Capabilities()
    label, unit, direction, per_component = "one", "1", "lower", False

    def measure(self, instance, estimate, claims):
        return [1.0]


def variant(base, name, **members):
    return type(
        name.title().replace("-", ""),
        (base,),
        {"name": name, "__doc__": base.__doc__, **members},
    )


def variants(base, method):
    return [
        variant(base, f"{method}-{act.__name__.replace('_', '-')}", **{method: act})
        for act in ACTS
    ]


ALGORITHMS = [
    *variants(Moments, "plan"),
    variant(Moments, "plan-of-many-steps", plan=lambda *_: Plan(steps="many")),
    *variants(Moments, "refuses"),
    *variants(Moments, "theory"),
]
METRICS = [
    *variants(One, "theory"),
    variant(One, "theory-of-two", theory=lambda *_: ([1.0, 1.0], [0.0, 0.0])),
    variant(One, "label-raises", label=property(raises)),
]
INPUTS = [
    variant(
        GaussianInputs, f"{name.replace('_', '-')}-raises", **{name: property(raises)}
    )
    for name in ("shape", "gaussian")
]


@hookimpl
def smimbench_register_algorithms(register):
    for item in ALGORITHMS:
        register(item)


@hookimpl
def smimbench_register_metrics(register):
    for item in METRICS:
        register(item)


@hookimpl
def smimbench_register_inputs(register):
    for item in INPUTS:
        register(item)
