"""One process at work for this one: it is started with the plugins that its work needs, spoken to by messages, and ended
with all that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil

from smimbench.run.worker import HEAD, send

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SupervisedProcess", "how_it_ended", "plugins_of"]

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main()"
"""What ``python -P -c`` runs: the parent's path first, so that nothing of the working folder comes before it."""
LAST_WORDS = 0.5
"""Seconds in which what a process wrote before it ended is still read; doubled, its end is noticed that much later."""


def plugins_of(registry: Any, distributions: frozenset[str]) -> dict[str, Any]:
    """What a process has to know to load the plugins of these distributions, and of no other."""
    return {"paths": registry.paths, "third_party": bool(distributions), "only": sorted(distributions)}


class SupervisedProcess:
    """A process that runs ``main`` of a module.

    Parameters
    ----------
    setup : dict
        Its first message.
    on_message : callable
        Called in a thread with every message, and with None when its pipe ends.
    foreign : set of str
        Entries of ``sys.path`` that plugins have added here, and that it does not get.
    """

    def __init__(
        self,
        module: str,
        setup: dict[str, Any],
        threads: int,
        on_message: Callable[[bytes | None], None],
        foreign: set[str],
    ) -> None:
        self.output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed in end()
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        path = [entry for entry in sys.path if entry not in foreign]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", BOOT.format(module=module), json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.output,
            env=dict.fromkeys(names, str(threads)) | dict(os.environ),
            start_new_session=True,  # Ctrl-C reaches the parent alone, and what a plugin starts ends with it
        )
        self._died: float | None = None
        self.tell(json.dumps(setup).encode())
        threading.Thread(target=_listen, args=(self.process.stdout, on_message), daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it is there."""
        return self.process.poll() is None

    @property
    def silent(self) -> bool:
        """Whether it has ended and all that it wrote is read, also if somebody else holds its pipe open."""
        if not self.alive:
            self._died = self._died or time.monotonic()
        return self._died is not None and time.monotonic() - self._died > LAST_WORDS

    def tell(self, message: bytes) -> None:
        """Send it a message."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead, which the other pipe says too
            send(self.process.stdin, message)

    def memory(self) -> int:
        """Bytes that it and what it started have in memory."""
        total = 0
        for one in self._family():
            with contextlib.suppress(psutil.Error):
                total += one.memory_info().rss
        return total

    def _family(self) -> list[psutil.Process]:
        try:
            leader = psutil.Process(self.process.pid)
            return [leader, *leader.children(recursive=True)]
        except psutil.Error:
            return []

    def kill(self) -> None:
        """End it and what it started, also what has left its group: that is a child of it still, see ``begin_worker``."""
        family = self._family() if self.alive else []
        with contextlib.suppress(OSError, AttributeError):  # there are groups on POSIX only
            os.killpg(self.process.pid, signal.SIGKILL)
        for one in family:
            with contextlib.suppress(psutil.Error):
                one.kill()

    def end(self) -> None:
        """End it and let go of it. The other pipe belongs to the thread that reads it: somebody may hold it open."""
        self.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.output):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _listen(stream: Any, on_message: Callable[[bytes | None], None]) -> None:
    with stream, contextlib.suppress(OSError, ValueError, MemoryError):
        while len(head := stream.read(HEAD.size)) == HEAD.size:
            (length,) = HEAD.unpack(head)
            if length > 1 << 32 or len(message := stream.read(length)) < length:
                break
            on_message(message)
    on_message(None)


def how_it_ended(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "it closed its pipe"
    if code >= 0:
        return f"it left with exit code {code} before its cell was finished"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (out of memory, or killed)" if name == "SIGKILL" else name
