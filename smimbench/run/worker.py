"""A worker process: receives tasks on one pipe and sends answers on another, whatever a plugin does.

What is printed goes to a file that the parent keeps. The process ends with its parent, also if that was killed.

A cell with items of third parties takes two processes. The first draws the instance and measures estimates (``Students``); it
starts the second, which runs the algorithm on data as arrays and random streams without their seeds, and asks for the rest.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import queue
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from smimbench.files import JsonObject
from smimbench.run.executor import listen, send


def main() -> None:
    """Run tasks until the parent closes the pipe; errors of plugins become answers here."""
    inbox, target = _begin()
    setup: JsonObject = json.loads(inbox.get())

    run = None
    if setup["third_party"] and "timing" in setup and "student" not in setup:
        from smimbench.run.processes import Students  # first, so that both load the plugins at the same time

        run = Students(setup).run

    from smimbench.files import error_line, plain_value
    from smimbench.registry.registry import Registry, set_registry
    from smimbench.run.loop import beat_to

    beat_to(Path(setup["heartbeat"]))
    set_registry(Registry(setup["paths"], third_party=setup["third_party"], only=setup["only"]))
    here = os.getpid()

    def tell(**event: Any) -> None:
        message = json.dumps(event, default=plain_value).encode()
        if os.getpid() != here:  # a copy that a plugin has forked and forgotten
            os._exit(0)
        send(target, message)

    def ask(call: str, **arguments: Any) -> Any:
        """Ask the parent a question and return its answer."""
        tell(call=call, **arguments)
        found, error = pickle.loads(inbox.get())
        if error:
            name, _, message = error.partition(": ")
            raise type(name, (Exception,), {})(message)
        return found

    def cell(one: Any) -> JsonObject:
        from smimbench.run.cell import run_cell, run_here
        from smimbench.run.examiner import RemoteExaminer, draws_no_instance

        how: Any = run
        if "student" in setup:
            draws_no_instance()
            how = partial(run_here, examiner=partial(RemoteExaminer, ask))
        return run_cell(one, timing=setup["timing"], threads=setup["threads"], run=how)

    tell(ready=True)
    work: dict[str, Callable[..., Any]] = {"cell": cell}
    while True:
        kind, *arguments = pickle.loads(inbox.get())
        if kind == "theory" and kind not in work:
            from smimbench.run.theory_cache import Solver

            work[kind] = Solver(setup["folder"], tell).answer
        try:
            answer = work[kind](*arguments)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:  # a plugin may have done either
                    stream.flush()
            tell(answer=answer)
        except BaseException as error:  # a plugin may raise anything
            name, _, said = error_line(error).partition(": ")
            tell(error=name, key=str(getattr(error, "key", "")), message=said)


def _begin() -> tuple[queue.SimpleQueue[bytes], IO[bytes]]:
    """What comes in, and where answers go; what is printed goes where the parent keeps it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    _end_with_parent()
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what plugins print must not look like an answer
    faulthandler.enable()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # The end of the pipe is the end of the parent, or of its interest.
    listen(source, lambda message: os._exit(1) if message is None else inbox.put(message), sys.maxsize)
    return inbox, target


def _end_with_parent() -> None:
    """Let the system kill this process when its parent ends: a thread would not be heard by C code that never yields.

    What its children start and leave behind becomes its own, so that it can be found and ended, whatever group it is in.
    """
    if sys.platform == "linux":  # elsewhere the end of the pipe has to do
        libc = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)
        libc.prctl(36, 1, 0, 0, 0)
