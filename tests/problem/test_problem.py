"""Instances: the same bits for everybody; metrics: blind to what no label can see."""

import hashlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from smimbench.backend.arrays import to_host
from smimbench.backend.device import get_backend
from smimbench.numerics.random_numbers import STREAMS
from smimbench.problem.instance import seed_sequence
from smimbench.problem.problem import Problem, ProblemError
from tests.helpers import environment

LINEAR = (
    {"name": "sequence-multi-index", "tokens": 2},
    {"name": "linear", "components": 2, "noise": 0.3},
    "gaussian",
)
SIGNLESS = ({"name": "sequence-multi-index", "tokens": 2}, "softmax", "gaussian")
ATTENTION = (
    {"name": "attention-indexed", "tokens": 3},
    {"name": "linear", "noise": 0.3},
    {"name": "wishart", "rho": 0.5},
)


PROBLEMS = [LINEAR, SIGNLESS, ATTENTION]


@pytest.fixture(params=PROBLEMS, ids=["linear", "softmax", "attention"])
def problem(request):
    return Problem(*request.param)


def bits(instance):
    """Digest of everything an algorithm may see, and of the teacher."""
    parts = [
        np.ascontiguousarray(a).tobytes()
        for a in (instance.signal, instance.inputs, instance.labels)
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.parametrize(
    "change", [{"alpha": 0.800001}, {"dimension": 21}, {"replicate": 4}, {"seed": 8}]
)
def test_every_part_of_the_request_matters(problem, change):
    request = {"alpha": 0.8, "dimension": 20, "replicate": 3, "seed": 7}
    first, second = (problem.instance(**r) for r in (request, {**request, **change}))
    size = min(first.signal.size, second.signal.size)
    assert not np.any(first.signal.ravel()[:size] == second.signal.ravel()[:size])
    size = min(first.inputs.size, second.inputs.size)
    assert not np.any(first.inputs.ravel()[:size] == second.inputs.ravel()[:size])


def test_another_process_draws_the_same_bits():
    """Nothing may depend on the order of a set, on the hash seed or on what was drawn before."""
    script = textwrap.dedent(
        f"""
        from smimbench.problem.problem import Problem
        import hashlib, numpy as np
        for parts in {PROBLEMS!r}:
            problem = Problem(*parts)
            problem.instance(0.3, 10)
            i = problem.instance(0.8, 20, 3, seed=7)
            parts = [np.ascontiguousarray(a).tobytes() for a in (i.signal, i.inputs, i.labels)]
            print(hashlib.sha256(b"".join(parts)).hexdigest())
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYTHONHASHSEED="77"),
    )
    assert done.stdout.split() == [
        bits(Problem(*parts).instance(0.8, 20, 3, seed=7)) for parts in PROBLEMS
    ]


def test_a_version_that_rises_keeps_its_data(problem, monkeypatch):
    """The version of a channel is raised when its posterior is fixed: old and new results then share their instances."""
    before = bits(problem.instance(0.8, 20))
    channel = getattr(problem.channel, "channel", problem.channel)
    monkeypatch.setattr(type(channel), "version", 99)
    parts = (
        {k: v for k, v in problem.spec[kind].items() if k != "version"}
        for kind in ("model", "channel", "prior")
    )
    again = Problem(*parts)
    assert again.spec["channel"]["version"] == 99
    assert bits(again.instance(0.8, 20)) == before


def test_seeds_mean_the_same_for_ever():
    """Pinned numbers: stored results would silently belong to other instances if the seed tree changed."""
    signal = Problem(*LINEAR).instance(1.0, 4, 2, seed=5).signal
    np.testing.assert_allclose(signal[0], PINNED, rtol=0, atol=1e-12)


PINNED = [
    0.9140498511264319,
    -0.42833245978844076,
    -0.08036906519604785,
    -0.297930091146206,
]


def test_streams_are_children_of_their_own():
    names = [
        seed_sequence(1, "p", 0.5, 10, 0, stream, *extra)
        for stream in STREAMS
        for extra in ((), ("a",), ("a", "b"), ("b",))
    ]
    states = {tuple(sequence.generate_state(4)) for sequence in names}
    assert len(states) == len(names)
    assert STREAMS == ("teacher", "data", "initialisation", "monte-carlo")


def test_the_number_of_chunks_does_not_change_the_draw(problem, monkeypatch):
    whole = problem.instance(0.8, 20)
    monkeypatch.setattr(
        type(problem.model),
        "chunks",
        lambda self, n, *sizes, **more: [
            slice(i, min(i + 3, n)) for i in range(0, n, 3)
        ],
    )
    parts = problem.instance(0.8, 20)
    np.testing.assert_array_equal(whole.inputs, parts.inputs)
    np.testing.assert_allclose(whole.labels, parts.labels, rtol=1e-12, atol=1e-12)


def test_every_backend_sees_the_same_bits(problem, backend):
    instance = problem.instance(0.8, 20)
    before = bits(instance)
    data = instance.data(backend)
    np.testing.assert_array_equal(to_host(data.inputs), instance.inputs)
    np.testing.assert_array_equal(to_host(data.labels), instance.labels)
    assert data.dimension == 20
    assert data.start is None
    assert bits(instance) == before


def test_single_precision_is_the_same_instance_rounded(problem):
    double, single = (
        problem.instance(0.8, 20),
        problem.instance(0.8, 20, dtype="float32"),
    )
    assert single.inputs.dtype == np.float32
    assert single.labels.dtype == np.float32
    np.testing.assert_array_equal(single.signal, double.signal)
    np.testing.assert_array_equal(single.inputs, double.inputs.astype(np.float32))
    np.testing.assert_allclose(single.labels, double.labels, rtol=2e-3, atol=2e-4)


def test_labels_belong_to_the_inputs_as_they_are():
    """In single precision too, the label is that of the rounded inputs, to the last digit."""
    problem = Problem(*SIGNLESS)
    instance = problem.instance(0.8, 20, dtype="float32")
    z = problem.model.forward(instance.inputs.astype(np.float64), instance.signal)
    np.testing.assert_array_equal(
        instance.labels, np.asarray(problem.channel.forward(z)).astype(np.float32)
    )


def test_algorithms_cannot_write_into_the_data(problem):
    data = problem.instance(0.8, 20).data(get_backend("numpy"))
    for array in (data.inputs, data.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0


def test_the_sample_ratio_is_the_one_really_used():
    instance = Problem(*LINEAR).instance(0.77, 30)
    assert instance.inputs.shape == (23, 2, 30)
    assert instance.sample_ratio == pytest.approx(23 / 30, rel=1e-15)
    instance = Problem(*ATTENTION).instance(0.101, 15)
    assert instance.inputs.shape == (23, 3, 15)
    assert instance.sample_ratio == pytest.approx(23 / 225, rel=1e-15)
    assert Problem(*LINEAR).instance(1e-9, 30).inputs.shape[0] == 1


def test_the_teacher_scores_zero_and_the_prior_mean_one(problem, backend):
    instance = problem.instance(0.5, 400 if problem.model.kappa == 1 else 60)
    own = instance.metrics(backend.asarray(instance.signal))
    np.testing.assert_allclose(own["mse"], 0, atol=1e-14)
    mean = problem.prior.mean(problem.components, instance.dimension)
    nothing = instance.metrics(backend.asarray(mean))
    np.testing.assert_allclose(nothing["mse"], 1, atol=0.25)
    second, bottom = (
        np.diagonal(f(problem.components))
        for f in (problem.prior.second_moment, problem.prior.mean_overlap)
    )
    if problem.model.kappa == 1:
        np.testing.assert_allclose(own["overlap"], 1.0, atol=1e-12)
    else:
        np.testing.assert_allclose(own["overlap"], second, rtol=0.25)
        np.testing.assert_allclose(nothing["overlap"], bottom, rtol=0.25)
    assert all(isinstance(v, float) for values in own.values() for v in values)


def test_a_sign_that_no_label_sees_costs_nothing():
    """y is even in z for the softmax of z z^T: both signs fit the data equally well, and score equally well."""
    problem = Problem(*SIGNLESS)
    instance = problem.instance(0.5, 200)
    rng = np.random.default_rng(3)
    estimate = 0.8 * instance.signal + 0.3 * rng.standard_normal(instance.signal.shape)
    z = problem.model.forward(instance.inputs, instance.signal)
    np.testing.assert_allclose(
        problem.channel.forward(z), problem.channel.forward(-z), atol=1e-12
    )
    plus, minus = instance.metrics(estimate), instance.metrics(-estimate)
    assert plus == minus
    assert plus["mse"][0] == pytest.approx(
        np.sum((estimate - instance.signal) ** 2) / 200
    )


def test_a_sign_that_the_label_sees_is_an_error():
    instance = Problem(*LINEAR).instance(0.5, 200)
    np.testing.assert_allclose(
        instance.metrics(-instance.signal)["mse"],
        4 * np.sum(instance.signal**2, axis=1) / 200,
    )


def test_components_that_the_label_tells_apart_may_not_be_exchanged():
    instance = Problem(*LINEAR).instance(0.5, 200)
    assert min(instance.metrics(instance.signal[::-1])["mse"]) > 1.0


def test_an_estimate_of_the_wrong_shape_is_refused(problem):
    instance = problem.instance(0.5, 20)
    with pytest.raises(ValueError, match="must have the signal's shape"):
        instance.metrics(instance.signal[..., 1:])


def test_a_start_holds_what_it_claims(problem):
    """Overlap with the teacher equals that with itself equals the claim."""
    D = 3000 if problem.model.kappa == 1 else 150
    instance = problem.instance(1.0 if problem.model.kappa == 1 else 0.001, D)
    start = problem.start(instance, 3.0, np.random.default_rng(1), get_backend("numpy"))
    P = problem.components
    second, bottom = problem.prior.second_moment(P), problem.prior.mean_overlap(P)
    held = problem.model.inner(start.estimate, start.estimate)
    with_teacher = problem.model.inner(start.estimate, instance.signal)
    np.testing.assert_allclose(held, second - start.V, atol=0.1)
    np.testing.assert_allclose(with_teacher, held, atol=0.1)
    assert (np.diagonal(start.V) < 0.6 * np.diagonal(second - bottom)).all()


def test_a_start_lies_on_the_backend(backend):
    problem = Problem(*LINEAR)
    instance = problem.instance(1.0, 30)
    start = problem.start(instance, 3.0, np.random.default_rng(1), backend)
    host = problem.start(instance, 3.0, np.random.default_rng(1), get_backend("numpy"))
    np.testing.assert_allclose(to_host(start.estimate), host.estimate, atol=1e-12)
    assert instance.data(backend, start).start is start


@pytest.mark.parametrize(
    ("parts", "key", "words"),
    [
        ((LINEAR[0], "sofmax", "gaussian"), "channel.name", "did you mean 'softmax'"),
        (("sequence-multi-index", "linear", "gaussian"), "model.tokens", "is missing"),
        (
            (LINEAR[0], "linear", {"name": "gaussian", "mean": 1.0}),
            "prior.mean",
            "takes no parameters",
        ),
    ],
)
def test_a_problem_that_cannot_be_names_its_key(parts, key, words):
    """As those of a suite, whose tests have many more."""
    with pytest.raises(ProblemError) as caught:
        Problem(*parts)
    assert caught.value.key == key
    assert words in caught.value.message


def test_a_problem_says_what_it_is():
    problem = Problem(*LINEAR)
    assert (
        problem.label
        == "sequence-multi-index(tokens=2) linear(components=2, noise=0.3) gaussian"
    )
    assert repr(problem) == f"Problem({problem.label})"
    assert problem.spec["channel"] == {
        "name": "linear",
        "version": problem.channel.version,
        "components": 2,
        "noise": 0.3,
    }
    assert "version" not in problem.identity
