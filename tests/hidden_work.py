"""Algorithms that do the same work in a step, where a clock might not look, or not at all."""

import threading
import time
from typing import ClassVar

import numpy as np

import smimbench
from smimbench import Capabilities, Info, hookimpl

KNOWN = {}


def work(seconds=0.1):
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


def guess(data):
    x, y = np.reshape(data.inputs, (-1, data.dimension)), np.reshape(data.labels, -1)
    return (x.T @ y)[None] / len(y)


class Steps:
    """It works in its step."""

    version: ClassVar[int] = 1
    steps: ClassVar[int] = 3
    reference: ClassVar[str] = "none"
    capabilities: ClassVar[Capabilities] = Capabilities()
    name = "in-step"

    def init(self, problem, data, rng):
        return guess(data), data

    def step(self, problem, data, state):
        work()
        return state, Info(residual=1.0)

    def estimate(self, state):
        return state[0]


class InEstimate(Steps):
    """It works when it is asked for its estimate."""

    name = "in-estimate"

    def step(self, problem, data, state):
        return state, Info(residual=1.0)

    def estimate(self, state):
        work()
        return state[0]


class InVariance(InEstimate):
    """It works when it is asked for its error."""

    name = "in-variance"

    def estimate(self, state):
        return state[0]

    def variance(self, state):
        work()
        return np.eye(1)


class InPlan(InVariance):
    """It works while it plans."""

    name = "in-plan"
    variance = None

    def plan(self, data):
        work()
        return smimbench.interfaces.Plan(steps=3)


class ByContent(Steps):
    """It works once for the same inputs."""

    name = "by-content"

    def key(self, data):
        return np.asarray(data.inputs).tobytes()

    def step(self, problem, data, state):
        if (key := self.key(data)) not in KNOWN:
            KNOWN[key] = work()
        return state, Info(residual=1.0)


class ByIdentity(ByContent):
    """It works once for the same array."""

    name = "by-identity"

    def key(self, data):
        return id(data.inputs)


class ByRandomNumbers(ByContent):
    """It works once for the same random numbers."""

    name = "by-random-numbers"

    def init(self, problem, data, rng):
        return guess(data), rng.random()

    def key(self, data):
        return self.drawn

    def step(self, problem, data, state):
        self.drawn = state[1]
        return super().step(problem, data, state)


class InThread(InEstimate):
    """A thread works while the clock stands still."""

    name = "in-thread"
    steps = 300

    def init(self, problem, data, rng):
        threading.Thread(target=work, daemon=True).start()
        return guess(data), data

    def step(self, problem, data, state):
        return state, Info(residual=1.0)

    def estimate(self, state):
        return state[0]


ITEMS = (
    Steps,
    InEstimate,
    InVariance,
    InPlan,
    ByContent,
    ByIdentity,
    ByRandomNumbers,
    InThread,
)


@hookimpl
def smimbench_register_algorithms(register):
    for item in ITEMS:
        register(item)
