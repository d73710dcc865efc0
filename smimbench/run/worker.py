"""A worker process: receives tasks on one pipe and sends answers on another, whatever a plugin does.

What is printed goes to a file that the parent keeps. The process ends with its parent, also if that was killed.
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
from pathlib import Path
from typing import IO, Any

from smimbench.files import JsonObject
from smimbench.run.executor import listen, send


def main() -> None:
    """Run tasks until the parent closes the pipe; errors of plugins become answers here."""
    inbox, target = _begin()
    setup: JsonObject = json.loads(inbox.get())

    from smimbench.files import error_line, plain_value
    from smimbench.registry.registry import Registry, set_registry
    from smimbench.run.loop import beat_to

    beat_to(Path(setup["heartbeat"]))
    set_registry(
        Registry(setup["paths"], third_party=setup["third_party"], only=setup["only"])
    )
    here = os.getpid()

    def tell(**event: Any) -> None:
        message = json.dumps(event, default=plain_value).encode()
        if os.getpid() != here:  # a copy that a plugin has forked and forgotten
            os._exit(0)
        send(target, message)

    work: Callable[..., Any]
    if "folder" in setup:
        from smimbench.run.theory_worker import TheoryWorker

        work = TheoryWorker(setup["folder"], tell).answer
    else:
        from smimbench.run.cell import run_cell

        def work(cell: Any) -> JsonObject:
            record = run_cell(cell, timing=setup["timing"], threads=setup["threads"])
            return record.document

    while True:
        arguments = pickle.loads(inbox.get())
        tell(begun=True)
        try:
            answer = work(*arguments)
            for stream in (sys.stdout, sys.stderr):
                if (
                    stream is not None and not stream.closed
                ):  # a plugin may have done either
                    stream.flush()
            tell(answer=answer)
        except BaseException as error:  # a plugin may raise anything
            name, _, said = error_line(error).partition(": ")
            tell(error=name, key=str(getattr(error, "key", "")), message=said)


def _begin() -> tuple[queue.SimpleQueue[bytes], IO[bytes]]:
    """Open the streams of tasks and of answers; what is printed goes to the parent's file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    _end_with_parent()
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what plugins print must not look like an answer
    faulthandler.enable()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    leave = os._exit  # the registry replaces it while it imports a plugin, and the parent may end just then
    # The end of the pipe is the end of the parent, or of its interest.
    listen(
        source,
        lambda message: leave(1) if message is None else inbox.put(message),
        sys.maxsize,
    )
    return inbox, target


def _end_with_parent() -> None:
    """Let the system kill this process when its parent ends: a thread would not be heard by C code that never yields.

    What its children start and leave behind becomes its own, so that it can be found and ended, whatever group it is in.
    """
    if sys.platform == "linux":  # elsewhere the end of the pipe has to do
        libc = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)
        libc.prctl(36, 1, 0, 0, 0)
