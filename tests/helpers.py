"""What several test files need: suites, plugin packages on disk, the command line in this process and in another."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from smimbench.backend.device import get_backend
from smimbench.interfaces import Capabilities, Channel, Conditions
from smimbench.problem.problem import Problem
from smimbench.run.loop import run_algorithm
from smimbench.suite.reader import load_suite
from smimbench.suite.schema import RunOptions
from smimbench.theory.types import TheoryPoint

ROOT = Path(__file__).resolve().parent.parent


class Square(Channel):
    """Channel of phase retrieval, y = z^2: all moments of its gradients are polynomials."""

    name, version, reference = "square", 1, "Isserlis' theorem"
    components, symmetry = 1, "signs"
    capabilities = Capabilities()

    def forward(self, z, *, rng=None):
        """Label of the latents."""
        return z * z

    def observable(self, y):
        """What a loss compares."""
        return y

    def vjp(self, z, cotangent):
        """Derivative of the label."""
        return 2 * z * cotangent


def suite_text(problem, alpha, dimension, seeds, *algorithms):
    """A suite with one problem, from what stands in ``[problem]`` and in each of ``[[algorithms]]``."""
    grid = (
        f"[grid]\nalpha     = {alpha}\ndimension = [{dimension}]\nseeds     = {seeds}\n"
    )
    tables = "".join(f"\n[[algorithms]]\n{text}\n" for text in algorithms)
    return f"\n[problem]\n{problem}\n\n{grid}{tables}"


LINE = """label   = "line"
model   = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "linear", noise = 0.2 }
prior   = { name = "gaussian" }"""
SUITE = '\n[suite]\ntitle = "A small suite"\n' + suite_text(
    LINE, [0.5, 1.0], 30, 2, 'name = "gamp"', 'name  = "adam"\nsteps = 5'
)

ATTENTION = suite_text(
    """label   = "softmax"
model   = { name = "attention-indexed", tokens = 2 }
channel = { name = "softmax", beta = 1.0 }
prior   = { name = "wishart", rho = 0.5 }""",
    [0.1, 0.3],
    30,
    2,
    'name = "gamp"',
)

CHANNEL = '''
from dataclasses import dataclass
from typing import ClassVar

import smimbench
from smimbench import Capabilities, hookimpl


@dataclass(frozen=True)
class Twice:
    """Labels are the latents, doubled."""

    tokens: int = 2
    gain: float = 2.0

    name: ClassVar[str] = "twice"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "none"
    capabilities: ClassVar[Capabilities] = Capabilities(models=("sequence-multi-index",))
    symmetry: ClassVar[str] = "none"

    @property
    def components(self):
        return 1

    def forward(self, z, *, rng=None):
        return self.gain * z

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        return smimbench.Posterior(y / self.gain, 0 * V)


@hookimpl
def smimbench_register_channels(register):
    register(Twice)
'''


def scalar(value):
    """A matrix (1, 1)."""
    return np.array([[float(value)]])


def attention(channel="softmax", tokens=2, rho=0.5, **parameters):
    """An attention-indexed problem with parameters of its channel."""
    return Problem(
        {"name": "attention-indexed", "tokens": tokens},
        {"name": channel, **parameters},
        {"name": "wishart", "rho": rho},
    )


def sequence(channel="softmax", tokens=2, **parameters):
    """A sequence multi-index problem with parameters of its channel."""
    return Problem(
        {"name": "sequence-multi-index", "tokens": tokens},
        {"name": channel, **parameters},
        "gaussian",
    )


def run_once(
    problem, instance, algorithm, backend=None, start=None, seed=0, **settings
):
    """One run through the engine's loop; runs of one seed share their start and their fresh samples."""
    backend = backend or get_backend()
    data = instance.data(backend, start)
    how = RunOptions(**settings)
    return run_algorithm(
        problem,
        instance,
        data,
        algorithm,
        lambda attempt: np.random.default_rng(attempt + 1000 * seed),
        how,
        backend,
    )


