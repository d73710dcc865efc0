"""A process that works for its parent: tasks come in on one pipe, answers go out on another, whatever a plugin does.

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
import struct
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.files import JsonObject

HEAD = struct.Struct(">Q")
"""Head of a message: its length."""


def send(stream: IO[bytes], data: bytes) -> None:
    """One message."""
    stream.write(HEAD.pack(len(data)) + data)
    stream.flush()


def main() -> None:
    """Do tasks until the parent closes the pipe: the boundary at which errors of plugins become answers."""
    inbox, target = _begin()
    setup: JsonObject = json.loads(inbox.get())

    from smimbench.files import error_line, plain_value
    from smimbench.registry.registry import Registry, set_registry
    from smimbench.run.loop import beat_to

    beat_to(Path(setup["heartbeat"]))
    set_registry(Registry(setup["paths"], third_party=setup["third_party"], only=setup["only"]))

    def tell(**event: Any) -> None:
        send(target, json.dumps(event, default=plain_value).encode())

    def cell(one: Any) -> JsonObject:
        from smimbench.run.cell import run_cell

        return run_cell(one, timing=setup["timing"], threads=setup["threads"])

    tell(ready=True)
    here = os.getpid()
    work: dict[str, Callable[..., Any]] = {"cell": cell}
    while True:
        kind, *arguments = pickle.loads(inbox.get())
        if kind == "theory" and kind not in work:
            from smimbench.run.theory_cache import Solver

            work[kind] = Solver(setup["folder"], tell).answer
        try:
            message = json.dumps({"answer": work[kind](*arguments)}, default=plain_value).encode()
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:  # a plugin may have done either
                    stream.flush()
        except BaseException as error:  # a plugin may raise anything
            name, _, said = error_line(error).partition(": ")
            message = json.dumps({"error": name, "key": str(getattr(error, "key", "")), "message": said}).encode()
        if os.getpid() != here:  # a copy that a plugin has forked and forgotten
            os._exit(0)
        send(target, message)


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
    threading.Thread(target=_read, args=(source, inbox), daemon=True).start()
    return inbox, target


def _read(source: IO[bytes], inbox: queue.SimpleQueue[bytes]) -> None:
    """Hand messages on; the end of the pipe is the end of the parent, or of its interest."""
    try:
        while len(head := source.read(HEAD.size)) == HEAD.size:
            inbox.put(source.read(*HEAD.unpack(head)))
    finally:
        os._exit(1)


def _end_with_parent() -> None:
    """Let the system kill this process when its parent ends: a thread would not be heard by C code that never yields.

    What its children start and leave behind becomes its own, so that it can be found and ended, whatever group it is in.
    """
    if sys.platform == "linux":  # elsewhere the end of the pipe has to do
        libc = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)
        libc.prctl(36, 1, 0, 0, 0)
