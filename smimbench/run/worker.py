"""A process that runs cells for its parent: cells come in on one pipe, records go out on another, whatever a plugin does.

What is printed goes to a file that the parent keeps. The process ends with its parent, also if that was killed.
"""

from __future__ import annotations

import contextlib
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
from typing import IO, Any

__all__ = ["HEAD", "begin_worker", "main", "send"]

HEAD = struct.Struct(">Q")
"""Head of a message: its length."""


def send(stream: IO[bytes], data: bytes) -> None:
    """One message."""
    stream.write(HEAD.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    return stream.read(*HEAD.unpack(head))


def begin_worker() -> tuple[queue.SimpleQueue[bytes], IO[bytes]]:
    """First act of a process: what comes in, and where answers go; what is printed goes where the parent keeps it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    _end_with_parent()
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what plugins print must not look like a record
    faulthandler.enable()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, inbox), daemon=True).start()
    return inbox, target


def main() -> None:
    """Run cells until the parent closes the pipe."""
    inbox, target = begin_worker()
    setup: dict[str, Any] = json.loads(inbox.get())

    from smimbench.registry.registry import Registry, set_registry
    from smimbench.run.cell import run_cell
    from smimbench.run.heartbeat import beat_to

    beat_to(Path(setup["heartbeat"]))
    registry = Registry(setup["paths"], third_party=setup["third_party"], only=setup["only"])
    set_registry(registry)
    send(target, b"{}")
    here = os.getpid()
    while True:
        cells = pickle.loads(inbox.get())
        records = [
            run_cell(cell, timing=setup["timing"], threads=setup["threads"], registry=registry) for cell in cells
        ]
        if os.getpid() != here:  # a copy that a plugin has forked and forgotten
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a plugin may have closed or replaced it
                stream.flush()
        for record in records:
            send(target, json.dumps(record, allow_nan=False).encode())


def _read(source: IO[bytes], inbox: queue.SimpleQueue[bytes]) -> None:
    """Hand messages on; the end of the pipe is the end of the parent, or of its interest."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            inbox.put(_receive(source))
    os._exit(1)


def _end_with_parent() -> None:
    """Let the system kill this process when its parent ends: a thread would not be heard by C code that never yields.

    What its children start and leave behind becomes its own, so that it can be found and ended, whatever group it is in.
    """
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the end of the pipe has to do
        libc = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)
        libc.prctl(36, 1, 0, 0, 0)
