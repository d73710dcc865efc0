"""Optimizers of PyTorch and optax against smimbench's own, and closed forms."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from smimbench_attention.algorithms.adam import Adam, AdamW
from smimbench_attention.algorithms.gradient.loss import loss_gradient

from smimbench import ParameterError, Problem
from smimbench.backend import get_backend, to_host
from smimbench.interfaces.problem import placeholder_data
from smimbench.registry import Registry, build, parameters_of
from smimbench.run.loop import run_algorithm
from smimbench.suite.reader import load_suite
from smimbench.suite.schema import RunOptions
from smimbench.testing import parametrize_with_checks

torch, optax = pytest.importorskip("torch"), pytest.importorskip("optax")
pytest.importorskip("pytorch_optimizer")

REGISTRY = Registry()
MATRIX, SEQUENCE = (
    {"name": "attention-indexed", "tokens": 2},
    {"name": "sequence-multi-index", "tokens": 2},
)
WISHART = {"name": "wishart", "rho": 0.5}
ATTENTION = Problem(MATRIX, "softmax", WISHART)
HARD = Problem(MATRIX, "hardmax", WISHART)
LAYERS = Problem(SEQUENCE, {"name": "softmax", "layers": 2}, "gaussian")
LINEAR = Problem(SEQUENCE, {"name": "linear", "components": 2}, "gaussian")
NOISY = Problem(SEQUENCE, {"name": "linear", "noise": 0.3}, "gaussian")
PROBIT = Problem(SEQUENCE, {"name": "probit", "noise": 0.5}, "gaussian")
PROBLEMS = {
    "attention": ATTENTION,
    "hardmax": HARD,
    "layers": LAYERS,
    "linear": LINEAR,
    "probit": PROBIT,
}
NAMED = {"torch": "torch.optim.NAdam", "optax": "optax.nadam"}
NAMES = [
    entry.name
    for entry in REGISTRY.entries("algorithm")
    if entry.distribution == "smimbench-optimizers"
]
CHECKED = (
    "torch",
    "torch.muon",
    "torch.lbfgs",
    "torch.soap",
    "optax",
    "optax.muon",
    "optax.sam",
)
"""One of every way to make a step; the others are another function of the library, and tests below run all of them."""


def make(name, **parameters):
    """Make the algorithm of this name with these parameters."""
    if name in NAMED:
        parameters = {"optimizer": NAMED[name]} | parameters
    return build(REGISTRY.get("algorithm", name).item, "algorithm", parameters)


def alpha_of(problem):
    """Sample ratio alpha at which a problem is tested."""
    return 0.4 if problem.model.rank == "extensive" else 3.0


def start(problem, algorithm, seed=0, backend=None, alpha=None, dimension=12):
    """Data of a problem on a backend, and initial state of an algorithm on it."""
    data = problem.instance(alpha or alpha_of(problem), dimension).data(
        backend or get_backend()
    )
    return data, algorithm.init(problem, data, np.random.default_rng(seed))


def factors(problem, algorithm, steps, seed=0, backend=None):
    """Factors after every step of an algorithm on a backend, and the report (Info) of the last step."""
    data, state = start(problem, algorithm, seed, backend)
    factors_of_steps = []
    for _ in range(steps):
        state, info = algorithm.step(problem, data, state)
        factors_of_steps.append(np.array(to_host(state.factor)))
    return np.array(factors_of_steps), info


def run(problem, algorithm, alpha, dimension=12):
    """Run an algorithm through the engine's loop at this sample ratio alpha; return result and data."""
    instance, backend = problem.instance(alpha, dimension), get_backend()
    data = instance.data(backend)
    return run_algorithm(
        problem, instance, data, algorithm, np.random.default_rng, RunOptions(), backend
    ), data


