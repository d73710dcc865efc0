"""A worker process: receives tasks on one pipe and sends answers on another, whatever a plugin does.

What is printed goes to a file that the parent keeps. The process ends with its parent, also if that was killed.

A cell with items of third parties takes two processes. The first draws the instance and measures estimates (``TeacherServer``);
it starts the second, which runs the algorithm on data as arrays and random streams without their seeds, and asks for the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import json
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.files import JsonObject

HEAD = struct.Struct(">Q")
"""Head of a message: its length."""


def send(stream: Any, data: bytes) -> None:
    """Send one message to the parent."""
    stream.write(HEAD.pack(len(data)) + data)
    stream.flush()


def started(path: list[str], **how: Any) -> subprocess.Popen[bytes]:
    """A process that works for this one; its ``sys.path`` is this, so that nothing of the working folder comes before it."""
    boot = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from smimbench.run.worker import main; main()"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", boot, json.dumps(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches the parent alone, and what a plugin starts ends with it
        **how,
    )


def listen(stream: Any, receive: Callable[[bytes | None], object], longest: int = 1 << 32) -> None:
    """Hand on the messages of a stream from now on; None is its end."""

    def read() -> None:
        try:
            with stream:
                while len(head := stream.read(HEAD.size)) == HEAD.size:
                    (length,) = HEAD.unpack(head)
                    if length > longest or len(message := stream.read(length)) < length:
                        break
                    receive(message)
        finally:
            receive(None)

    threading.Thread(target=read, daemon=True).start()


def main() -> None:
    """Run tasks until the parent closes the pipe; errors of plugins become answers here."""
    inbox, target = _begin()
    setup: JsonObject = json.loads(inbox.get())
    knows_teachers = setup["third_party"] and "timing" in setup and "student" not in setup
    student = Student(setup) if knows_teachers else None

    import numpy

    from smimbench.files import error_line, plain_value
    from smimbench.registry.registry import Registry, set_registry
    from smimbench.run.loop import beat_to

    beat_to(Path(setup["heartbeat"]))
    set_registry(Registry(setup["paths"], third_party=setup["third_party"], only=setup["only"]))

    def tell(**event: Any) -> None:
        send(target, json.dumps(event, default=plain_value).encode())

    def ask(call: str, estimate: Any = None, **arguments: Any) -> Any:
        """Ask the parent a question and return its answer."""
        from smimbench.backend.arrays import to_host

        body = io.BytesIO()
        if estimate is not None:
            numpy.save(body, to_host(estimate), allow_pickle=False)
        send(target, json.dumps({"call": call, "with": arguments}).encode() + b"\n" + body.getvalue())
        return pickle.loads(inbox.get())

    def cell(one: Any) -> JsonObject:
        from smimbench.run.cell import run_cell, run_here
        from smimbench.run.examiner import RemoteExaminer, draws_no_instance

        run = student.run if student else None
        if "student" in setup:
            draws_no_instance()
            run = partial(run_here, examiner=partial(RemoteExaminer, ask))
        return run_cell(one, timing=setup["timing"], threads=setup["threads"], run=run)

    if student is not None:
        student.wait()
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


class Student:
    """The process that runs algorithms of third parties for this one, which knows their teachers.

    When it ends by itself, this one ends like it: whoever supervises both sees what has happened.
    """

    def __init__(self, setup: JsonObject) -> None:
        self._setup = {**setup, "student": True}
        self._begin()

    def _begin(self) -> None:
        self._ready = False
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process = started(sys.path)
        self._tell(json.dumps(self._setup).encode())
        listen(self._process.stdout, self._messages.put)

    def _tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which is noticed where its answer is awaited
            send(self._process.stdin, message)

    def _heard(self) -> tuple[JsonObject, bytes]:
        """What it says next."""
        message = None
        while message is None:
            try:
                message = self._messages.get(timeout=0.5)
                ended = message is None
            except queue.Empty:  # somebody else may hold its pipe open
                ended = self._process.poll() is not None and self._messages.empty()
            if ended:
                self._end_likewise()
        line, _, body = message.partition(b"\n")
        return json.loads(line), body

    def wait(self) -> None:
        """Wait until it is ready for work."""
        if not self._ready:
            self._ready = self._heard()[0] == {"ready": True}

    def run(self, cell: Any, timing: bool) -> JsonObject:
        """What a record says of a run; ``timing`` it knows."""
        import numpy

        from smimbench.run.examiner import TeacherServer

        self.wait()
        server = TeacherServer(cell)
        self._tell(pickle.dumps(("cell", replace(cell, seed=0, replicate=0, secret=None))))
        try:
            while True:
                event, body = self._heard()
                if "answer" in event:
                    return server.record_of_run({k: v for k, v in event["answer"].items() if k not in ("key", "cell")})
                if "error" in event:
                    raise type(event["error"], (Exception,), {})(event["message"])
                estimate = numpy.load(io.BytesIO(body), allow_pickle=False) if body else None
                self._tell(pickle.dumps(server.answer(event["call"], estimate, event["with"])))
        except BaseException:  # whatever it waits for now does not come
            self._kill()
            self._begin()
            raise

    def _kill(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError, AttributeError):  # there are groups on POSIX only
            os.killpg(self._process.pid, signal.SIGKILL)  # and what it has started

    def _end_likewise(self) -> None:
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            code = 1
        self._kill()
        faulthandler.disable()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -code)
        os._exit(code)


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
