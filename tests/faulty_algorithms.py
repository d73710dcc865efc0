"""A drop-in plugin of algorithms that misbehave, each in its own way. The tests hand this file to ``--plugins``."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from smimbench import Capabilities, Info, hookimpl
from smimbench.interfaces import Algorithm


class Quiet(Algorithm):
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


class Unlocker(Quiet):
    """Opens the data for writing and wipes it out."""

    name: ClassVar[str] = "unlocker"

    def step(self, problem, data, state):
        data.inputs.setflags(write=True)
        data.inputs[...] = 0.0
        return super().step(problem, data, state)


class Digger(Quiet):
    """Follows the data to the memory that owns it, and wipes it out."""

    name: ClassVar[str] = "digger"

    def step(self, problem, data, state):
        owner = data.inputs
        while not (isinstance(owner, np.ndarray) and owner.flags.writeable):
            owner = owner.obj if isinstance(owner, memoryview) else owner.base
        owner[...] = 0.0
        return super().step(problem, data, state)


class RaisingDigger(Digger):
    """The same, and raises before anybody has looked."""

    name: ClassVar[str] = "raising-digger"

    def step(self, problem, data, state):
        super().step(problem, data, state)
        raise OSError("cannot open [/data/x]")


class Unprintable:
    """Has no text."""

    def __str__(self):
        raise OSError("no text")

    __repr__ = __str__


class OddReporter(Quiet):
    """Reports findings and warnings of every type but the right one."""

    name: ClassVar[str] = "odd-reporter"

    def step(self, problem, data, state):
        state, info = super().step(problem, data, state)
        return state, info._replace(warning=[Unprintable, {"\x1b[2J": 1}])

    def findings(self, state):
        table = {"a": 1}
        return {
            "table": table,
            "text": "abc",
            3: [1, None],
            "object": Unprintable(),
            "deep": [[1]],
            "fine": (1.5, None),
        }


class Unspeakable(Quiet):
    """Raises an error without a text."""

    name: ClassVar[str] = "unspeakable"

    def step(self, problem, data, state):
        class Silent(BaseException):
            def __str__(self):
                raise ValueError("no text")

        raise Silent


class Tower(Quiet):
    """Warns anew in every step, at length."""

    name: ClassVar[str] = "tower"
    steps: ClassVar[int] = 300

    def step(self, problem, data, state):
        self.count = getattr(self, "count", 0) + 1
        warnings.warn(f"{self.count} " + "long " * 5000, UserWarning, stacklevel=1)
        return super().step(problem, data, state)


class Aborter(Quiet):
    """Aborts in C."""

    name: ClassVar[str] = "aborter"

    def step(self, problem, data, state):
        os.abort()


class Faulter(Quiet):
    """Reads memory that is not there, in C."""

    name: ClassVar[str] = "faulter"

    def step(self, problem, data, state):
        ctypes.string_at(0)


class Exiter(Quiet):
    """Leaves as if all were well."""

    name: ClassVar[str] = "exiter"

    def step(self, problem, data, state):
        os._exit(0)


class Interrupter(Quiet):
    """Pretends to be Ctrl-C."""

    name: ClassVar[str] = "interrupter"

    def step(self, problem, data, state):
        raise KeyboardInterrupt


class Printer(Quiet):
    """Prints what looks like a document and like orders to the terminal, and goes elsewhere."""

    name: ClassVar[str] = "printer"

    def step(self, problem, data, state):
        print('{"rows": []} \x1b[2J')
        os.write(1, b"from C\n")
        os.chdir("/")
        return super().step(problem, data, state)


class Endless(Quiet):
    """Never returns, and never lets go of the interpreter."""

    name: ClassVar[str] = "endless"

    def step(self, problem, data, state):
        ctypes.PyDLL(None).sleep(10**6)


class EndlessStart(Quiet):
    """Never begins."""

    name: ClassVar[str] = "endless-start"

    def init(self, problem, data, rng):
        while True:
            time.sleep(0.01)


class Hoarder(Quiet):
    """Takes ever more memory."""

    name: ClassVar[str] = "hoarder"

    def step(self, problem, data, state):
        self.hoard = []
        for _ in range(40):
            self.hoard.append(np.ones(1 << 22))
            time.sleep(0.05)
        return super().step(problem, data, state)


@dataclass(frozen=True)
class DiesOnce(Quiet):
    """Kills its process the first time, and is as good as new the second."""

    flag: str = ""
    name: ClassVar[str] = "dies-once"

    def step(self, problem, data, state):
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().step(problem, data, state)
        os.kill(os.getpid(), signal.SIGKILL)


@hookimpl
def smimbench_register_algorithms(register):
    for algorithm in (
        Quiet, Raiser, Killer, KillerOfSome, Choosy, Talker, Sleeper, Diverger, WrongShape, Vandal, Leaver,
        Unlocker, Digger, RaisingDigger, OddReporter, Unspeakable, Tower,
        Aborter, Faulter, Exiter, Interrupter, Printer, Endless, EndlessStart, Hoarder, DiesOnce,
    ):  # fmt: skip
        register(algorithm)
