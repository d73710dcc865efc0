"""A drop-in plugin of algorithms that misbehave, each in its own way. The tests hand this file to ``--plugins``."""

from __future__ import annotations

import os
import signal
import time
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from smimbench import Capabilities, Info, hookimpl


class Quiet:
    """Learns nothing, in three steps."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "none"
    capabilities: ClassVar[Capabilities] = Capabilities()
    steps: ClassVar[int] = 3
    name: ClassVar[str] = "quiet"

    def init(self, problem, data, rng):
        return rng.standard_normal(problem.model.signal_shape(problem.components, data.dimension))

    def step(self, problem, data, state):
        return state * 0.5, Info(residual=1.0)

    def estimate(self, state):
        return state


class Raiser(Quiet):
    """Raises at its second step, with a message of two lines."""

    name: ClassVar[str] = "raiser"

    def step(self, problem, data, state):
        if getattr(self, "stepped", False):
            raise ZeroDivisionError("nothing to\n   divide by")
        self.stepped = True
        return super().step(problem, data, state)


class Killer(Quiet):
    """Takes its process with it."""

    name: ClassVar[str] = "killer"

    def step(self, problem, data, state):
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class KillerOfSome(Quiet):
    """Dies on every second instance it sees, told by the parity of the first bits of the data."""

    name: ClassVar[str] = "killer-of-some"

    def step(self, problem, data, state):
        if data.inputs[0, 0, 0] > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(problem, data, state)


class Choosy(Quiet):
    """Refuses every problem."""

    name: ClassVar[str] = "choosy"

    def refuses(self, problem):
        return f"no taste for {problem.channel.name}"


class Talker(Quiet):
    """Warns in every way there is."""

    name: ClassVar[str] = "talker"

    def step(self, problem, data, state):
        warnings.warn("by warnings", UserWarning, stacklevel=1)
        np.log(np.zeros(1))
        state, info = super().step(problem, data, state)
        return state, info._replace(warning="by info")


class Sleeper(Quiet):
    """Never ends by itself."""

    name: ClassVar[str] = "sleeper"
    steps: ClassVar[None] = None

    def step(self, problem, data, state):
        time.sleep(0.01)
        return state, Info(residual=1.0)


class Diverger(Quiet):
    """Ends in numbers that are none."""

    name: ClassVar[str] = "diverger"

    def step(self, problem, data, state):
        return state * np.inf, Info(residual=float("nan"))


class WrongShape(Quiet):
    """Hands back an estimate that is no signal."""

    name: ClassVar[str] = "wrong-shape"

    def estimate(self, state):
        return state[..., 1:]


class Vandal(Quiet):
    """Tries to make its task easier by writing into the data."""

    name: ClassVar[str] = "vandal"

    def step(self, problem, data, state):
        data.inputs[...] = 0.0
        return super().step(problem, data, state)


class Leaver(Quiet):
    """Calls sys.exit."""

    name: ClassVar[str] = "leaver"

    def step(self, problem, data, state):
        raise SystemExit(7)


@hookimpl
def smimbench_register_algorithms(register):
    for algorithm in (
        Quiet, Raiser, Killer, KillerOfSome, Choosy, Talker, Sleeper, Diverger, WrongShape, Vandal, Leaver,
    ):  # fmt: skip
        register(algorithm)
