"""Worker processes that are forked from one that has imported everything, where a test is not about how they start."""

import json
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from types import SimpleNamespace

PRELOADED = (
    "smimbench.run.cell",
    "smimbench.run.theory_processes",
    "smimbench_attention",
    "scipy.stats",
    "numba",
    "tests.forked",
)


def _work(pipes, import_path, folder, variables):
    """Take over pipes, path, working folder and environment as if started with them, and do a worker's work."""
    os.setsid()
    for descriptor, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), descriptor)
        pipe.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = import_path
    from smimbench.run.executor import main

    main()


class Forked:
    """What the executor needs of ``subprocess.Popen``, for the processes that it starts."""

    def __init__(self, command, *, stderr, env, **_):
        tasks, to_worker = os.pipe()
        from_worker, answers = os.pipe()
        pipes = [Connection(end) for end in (tasks, answers, os.dup(stderr.fileno()))]
        arguments = (pipes, json.loads(command[-1]), os.getcwd(), dict(env))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        # Python waits at its end for processes that are no daemons, also for one that waits for its next task.
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        for pipe in pipes:
            pipe.close()
        self.stdin = os.fdopen(to_worker, "wb", 0)
        self.stdout = os.fdopen(from_worker, "rb")

    @property
    def returncode(self):
        """Exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self):
        """Exit code, or None."""
        return self.returncode

    def wait(self, timeout=None):
        """Wait for its end."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return self.returncode


SUBPROCESS = SimpleNamespace(
    Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
)
"""In place of the module, in ``smimbench.run.executor``."""
