"""What the code of one distribution does to its process, cells of others never see."""

import json
import os
import shutil
import time

import psutil
import pytest

from smimbench.registry.registry import Registry, set_registry
from smimbench.run.campaign import run_cells
from smimbench.run.cell import run_cell
from smimbench.run.executor import NO_LIMITS, Limits
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.reader import load_suite
from tests.helpers import LINE, call, output, sequence, suite_text, write_suite
from tests.records import numbers

TEMPLATE = '''
import atexit, builtins, ctypes, faulthandler, gc, json, locale, logging, os, pathlib, pickle, random, signal, subprocess
import sys, tempfile, threading, time, warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from smimbench import Capabilities, hookimpl


def signal_of(rng, data):
    """An estimate of the right shape."""
    return rng.standard_normal((1, data.inputs.shape[-1]))


@dataclass(frozen=True)
class Hostile:
    """Harms what it can reach."""

    name: ClassVar[str] = "{name}"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "none"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def fit(self, data, problem, rng):
        {act}
        return signal_of(rng, data)


@hookimpl
def smimbench_register_algorithms(register):
    register(Hostile)
'''
ACTS = {
    "sqrt": "plain = np.sqrt; np.sqrt = lambda x, *a, **k: 1.01 * plain(x, *a, **k)",
    "matmul": "plain = np.matmul; np.matmul = lambda *a, **k: 1.01 * plain(*a, **k)",
    "eigh": "np.linalg.eigh = None",
    "pi": "np.pi = 3.0",
    "array": "np.asarray = np.array = None",
    "generator": "np.random.Generator = np.random.default_rng = None",
    "random": "np.random.seed(0); random.seed(0)",
    "errors": "np.seterr(all='raise')",
    "gamp": "import smimbench_attention.algorithms.gamp as g\n        "
    "[setattr(m, k, 2 * v) for n, m in list(sys.modules.items()) if n.startswith('smimbench_attention.algorithms.') "
    "for k, v in vars(m).items() if k.isupper() and isinstance(v, (int, float))]",
    "adam": "import smimbench_attention.algorithms as a\n        a.__path__.clear()",
    "linear": "from smimbench_attention.channels.linear import SequenceLinear\n        SequenceLinear.posterior = None",
    "prior": "import smimbench_attention.priors\n        [sys.modules.pop(n) for n in list(sys.modules) if "
    "n.startswith('smimbench_attention.priors')]",
    "metric": "from smimbench_attention.metrics.mse import MSE\n        MSE.measure = lambda *a: [0.0]",
    "loop": "from smimbench.run import loop\n        loop.run_algorithm = None",
    "seeds": "from smimbench.problem import problem\n        problem.seed_sequence = lambda *a: np.random.SeedSequence(1)",
    "files": "from smimbench import files\n        files.canonical_json = lambda x: ''",
    "registry": "from smimbench.registry import registry\n        registry.get_registry()._entries.clear()",
    "environment": "os.environ.clear(); os.environ['PYTHONPATH'] = '/nowhere'",
    "cwd": "os.chdir('/')",
    "warnings": "warnings.simplefilter('error')",
    "fork": "os.fork()",
    "fork-exit": "os.fork() or os._exit(0)",
    "thread": "threading.Thread(target=lambda: [time.sleep(0.01) or setattr(np, 'pi', 3) for _ in range(9999)]).start()",
    "signals": "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)]",
    "alarm": "signal.alarm(1)",
    "timer": "signal.signal(signal.SIGALRM, lambda *a: 1 / 0); signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)",
    "gc": "gc.disable(); gc.set_threshold(0)",
    "recursion": "sys.setrecursionlimit(60)",
    "path": "sys.path.clear(); sys.meta_path.clear()",
    "modules": "sys.modules.pop('numpy'); sys.modules['scipy'] = None",
    "builtins": "builtins.len = builtins.sorted = lambda *a, **k: 3",
    "json": "json.dumps = lambda *a, **k: '{}'",
    "output": "os.close(1); os.close(2); sys.stdout = sys.stderr = None",
    "noise": "print('x' * 10**6, flush=True); os.write(1, b'{}' * 1000)",
    "exit": "atexit.register(time.sleep, 60); os._exit(0)",
    "abort": "os.abort()",
    "trace": "sys.settrace(lambda *a: 1 / 0); sys.setswitchinterval(10)",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))",
    "detached": "subprocess.Popen(['sleep', '60'], start_new_session=True)",
    "closed": "os.closerange(3, 100)",
}
assert len(ACTS) >= 40
OURS = ('name = "gamp"', 'name = "adam"\nsteps = 5')
CLOCKS = ("timing", "digest")
"""What of a record comes from a clock: its times (with load, peak memory and ceilings), and what is computed from them."""


