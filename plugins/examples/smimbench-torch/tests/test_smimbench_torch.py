"""Every optimiser of torch.optim runs on both models; gradients and steps agree with smimbench's own."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import smimbench_torch
import torch
from smimbench_algorithms.adam import Adam
from smimbench_torch.source import optimizers_in_source

from smimbench import ParameterError, Problem
from smimbench.backend import get_backend
from smimbench.registry import Registry, build, parameters_of
from smimbench.run.loop import run_algorithm
from smimbench.suite.schema import RunOptions

REGISTRY = Registry()
NAMES = list(smimbench_torch.optimizers())
ATTENTION = Problem({"name": "attention-indexed", "tokens": 2}, "softmax", {"name": "wishart", "rho": 0.5})
LAYERS = Problem({"name": "sequence-multi-index", "tokens": 2}, {"name": "softmax", "layers": 2}, "gaussian")
LINEAR = Problem({"name": "sequence-multi-index", "tokens": 2}, {"name": "linear", "components": 2}, "gaussian")


def make(name, **parameters):
    return build(REGISTRY.get("algorithm", name).item, "algorithm", parameters)


def run(problem, algorithm, alpha, dimension=12):
    instance = problem.instance(alpha, dimension)
    backend = get_backend()
    data = instance.data(backend)
    settings = RunOptions()
    return run_algorithm(problem, instance, data, algorithm, np.random.default_rng, settings, backend)


def test_all_of_torch_optim_is_there():
    expected = {
        f"torch.{key.lower()}"
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    registered = {e.name for e in REGISTRY.entries("algorithm") if e.distribution == "smimbench-torch"}
    assert registered == expected
    assert {"torch.adamw", "torch.lbfgs", "torch.sgd", "torch.rprop"} <= registered


def test_the_source_says_what_torch_itself_says():
    """Names, defaults and annotations that were read are those of the imported classes."""
    import inspect

    read, real = optimizers_in_source(), smimbench_torch.optimizers()
    assert {f"torch.{title.lower()}" for title in read} == set(real)
    for title, given in read.items():
        signature = inspect.signature(getattr(torch.optim, title).__init__).parameters
        wanted = {p.name: p.default for p in signature.values() if p.name not in ("self", "params")}
        assert {p.name: p.default for p in given} == wanted, title


def test_torch_is_imported_only_when_an_optimiser_is_used():
    script = (
        "import sys; from smimbench.registry import Registry, build; r = Registry();"
        "item = r.get('algorithm', 'torch.adamw').item; before = 'torch' in sys.modules;"
        "build(item, 'algorithm', {}); print(before, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("problem", [ATTENTION, LAYERS, LINEAR], ids=["attention", "layers", "linear"])
def test_every_optimiser_lowers_the_error_or_says_why_not(name, problem):
    # enough samples that the smallest loss is not at infinity, and no step of L-BFGS without a look at where it leads
    careful = {"line_search_fn": "strong_wolfe"} if name == "torch.lbfgs" else {}
    algorithm = make(name, steps=8, **careful)
    reason = algorithm.refuses(problem)
    if name == "torch.sparseadam":
        assert "sparse" in reason
        return
    assert reason is None
    attempt = run(problem, algorithm, 0.4 if problem is ATTENTION else 10.0)
    assert attempt.status.value == "ok", attempt.reason
    assert attempt.iterations == 8
    assert np.isfinite(attempt.estimate).all()
    assert attempt.trajectory["samples"][-1] >= 8 * (58 if problem is ATTENTION else 120)


@pytest.mark.parametrize("loss", [None, "squared", "cross-entropy"])
@pytest.mark.parametrize("problem", [ATTENTION, LAYERS, LINEAR], ids=["attention", "layers", "linear"])
def test_adam_takes_the_same_steps_as_the_one_without_torch(problem, loss):
    alpha = 0.4 if problem is ATTENTION else 3.0
    if problem is LINEAR and loss == "cross-entropy":
        assert "probabilities" in make("torch.adam", loss=loss).refuses(problem)
        return
    ours = run(problem, Adam(steps=20, learning_rate=0.05, loss=loss), alpha)
    theirs = run(problem, make("torch.adam", steps=20, lr=0.05, loss=loss), alpha)
    assert np.allclose(theirs.estimate, ours.estimate, rtol=1e-8, atol=1e-10)
    assert np.allclose(theirs.trajectory["mse"], ours.trajectory["mse"])


def test_minibatches_are_those_of_the_seed():
    ours = run(LAYERS, Adam(steps=11, learning_rate=0.05, batch=10), 3.0)
    theirs = run(LAYERS, make("torch.adam", steps=11, lr=0.05, batch=10), 3.0)
    assert np.allclose(theirs.estimate, ours.estimate, rtol=1e-8, atol=1e-10)


def test_lbfgs_solves_what_is_quadratic():
    attempt = run(LINEAR, make("torch.lbfgs", steps=30, line_search_fn="strong_wolfe"), 2.0)
    assert max(attempt.metrics["mse"]) < 1e-6
    assert attempt.trajectory["samples"][-1] > 30 * 24  # its closure is called several times a step


def test_options_are_those_of_torch_and_part_of_the_cell():
    spec = parameters_of("algorithm", make("torch.adamw", lr=0.02, betas=[0.8, 0.9], steps=3))
    assert spec["betas"] == [0.8, 0.9]
    assert spec["lr"] == 0.02
    assert spec["weight_decay"] == 0.01
    assert parameters_of("algorithm", make("torch.sgd", momentum=0.5))["momentum"] == 0.5


@pytest.mark.parametrize(
    ("name", "key", "parameters"),
    [
        ("torch.adam", "lr", {"lr": -1.0}),
        ("torch.sgd", "momentum", {"momentum": -0.5}),
        ("torch.adam", "learning_rate", {"learning_rate": 0.1}),
        ("torch.adam", "steps", {"steps": 0}),
        ("torch.adam", "lr", {"lr": "fast"}),
        ("torch.adam", "loss", {"loss": "hinge"}),
    ],
)
def test_bad_options_are_named(name, key, parameters):
    with pytest.raises(ParameterError) as error:
        make(name, **parameters)
    assert error.value.key == key


def test_the_ten_lines_of_the_readme_put_an_optimiser_beside_the_limit(tmp_path):
    package = pathlib.Path(__file__).parent.parent
    code = (package / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line]) == 10
    (tmp_path / "signed.py").write_text(code)
    registry = Registry([str(tmp_path / "signed.py")])
    item = build(registry.get("algorithm", "signed").item, "algorithm", {"lr": 0.02, "steps": 150})
    attempt = run(LINEAR, item, 3.0)
    assert attempt.metrics["mse"][0] < 0.2


def test_several_students_are_averaged():
    averaged = make("averaged", of={"name": "torch.adamw", "lr": 0.05, "steps": 100}, students=3)
    one = run(ATTENTION, make("torch.adamw", lr=0.05, steps=100), 0.3)
    several = run(ATTENTION, averaged, 0.3)
    assert several.status.value == "ok"
    assert several.iterations == 100
    assert several.metrics["mse"][0] < one.metrics["mse"][0]
    assert any("one student at a time" in warning for warning in several.warnings)


def test_hardmax_is_refused():
    hard = Problem({"name": "attention-indexed", "tokens": 2}, "hardmax", {"name": "wishart", "rho": 0.5})
    assert "no derivative" in make("torch.adam").refuses(hard)
    assert "width" in make("torch.adam", width=3).refuses(LAYERS)
