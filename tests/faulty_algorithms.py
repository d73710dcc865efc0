"""A drop-in plugin of algorithms that misbehave, each in its own way. The tests hand this file to ``--plugins``."""

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
    steps: ClassVar[int | None] = 3
    name: ClassVar[str] = "quiet"

    def init(self, problem, data, rng):
        return rng.standard_normal(
            problem.model.signal_shape(problem.components, data.dimension)
        )

    def step(self, problem, data, state):
        return state * 0.5, Info(residual=1.0)

    def estimate(self, state):
        return state


class Raiser(Quiet):
    """Raises at its second step, with a message of two lines."""

    name = "raiser"

    def step(self, problem, data, state):
        if getattr(self, "stepped", False):
            raise ZeroDivisionError("nothing to\n   divide by")
        self.stepped = True
        return super().step(problem, data, state)


class Choosy(Quiet):
    """Refuses every problem."""

    name = "choosy"

    def refuses(self, problem):
        return f"no taste for {problem.channel.name}"


class Talker(Quiet):
    """Warns in every way there is."""

    name = "talker"

    def step(self, problem, data, state):
        warnings.warn("by warnings", UserWarning, stacklevel=1)
        np.log(np.zeros(1))
        state, info = super().step(problem, data, state)
        return state, info._replace(warning="by info")


class Diverger(Quiet):
    """Ends in numbers that are none."""

    name = "diverger"

    def step(self, problem, data, state):
        return state * np.inf, Info(residual=float("nan"))


class WrongShape(Quiet):
    """Hands back an estimate that is no signal."""

    name = "wrong-shape"

    def estimate(self, state):
        return state[..., 1:]


class EndlessStart(Quiet):
    """Never begins."""

    name = "endless-start"

    def init(self, problem, data, rng):
        while True:
            time.sleep(0.01)


class Unprintable:
    """Has no text."""

    def __str__(self):
        raise OSError("no text")

    __repr__ = __str__


class OddReporter(Quiet):
    """Reports findings and warnings of every type but the right one."""

    name = "odd-reporter"

    def step(self, problem, data, state):
        state, info = super().step(problem, data, state)
        return state, info._replace(warning=[Unprintable, {"\x1b[2J": 1}])

    def findings(self, state):
        odd = {
            "table": {"a": 1},
            "text": "abc",
            3: [1, None],
            "object": Unprintable(),
            "deep": [[1]],
        }
        return {**odd, "fine": (1.5, None)}


class FailingReporter(Quiet):
    """Runs well and fails where it should say what it found."""

    name = "failing-reporter"

    def findings(self, state):
        raise RuntimeError("nothing kept")


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


def kill(algorithm, data):
    """Takes its process with it."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_some(algorithm, data):
    """Dies on every second instance it sees, told by the parity of the first bits of the data."""
    if data.inputs[0, 0, 0] > 0:
        kill(algorithm, data)


def overwrite(algorithm, data):
    """Tries to make its task easier by writing into the data."""
    data.inputs[...] = 0.0


def unlock(algorithm, data):
    """Opens the data for writing and wipes it out."""
    data.inputs.setflags(write=True)
    data.inputs[...] = 0.0


def dig(algorithm, data):
    """Follows the data to the memory that owns it, and wipes it out."""
    owner = data.inputs
    while not (isinstance(owner, np.ndarray) and owner.flags.writeable):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    owner[...] = 0.0


def dig_and_raise(algorithm, data):
    """The same, and raises before anybody has looked."""
    dig(algorithm, data)
    raise OSError("cannot open [/data/x]")


def leave(algorithm, data):
    """Calls sys.exit."""
    raise SystemExit(7)


def interrupt(algorithm, data):
    """Pretends to be Ctrl-C."""
    raise KeyboardInterrupt


def raise_without_text(algorithm, data):
    """Raises an error without a text."""
    raise type("Silent", (BaseException,), {"__str__": Unprintable.__str__})


def warn_at_length(algorithm, data):
    """Warns in every step, at length."""
    algorithm.count = getattr(algorithm, "count", 0) + 1
    warnings.warn(f"{algorithm.count} " + "long " * 5000, UserWarning, stacklevel=1)


def print_orders(algorithm, data):
    """Prints what looks like a document and like orders to the terminal, and goes elsewhere."""
    print('{"rows": []} \x1b[2J')
    os.write(1, b"from C\n")
    os.chdir("/")


def hoard(algorithm, data):
    """Takes ever more memory."""
    algorithm.hoard = []
    for _ in range(40):
        algorithm.hoard.append(np.ones(1 << 22))
        time.sleep(0.05)


def compile_once(algorithm, data):
    """Takes long in its first step, and never again in this process."""
    time.sleep(0.001 if COMPILED else 1.0)
    COMPILED.append(True)


COMPILED: list[bool] = []
ACTS = {
    "killer": kill,
    "killer-of-some": kill_some,
    "vandal": overwrite,
    "unlocker": unlock,
    "digger": dig,
    "raising-digger": dig_and_raise,
    "leaver": leave,
    "interrupter": interrupt,
    "unspeakable": raise_without_text,
    "tower": warn_at_length,
    "printer": print_orders,
    "hoarder": hoard,
    "compiler": compile_once,
    "sleeper": lambda algorithm, data: time.sleep(0.01),  # never ends by itself
    "aborter": lambda algorithm, data: os.abort(),  # aborts in C
    "faulter": lambda algorithm, data: ctypes.string_at(
        0
    ),  # reads memory that is not there, in C
    "exiter": lambda algorithm, data: os._exit(0),  # leaves as if all were well
    # Never returns, and never lets go of the interpreter.
    "endless": lambda algorithm, data: ctypes.PyDLL(None).sleep(10**6),
}
STEPS = {"sleeper": None, "tower": 300, "compiler": 1000}


def acting(name):
    """The algorithm that does so in every step."""

    def step(self, problem, data, state):
        ACTS[name](self, data)
        return Quiet.step(self, problem, data, state)

    members = {
        "name": name,
        "step": step,
        "steps": STEPS.get(name, 3),
        "__doc__": ACTS[name].__doc__ or name,
    }
    return type(name.title().replace("-", ""), (Quiet,), members)


@hookimpl
def smimbench_register_algorithms(register):
    for algorithm in (
        Quiet,
        Raiser,
        Choosy,
        Talker,
        Diverger,
        WrongShape,
        EndlessStart,
        OddReporter,
        FailingReporter,
        DiesOnce,
    ):
        register(algorithm)
    for name in ACTS:
        register(acting(name))