def test_contenders_are_listed():
    """All optimizers of the package are listed by ``smimbench list algorithms``."""
    process = subprocess.run(
        [sys.executable, "-m", "smimbench", "list", "algorithms"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {
        "torch",
        "torch.muon",
        "torch.lbfgs",
        "torch.soap",
        "optax",
        "optax.lion",
        "optax.sam",
    } <= set(NAMES)
    assert set(NAMES) <= set(process.stdout.split())


def test_libraries_are_imported_only_when_an_optimizer_is_used():
    """Finding an optimizer in the registry imports neither PyTorch nor JAX."""
    script = (
        "import sys; from smimbench.registry import Registry; r = Registry(); heavy = {'torch', 'jax', 'optax'};"
        "r.get('algorithm', 'torch.muon'), r.get('algorithm', 'optax.lion'); print(heavy & set(sys.modules))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["set()"]


@parametrize_with_checks([make(name) for name in CHECKED])
def test_published_checks(check):
    """One optimizer of every kind passes every published check."""
    check()


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize(
    ("own_adam", "options"),
    [
        (Adam, {}),
        (Adam, {"batch": 10, "schedule": "cosine"}),
        (
            Adam,
            {
                "schedule": "step",
                "decay_steps": 7,
                "decay_factor": 0.5,
                "spherical": True,
            },
        ),
        (AdamW, {}),
    ],
)
def test_adam_takes_the_same_steps_as_the_one_that_ships(problem, own_adam, options):
    """Adam of PyTorch and of optax takes the same steps with the same options as ``own_adam``, smimbench's own."""
    parameters = {"learning_rate": 0.05, "steps": 30} | options
    expected_factors, _ = factors(problem, own_adam(**parameters), 30)
    if own_adam is Adam:
        library_optimizers = [
            make("torch.adam", **parameters),
            make("optax.adam", **parameters),
        ]
    else:
        optimizer_by_path = make(
            "optax",
            optimizer="optax.adamw",
            options={"weight_decay": 0.01},
            **parameters,
        )
        library_optimizers = [make("torch.adamw", **parameters), optimizer_by_path]
    for optimizer in library_optimizers:
        factors_of_library, info = factors(problem, optimizer, 30)
        assert np.abs(factors_of_library - expected_factors).max() < 1e-10
        batch_size = options.get("batch")
        assert (
            batch_size is not None
            or info.samples == 30 * problem.model.sample_count(alpha_of(problem), 12)
        )


@pytest.mark.parametrize("name", ["torch.lbfgs", "optax"])
def test_lbfgs_reaches_the_minimum_of_least_squares(name):
    """L-BFGS reaches the minimum of least squares, that of ``numpy.linalg.lstsq`` and of ``erm`` with the smallest penalty that
    it takes.
    """
    parameters_by_name = {
        "optax": {"optimizer": "optax.lbfgs", "learning_rate": 1.0},
        "torch.lbfgs": {
            "options": {"tolerance_grad": 1e-13, "tolerance_change": 1e-16}
        },
    }
    result, data = run(NOISY, make(name, steps=25, **parameters_by_name[name]), 4.0)
    input_rows = np.asarray(data.inputs).reshape(-1, 12) / np.sqrt(12)
    expected_estimate = np.linalg.lstsq(
        input_rows, np.asarray(data.labels).reshape(-1), rcond=None
    )[0]
    assert np.abs(result.estimate[0] - expected_estimate).max() < 1e-6
    erm_result, _ = run(
        NOISY,
        build(REGISTRY.get("algorithm", "erm").item, "algorithm", {"penalty": 1e-6}),
        4.0,
    )
    assert np.abs(result.estimate - erm_result.estimate).max() < 1e-5
    assert (
        result.trajectory["samples"][-1] >= 48 * 26
    )  # every evaluation counts, those of the line search included


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_sam_of_radius_zero_is_its_base(problem):
    """Sharpness-aware minimization of radius 0 takes the steps of its base optimizer, with twice as many samples."""
    sam_factors, info = factors(
        problem, make("optax.sam", options={"rho": 0.0}, batch=10), 12
    )
    adam_factors, adam_info = factors(problem, make("optax.adam", batch=10), 12)
    assert np.abs(sam_factors - adam_factors).max() < 1e-12
    assert info.samples == 2 * adam_info.samples


def test_sam_steps_along_the_gradient_at_the_worst_point_nearby():
    """Sharpness-aware minimization steps along the gradient at the point uphill by its radius."""
    algorithm = make(
        "optax.sam", options={"rho": 0.3, "optimizer": "optax.sgd"}, learning_rate=0.5
    )
    data, state = start(LAYERS, algorithm)

    def gradient(factor):
        """Gradient of the loss at a factor, per dimension."""
        return (
            loss_gradient(
                LAYERS, data.inputs, state.targets, factor, loss="cross-entropy"
            ).gradient
            / 12
        )

    uphill = gradient(state.factor)
    expected_factor = state.factor - 0.5 * gradient(
        state.factor + 0.3 * uphill / np.linalg.norm(uphill)
    )
    assert (
        np.abs(algorithm.step(LAYERS, data, state)[0].factor - expected_factor).max()
        < 1e-12
    )


def test_muon_moves_along_the_polar_factor_of_the_gradient():
    """Muon, with as many Newton-Schulz steps as converge, moves along the polar factor of the gradient g, which the singular
    value decomposition of every component gives.
    """
    options = {
        "ns_coeffs": [1.5, -0.5, 0.0],
        "ns_steps": 20,
        "beta": 0.0,
        "nesterov": False,
    }
    for problem in (ATTENTION, LAYERS):
        algorithm = make("optax.muon", options=options, learning_rate=0.2)
        data, state = start(problem, algorithm)
        gradient = loss_gradient(
            problem, data.inputs, state.targets, state.factor, loss=state.loss
        ).gradient
        step = np.asarray(algorithm.step(problem, data, state)[0].factor - state.factor)
        for component_step, g in zip(
            step if step.ndim == 3 else [step],
            gradient if step.ndim == 3 else [gradient],
        ):
            left_vectors, _, right_vectors = np.linalg.svd(g, full_matrices=False)
            ratio_to_polar_factor = component_step / (left_vectors @ right_vectors)
            assert np.ptp(ratio_to_polar_factor) < 1e-6 * abs(
                ratio_to_polar_factor.mean()
            )  # up to a factor that depends on the shape
            assert -1 < ratio_to_polar_factor.mean() < 0
    # PyTorch's stays at five steps in half precision, which bring singular values near 1.
    algorithm = make(
        "torch.muon", options={"momentum": 0.0, "nesterov": False}, learning_rate=0.2
    )
    (factor_after_step,), _ = factors(LAYERS, algorithm, 1)
    step_in_singular_basis = (
        left_vectors.T @ (factor_after_step - state.factor) @ right_vectors.T / -0.2
    )
    assert (np.abs(np.diag(step_in_singular_basis) - 1) < 0.4).all()
    assert (
        np.abs(step_in_singular_basis - np.diag(np.diag(step_in_singular_basis))).max()
        < 0.05
    )


def test_schedule_free_reports_the_average_that_it_has_learned():
    """Schedule-free descent takes gradients g at y, between z, which descends, and its running mean x, the estimate, as in a
    recursion in NumPy.
    """
    algorithm = make(
        "optax",
        optimizer="optax.contrib.schedule_free_sgd",
        options={"b1": 0.9},
        learning_rate=0.3,
    )
    data, state = start(NOISY, algorithm)
    z = x = y = np.array(state.factor)
    for step_number in range(1, 15):
        g = (
            loss_gradient(NOISY, data.inputs, state.targets, y, loss="squared").gradient
            / 12
        )
        z = z - 0.3 * g
        x = (1 - 1 / step_number) * x + z / step_number
        y = 0.1 * z + 0.9 * x
        state, _ = algorithm.step(NOISY, data, state)
    assert np.abs(state.factor - y).max() < 1e-10
    assert np.abs(algorithm.estimate(state) - x).max() < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_runs_of_one_seed_are_equal_to_the_last_bit_and_of_another_are_not(name):
    """Two runs of one seed are equal to the last bit, and a run of another seed differs."""
    first_run, same_seed, other_seed = (
        factors(LAYERS, make(name, batch=7), 8, seed)[0] for seed in (0, 0, 1)
    )
    assert np.array_equal(first_run, same_seed)
    assert not np.allclose(first_run, other_seed)


def test_noise_of_an_optimizer_comes_from_the_seed_of_the_run():
    """An optimizer that adds noise to its steps draws it from the seed of the run."""
    noisy_optimizer = make("optax", optimizer="optax.noisy_sgd")
    first_run, same_seed, other_seed = (
        factors(NOISY, noisy_optimizer, 3, seed)[0] for seed in (0, 0, 1)
    )
    assert np.array_equal(first_run, same_seed)
    assert not np.allclose(first_run - first_run[0], other_seed - other_seed[0])


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_another_backend_give_the_same(name):
    """Steps on arrays of PyTorch agree with those on arrays of NumPy."""
    steps = (
        2 if name == "torch.soap" else 5
    )  # in the null space of a gradient of low rank its basis is one of rounding
    torch_factors, _ = factors(
        ATTENTION, make(name), steps, backend=get_backend("torch")
    )
    assert np.abs(torch_factors - factors(ATTENTION, make(name), steps)[0]).max() < 1e-6


def test_options_are_part_of_the_cell():
    """Options of an optimizer are part of the parameters that identify a cell."""
    specification = parameters_of(
        "algorithm", make("torch.muon", options={"momentum": 0.8}, steps=3)
    )
    assert specification["options"] == {"weight_decay": 0.0, "momentum": 0.8}
    assert "optimizer" not in specification
    assert parameters_of("algorithm", make("torch"))["optimizer"] == "torch.optim.NAdam"


@pytest.mark.parametrize(
    ("name", "key", "parameters"),
    [
        ("torch.adam", "learning_rate", {"learning_rate": -1.0}),
        ("torch.adam", "lr", {"lr": 0.1}),
        ("torch.adam", "options.lr", {"options": {"lr": 0.1}}),
        ("torch.adam", "options.beta", {"options": {"beta": [0.9, 0.9]}}),
        ("torch.adam", "options", {"options": {"betas": [0.9, 2.0]}}),
        ("optax.adam", "options", {"options": {"b1": "large"}}),
        ("optax.adam", "options.betas", {"options": {"betas": [0.9, 0.9]}}),
        ("torch", "optimizer", {"optimizer": "torch.optim.Adamm"}),
        ("torch", "optimizer", {"optimizer": "nowhere.Adam"}),
        ("torch", "optimizer", {"optimizer": "torch.nn.Linear"}),
        ("optax", "optimizer", {"optimizer": "os.system"}),
        ("optax", "optimizer", {"optimizer": ""}),
    ],
)
def test_bad_parameters_are_named(name, key, parameters):
    """An invalid parameter or option raises an error that names it by its ``key``."""
    with pytest.raises(ParameterError) as error:
        make(name, **parameters)
    assert error.value.key == key


def test_the_lines_of_the_readme_put_an_optimizer_beside_the_limit(tmp_path):
    """The optimizer in the README is found as a plugin file and learns; a change of its code changes its source hash."""
    code = (
        (pathlib.Path(__file__).parent.parent / "README.md")
        .read_text()
        .partition("```python\n")[2]
        .partition("```")[0]
    )
    (tmp_path / "signed.py").write_text(code)
    registry = Registry([str(tmp_path / "signed.py")])
    registry_entry = registry.get("algorithm", "signed")
    result, _ = run(
        LINEAR,
        build(registry_entry.item, "algorithm", {"learning_rate": 0.02, "steps": 150}),
        3.0,
    )
    assert result.metrics["mse"][0] < 0.2
    (tmp_path / "signed.py").write_text(code.replace("sign()", "tanh()"))
    assert (
        Registry([str(tmp_path / "signed.py")]).get("algorithm", "signed").source
        != registry_entry.source
    )


def test_several_students_are_averaged():
    """The average of three students has a smaller error than one student."""
    averaged = make("averaged", of={"name": "torch.muon", "steps": 60}, students=3)
    single_result, _ = run(ATTENTION, make("torch.muon", steps=60), 0.3)
    averaged_result, _ = run(ATTENTION, averaged, 0.3)
    assert averaged_result.metrics["mse"][0] < single_result.metrics["mse"][0]


def test_contenders_of_the_board_have_as_many_passes_on_each_of_its_problems():
    """All optimizers on the board make 300 passes over the data on each of its problems."""
    pytest.importorskip("smimbench_phase_retrieval")
    cells = load_suite(pathlib.Path(__file__).parent.parent / "board.toml").cells()
    passes_of_problem = {}
    for cell in {
        (cell.problem_label, cell.algorithm_label): cell for cell in cells
    }.values():
        problem, algorithm = cell.rebuild()
        plan = algorithm.plan(placeholder_data(100, problem.model.tokens, 50))
        if (plan.steps or 1) > 1:
            assert algorithm.refuses(problem) is None, cell
            gradients_per_step = {"optax.sam": 2, "torch.lbfgs": 25}.get(
                cell.algorithm["name"], 1
            )
            passes_of_problem.setdefault(cell.problem_label, []).append(
                plan.steps * gradients_per_step
            )
    assert len(passes_of_problem) == 6
    assert all(
        passes_of_algorithms == [300] * 11
        for passes_of_algorithms in passes_of_problem.values()
    )