def write_suite(folder, text=SUITE, name="small"):
    """Write a suite to a file of its own."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def loaded(folder, text=SUITE, *overrides, **how):
    """The suite of this text."""
    return load_suite(write_suite(folder, text), *overrides, **how)


def install_package(folder, distribution, modules, version="1.0"):
    """Lay out an installed distribution by hand: modules and the metadata of their ``smimbench`` entry points.

    ``folder`` has to be on ``sys.path`` to be found, exactly as site-packages is.
    """
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    lines = "\n".join(f"{name} = {name}" for name in modules)
    (info / "entry_points.txt").write_text(f"[smimbench]\n{lines}\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


def call(capsys, *arguments):
    """Run the command line in this process: exit code, standard output, standard error."""
    from smimbench.cli import main

    capsys.readouterr()
    try:
        main([str(a) for a in arguments])
    except SystemExit as leaving:
        code = leaving.code
    else:  # pragma: no cover - main always leaves by SystemExit
        raise AssertionError("main returned")
    out, err = capsys.readouterr()
    return int(code or 0), out, err


def output(capsys, *arguments):
    """What a command that succeeds prints."""
    code, out, err = call(capsys, *arguments)
    assert code == 0, out + err
    return out


def silent(capsys, *arguments):
    """The same of a command that has nothing to remark."""
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


def refusal(capsys, *arguments):
    """The one line in which a command says what is wrong, in place of any output."""
    code, out, err = call(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err


def answer(capsys, *arguments):
    """The JSON document that a command prints."""
    return json.loads(call(capsys, *arguments, "--json")[1])


def flat(text):
    """Text in one line, wherever a terminal broke it."""
    return " ".join(text.split())


def ends_with(*arguments):
    """Run the command line in this process, for fixtures of a whole module: its exit code."""
    from smimbench.cli import main
    from smimbench.registry.registry import set_registry

    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    set_registry(None)  # plugins of this command are not those of the next test
    return int(left.value.code or 0)


def environment(**more):
    """Environment of a child process: one BLAS thread, this checkout first on its path."""
    paths = [str(ROOT), str(ROOT / "plugins")]
    found = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}
    found["PYTHONPATH"] = os.pathsep.join(
        paths + [p for p in [os.environ.get("PYTHONPATH", "")] if p]
    )
    found.pop("SCIPY_ARRAY_API", None)
    return found


def command(*arguments):
    """The command line as a user starts it."""
    return [sys.executable, "-m", "smimbench", *map(str, arguments)]


def call_outside(*arguments, timeout=120, cwd=None, **more):
    """Run the command line in another process."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**more),
        check=False,
        cwd=cwd,
    )


def started(*arguments, out=subprocess.PIPE, err=subprocess.PIPE, **more):
    """The command line in a process and a group of its own."""
    return subprocess.Popen(
        command(*arguments),
        stdout=out,
        stderr=err,
        text=True,
        env=environment(),
        start_new_session=True,
        **more,
    )


@contextmanager
def importable(folder, monkeypatch):
    """Python searches the folder first; what was imported from it is forgotten at the end."""
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


class JsonPoint(dict):
    """A point of theory that is JSON already, with the entries that a metric reads."""

    def document(self):
        return self


def theory_point(alpha, mse, branch="unique"):
    """A point of one component of length 1, known exactly."""
    zero = np.zeros(1)
    overlap = np.array([[1 - mse]])
    return TheoryPoint(alpha, np.array([mse]), zero, zero, overlap, branch, "closed")


def one_document(text):
    """JSON that is the whole text, with no number that JSON does not know."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def sgd_runs(problem, algorithm, dimension, seeds):
    """Mean squared errors and overlaps (2, seeds, steps + 1) of the first component in runs of online descent on matrices."""
    paths = []
    for seed in range(seeds):
        sample_ratio = problem.model.sample_ratio(algorithm.batch, dimension)
        instance = problem.instance(sample_ratio, dimension, seed, seed=7)
        data = instance.data(get_backend("numpy"))
        state = algorithm.init(problem, data, np.random.default_rng(seed))
        states = [state]
        for _ in range(algorithm.steps):
            state, _ = algorithm.step(problem, data, state)
            states.append(state)
        metrics = [instance.metrics(state.signal) for state in states]
        paths.append(
            [[float(m[name][0]) for m in metrics] for name in ("mse", "overlap")]
        )
    return np.swapaxes(paths, 0, 1)


def assert_runs_follow(problem, algorithm, dimension, seeds):
    """Means over runs of online descent on matrices stay within four errors of the predicted path, and those are small."""
    prediction = algorithm.theory(problem, 1.0, Conditions(dimension=dimension))
    assert not isinstance(prediction, str)
    trajectory = prediction.trajectory
    runs = sgd_runs(problem, algorithm, dimension, seeds)[..., trajectory["iteration"]]
    for measured, name in zip(runs, ("mse", "overlap")):
        predicted, stated = (
            np.array(trajectory[column])[:, 0] for column in (name, f"{name}_error")
        )
        error = np.hypot(measured.std(axis=0, ddof=1) / np.sqrt(seeds), stated)
        assert (np.abs(measured.mean(axis=0) - predicted) < 4 * error).all()
        assert error[-1] < 0.2 * max(predicted[-1], 0.5)