def hostile(folder, names):
    """A plugin in a file of its own for each of these acts."""
    paths = []
    for name in names:
        path = folder / f"hostile_{name.replace('-', '_')}.py"
        path.write_text(
            TEMPLATE.replace("{name}", f"hostile-{name}").replace("{act}", ACTS[name])
        )
        paths.append(str(path))
    return paths


def records_of(folder, algorithms, limits=NO_LIMITS, seeds=1, alphas=(0.5, 1.0)):
    """Records by label and sample ratio; what is told by a clock is left out."""
    suite = write_suite(folder, suite_text(LINE, list(alphas), 20, seeds, *algorithms))
    cells = load_suite(suite).cells()
    store = Store(folder / "results")
    run_cells(cells, store, in_subprocess=True, workers=2, limits=limits)
    found = {}
    for stem in store.load():
        document = store.read(stem).document
        kept = {name: value for name, value in document.items() if name not in CLOCKS}
        steps = document.get("trajectory")
        kept["trajectory"] = steps and {
            k: v for k, v in steps.items() if k != "seconds"
        }
        found[stem] = json.dumps(kept, sort_keys=True)
    return found


@pytest.mark.slow
def test_forty_hostile_plugins_leave_their_siblings_alone(tmp_path):
    """The records of what ships are those of a run without these plugins; nothing is missing."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "mixed").mkdir()
    alone = records_of(tmp_path / "alone", OURS, alphas=[0.5])
    registry = Registry(hostile(tmp_path, list(ACTS)))
    assert not [plugin.problems for plugin in registry.plugins if plugin.failed]
    set_registry(registry)
    try:
        bad = [f'name = "hostile-{name}"' for name in ACTS]
        mixed = records_of(
            tmp_path / "mixed", [*bad, *OURS], Limits(seconds=20.0), alphas=[0.5]
        )
    finally:
        set_registry(None)
    assert len(mixed) == len(alone) + len(ACTS)
    assert {key: mixed[key] for key in alone} == alone


HONEST = "x, y = data.inputs.reshape(-1, data.dimension), data.labels.ravel(); return (x.T @ y)[None] / len(y)"


@pytest.mark.parametrize(("algorithm", "changes"), [
    ('name = "honest"', []),
    ('name = "honest"', ["run.start='spectral'"]),
    ('name = "averaged"\nof = "honest"\nstudents = 2', []),
])  # fmt: skip
def test_a_third_partys_numbers_are_the_same_in_a_process_of_its_own(
    tmp_path, monkeypatch, algorithm, changes
):
    plugin = tmp_path / "honest.py"
    plugin.write_text(TEMPLATE.replace("{name}", "honest").replace("{act}", HONEST))
    monkeypatch.setattr(
        "smimbench.registry.registry._process_registry", Registry([str(plugin)])
    )
    suite = write_suite(tmp_path, suite_text(LINE, [0.5], 20, 1, algorithm))
    (cell,) = load_suite(suite, changes).cells()
    assert cell.distributions() == {"honest"}
    (isolated,) = run_cells([cell], Store(tmp_path / "r"), in_subprocess=True)
    assert isolated.status == "ok", isolated.reason
    assert numbers(isolated.document) == numbers(run_cell(cell).document)


def test_a_process_loads_the_plugins_of_its_cells_alone(tmp_path):
    """Import is code, too; and what it changes in the environment and path of this process goes no further."""
    loud, quiet = tmp_path / "loud.py", tmp_path / "quiet.py"
    text = TEMPLATE.replace(
        "{act}",
        "print(sorted(n for n in sys.modules if 'dropin' in n), os.environ.get('LOUD'))",
    )
    loud.write_text(
        "import os, sys\nos.environ['LOUD'] = '1'\nsys.path.insert(0, '/loud')\n"
        + text.replace("{name}", "loud")
    )
    quiet.write_text(text.replace("{name}", "quiet"))
    registry = Registry([str(loud), str(quiet)])
    assert "LOUD" not in os.environ
    suite = write_suite(
        tmp_path, suite_text(LINE, [0.5], 20, 1, 'name = "loud"', 'name = "quiet"')
    )
    set_registry(registry)
    try:
        cells = load_suite(suite).cells()
        records = run_cells(cells, Store(tmp_path / "r"), in_subprocess=True)
    finally:
        set_registry(None)
    said = {record.algorithm: record.output for record in records}
    assert said == {
        "loud": "['smimbench_dropin_loud'] 1",
        "quiet": "['smimbench_dropin_quiet'] None",
    }
    assert "/loud" in registry.foreign_path


def test_a_grandchild_that_detaches_is_not_waited_for(tmp_path, monkeypatch):
    """It has left the session, its parent is gone, and it holds the pipe of the records."""
    mark = tmp_path / "grandchild"
    act = f"""if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))
                time.sleep(60)
            os._exit(0)
        time.sleep(0.5)"""
    plugin = tmp_path / "detaching.py"
    plugin.write_text(TEMPLATE.replace("{name}", "detaching").replace("{act}", act))
    monkeypatch.setattr(
        "smimbench.registry.registry._process_registry", Registry([str(plugin)])
    )
    suite = write_suite(tmp_path, suite_text(LINE, [0.5], 20, 1, 'name = "detaching"'))
    cells = load_suite(suite).cells()
    begin = time.monotonic()
    (record,) = run_cells(cells, Store(tmp_path / "r"), in_subprocess=True)
    assert record.status == "ok"
    assert time.monotonic() - begin < 45  # not the 60 s of the grandchild
    pid = int(mark.read_text())
    for _ in range(100):  # it was sent SIGKILL, and ends when the system lets it
        if (
            not psutil.pid_exists(pid)
            or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        ):
            return
        time.sleep(0.1)
    pytest.fail("the grandchild lives on")


@pytest.mark.parametrize(
    "seconds", [0.0, 0.2]
)  # the second is less than the process takes to start
def test_after_the_deadline_no_theory_is_solved(started_workers, seconds):
    cache = TheorySolver(in_subprocess=True, deadline=time.monotonic() + seconds)
    with pytest.raises(Exception, match="time budget exhausted"):
        cache.points(sequence("linear"), [0.5])
    assert cache.is_late
    assert not cache.process.executor.workers


def test_a_budget_bounds_theory_and_says_what_is_left(tmp_path, capsys):
    suite = write_suite(
        tmp_path, suite_text(LINE, [0.5], 20, 1, 'name = "adam"\nsteps = 2')
    )
    options = ("--results", tmp_path / "r", "--no-figure", "--workers", "1")
    output(capsys, "run", suite, *options)
    shutil.rmtree(tmp_path / "r" / "theory")
    code, _, err = call(capsys, "run", suite, *options, "--budget", "0.01s")
    assert code == 75
    assert "time budget exhausted before all theory was solved" in err
