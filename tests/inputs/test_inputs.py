"""Inputs as items of a problem: their laws, their place in suites and keys, fresh samples, devices, theory where it is known."""

import json
import math
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from smimbench.backend.arrays import to_host
from smimbench.problem import instance as instance_module
from smimbench.problem.problem import Problem, ProblemError
from smimbench.run.cell import run_cell
from smimbench.suite import SuiteError
from smimbench.suite.reader import load_suite
from smimbench.testing import check
from tests.helpers import call, suite_text, write_suite

MODEL, ATTENTION = (
    {"name": name, "tokens": 3}
    for name in ("sequence-multi-index", "attention-indexed")
)
NOISY = {"name": "linear", "noise": 0.1}


def problem_of(inputs, model=MODEL, channel=NOISY):
    prior = (
        "gaussian"
        if model["name"] == MODEL["name"]
        else {"name": "wishart", "rho": 0.5}
    )
    return Problem(model, channel, prior, inputs)


def test_the_default_is_the_stream_of_normal_numbers_and_not_part_of_a_key():
    plain = Problem(MODEL, NOISY, "gaussian")
    named = problem_of("gaussian")
    assert plain.spec == named.spec
    assert list(plain.spec) == ["model", "channel", "prior"]
    signal, shape = np.ones((1, 333)), (900, 3, 333)  # several blocks
    for dtype in ("float64", "float32"):
        x, _ = plain.draw(signal, 900, np.random.default_rng(5), dtype)
        assert_array_equal(
            x, np.random.default_rng(5).standard_normal(shape).astype(dtype)
        )


@pytest.mark.parametrize("degrees", [2.5, 5.0, 30.0])
def test_heavy_tails_are_student_t_of_variance_one(degrees):
    x = (
        problem_of({"name": "heavy-tails", "degrees": degrees})
        .instance(100.0, 50)
        .inputs
    )
    law = stats.t(degrees, scale=np.sqrt((degrees - 2) / degrees))
    assert law.var() == pytest.approx(1)
    assert stats.kstest(np.ravel(x), law.cdf).pvalue > 1e-3


def test_tokens_on_the_sphere_have_its_radius_and_the_law_of_its_coordinates():
    x = problem_of("sphere").instance(200.0, 4).inputs
    assert_allclose(np.sum(x * x, axis=-1), 4, rtol=1e-12)
    # x_1^2 / D is Beta(1/2, (D - 1)/2)
    assert (
        stats.kstest(np.ravel(x[:, :, 0] ** 2) / 4, stats.beta(0.5, 1.5).cdf).pvalue
        > 1e-3
    )


def test_an_array_is_drawn_without_replacement(tmp_path):
    rows = np.random.default_rng(1).standard_normal((50, 3, 8)).astype(np.float32)
    np.savez(tmp_path / "own.npz", inputs=rows, other=rows[:, 0])
    problem = problem_of({"name": "array", "path": str(tmp_path / "own.npz")})
    one, two = (problem.instance(5.0, 8, k) for k in (0, 1))
    indices = [int(np.flatnonzero((rows == x).all((1, 2)))[0]) for x in one.inputs]
    assert len(set(indices)) == len(indices) == 40
    assert not np.array_equal(one.inputs, two.inputs)
    single = Problem(
        {**MODEL, "tokens": 1},
        NOISY,
        "gaussian",
        {"name": "array", "path": str(tmp_path / "own.npz"), "key": "other"},
    )
    assert single.instance(1.0, 8).inputs.shape == (8, 1, 8)
    assert {one.status for one in check(problem.inputs)} == {"passed", "skipped"}


def test_an_array_that_does_not_fit_or_has_changed_is_refused(tmp_path):
    file = tmp_path / "own.npy"
    np.save(file, np.ones((9, 3, 8)))
    table = {"name": "array", "path": str(file)}
    spec = problem_of(table).spec["inputs"]
    with pytest.raises(
        ProblemError,
        match=r"model\.tokens: must be 3, the number of tokens of the inputs, got 2",
    ):
        problem_of(table, {**MODEL, "tokens": 2})
    for alpha, dimension in ((1.0, 7), (2.0, 8)):
        with pytest.raises(
            ValueError, match=r"must have at least .* samples .* has \(9, 3, 8\)"
        ):
            problem_of(table).instance(alpha, dimension)
    np.savez(tmp_path / "two.npz", a=np.ones((9, 3, 8)), b=np.ones(3))
    with pytest.raises(
        ProblemError,
        match=r"inputs\.key: must be one of a, b, the arrays of .*two\.npz, got 'inputs'",
    ):
        problem_of({"name": "array", "path": str(tmp_path / "two.npz")})
    np.save(file, np.zeros((9, 3, 8)))
    with pytest.raises(
        ProblemError, match=r"digest: must be .*, the digest of the array"
    ):
        problem_of({key: value for key, value in spec.items() if key != "version"})
    for wrong in (np.array(["a"]), np.ones(3), np.full((2, 3, 8), np.nan)):
        np.save(file, wrong)
        with pytest.raises(
            ProblemError,
            match=r"inputs\.path: must be a \.npy or \.npz file with finite numbers \(N, T, D\)",
        ):
            problem_of(table)
    (tmp_path / "empty.npy").touch()
    for name in ("empty.npy", "none.npy"):
        with pytest.raises(ProblemError, match=r"inputs\.path"):
            problem_of({"name": "array", "path": str(tmp_path / name)})


def test_numbers_of_a_file_that_are_not_finite_are_counted_and_placed(tmp_path):
    rows = np.random.default_rng(1).standard_normal((50, 3, 8))
    rows[5, 0, 3] = rows[9, 1, 1] = np.nan
    rows[7, 2, 2] = -np.inf
    for array, words in (
        (rows, "2 NaN and 1 inf, first at [5, 0, 3]"),
        (rows[:, 2], "1 inf, first at [7, 2]"),
    ):
        np.save(tmp_path / "own.npy", array)
        with pytest.raises(ProblemError, match=re.escape(words)):
            problem_of({"name": "array", "path": str(tmp_path / "own.npy")})


OWN = """
import numpy as np
import smimbench
from smimbench.interfaces import Inputs


class Own(Inputs):
    "Tokens of one's own."
    name, version, reference, capabilities = "own", 1, "here", smimbench.Capabilities()

    def {method}:
        x = {drawn}
        return x


@smimbench.hookimpl
def smimbench_register_inputs(register):
    register(Own)
"""
DRAW = "draw(self, rng, n, tokens, dimension)"
TRANSFORM = "transform(self, z)"
NORMAL = "rng.standard_normal((n, tokens, dimension))"
RAN = suite_text(
    'model = { name = "sequence-multi-index", tokens = 3 }\nchannel = { name = "linear", noise = 0.1 }\n'
    'prior = "gaussian"\ninputs = "own"', [1.0], 30, 1, 'name = "ridge"',
)  # fmt: skip


@pytest.mark.parametrize(("method", "drawn", "words"), [
    (DRAW, f"1 + 3 * {NORMAL}", r"inputs 'own': mean 1\.0, variance (8\.[5-9]|9\.[0-5]); theory expects 0 and 1"),
    (TRANSFORM, "0.1 * z", r"mean -?0\.00\d*, variance 0\.01\d*; theory expects 0 and 1"),
    (DRAW, "rng.random((n, tokens, dimension))", r"mean 0\.[45]\d, variance 0\.0[78]\d; theory expects 0 and 1"),
    (DRAW, f"np.where(np.arange(n * tokens * dimension) == 93, np.nan, {NORMAL}.ravel()).reshape(n, tokens, dimension)",
     r"inputs 'own': draw must return finite numbers, got 1 NaN, first at \[1, 0, 3\]"),
    (TRANSFORM, "z[:, :1]", r"transform must return real numbers of shape \(30, 3, 30\), got float64 of shape \(30, 1, 30\)"),
    (TRANSFORM, "z + 0j", r"transform must return real numbers of shape \(30, 3, 30\), got complex128"),
    (DRAW, f"np.ma.masked_less({NORMAL}, 0)", r"draw must return real numbers of shape \(30, 3, 30\), got masked array"),
    (DRAW, NORMAL, None),
])  # fmt: skip
def test_a_run_says_what_is_wrong_with_inputs_of_its_own(
    tmp_path, capsys, method, drawn, words
):
    (tmp_path / "own.py").write_text(OWN.format(method=method, drawn=drawn))
    suite = write_suite(tmp_path, RAN)
    _, out, err = call(
        capsys,
        "run",
        suite,
        "--plugins",
        tmp_path / "own.py",
        "--results",
        tmp_path / "r",
        "--no-figure",
    )
    printed = " ".join((out + err).split())
    assert words is None or re.search(words, printed), printed
    assert words is not None or "theory expects" not in printed


@pytest.mark.parametrize(("drawn", "code"), [("1 + 3 * z", 2), ("z", 0)])
def test_no_theory_is_made_of_gaussian_inputs_that_are_not_standard(
    tmp_path, capsys, drawn, code
):
    text = OWN.format(method=TRANSFORM, drawn=drawn).replace(
        "smimbench.Capabilities()", "smimbench.Capabilities()\n    gaussian = True"
    )
    (tmp_path / "own.py").write_text(text)
    suite = write_suite(tmp_path, RAN.partition("[[algorithms]]")[0])
    found, out, err = call(
        capsys,
        "theory",
        suite,
        "--plugins",
        tmp_path / "own.py",
        "--results",
        tmp_path,
        "--no-thresholds",
    )
    assert found == code
    assert (
        "theory expects 0 and 1; no theory is computed from it"
        in " ".join((out + err).split())
    ) == (code == 2)


@pytest.mark.parametrize("inputs", [
    "gaussian", "sphere", "one-hot", {"name": "heavy-tails", "degrees": 5.0}, {"name": "power-law", "exponent": 3.0},
    {"name": "correlated-tokens", "decay": 0.99},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("size", [(0.1, 10), (1.0, 10), (1.0, 50), (4.0, 200)])
def test_inputs_that_ship_are_as_theory_expects(inputs, size):
    problem = problem_of(inputs)
    assert [
        remark for k in range(20) for remark in problem.instance(*size, k).remarks
    ] == []


def test_a_device_draws_no_sample_of_a_file_twice(backend, tmp_path, monkeypatch):
    """Though it draws block by block: here four samples at once."""
    monkeypatch.setattr(instance_module, "DEVICE_BLOCK", 4 * 3 * 8)
    np.save(tmp_path / "own.npy", np.arange(50.0)[:, None, None] + np.zeros((50, 3, 8)))
    problem = problem_of({"name": "array", "path": str(tmp_path / "own.npy")})
    instance = problem.instance(40 / 8, 8, device=backend)
    rows = to_host(instance.inputs)[:, 0, 0]
    assert len(set(rows.tolist())) == 40
    z = problem.model.forward(to_host(instance.inputs), instance.signal)
    assert np.std(to_host(instance.labels) - z) == pytest.approx(
        math.sqrt(0.1), rel=0.3
    )


@pytest.mark.slow
def test_no_theory_is_claimed_where_none_is_known(tmp_path, capsys):
    """Neither by ``theory`` nor next to runs; the errors of the runs are there."""
    text = suite_text(
        'model = { name = "sequence-multi-index", tokens = 2 }\nchannel = { name = "linear", noise = 0.1 }\n'
        'prior = "gaussian"\ninputs = { name = "heavy-tails", degrees = [4.0, 6.0] }',
        [1.0], 20, 2, 'name = "ridge"', 'name = "gamp"',
    ) + '\n[run]\nmetrics = ["mse", "generalization_error_plugin"]\n'  # fmt: skip
    suite = load_suite(write_suite(tmp_path, text))
    assert [plan.problem.inputs.degrees for plan in suite.plans] == [4.0, 6.0]
    assert len({cell.key for cell in suite.cells()}) == 8
    record = run_cell(suite.cells()[0])
    assert "no theory is known" in record.blank["generalization_error_plugin"]
    where = (str(tmp_path / "small.toml"), "--results", str(tmp_path / "results"))
    assert call(capsys, "run", *where, "--quiet")[0] == 0
    rows = json.loads(call(capsys, "show", *where, "--json")[1])["rows"]
    mse = [row for row in rows if row["metric"] == "mse"]
    assert len(mse) == 4
    for row in mse:
        assert row["mean"] > 0
        assert row["bayes"] is row["theory"] is None
        assert any(
            "no theory is known for the tokens of 'heavy-tails', and none is claimed"
            in w
            for w in row["warnings"]
        )
    code, out, _ = call(capsys, "theory", *where, "--json")
    assert code == 0
    for document in json.loads(out):
        assert (document["points"], document["thresholds"]) == ([], None)
        assert "none is claimed" in document["no_theory"]
    page = tmp_path / "page.html"
    assert call(capsys, "report", *where, "--output", str(page))[0] == 0
    assert "none is claimed" in page.read_text(encoding="utf-8")


def test_a_wrong_name_or_parameter_is_one_line(tmp_path):
    for written, message in (
        ('"heavy"', "unknown inputs 'heavy'; did you mean 'heavy-tails'?"),
        (
            '{ name = "heavy-tails", degrees = 2 }',
            r"problem.inputs.degrees: must be > 2",
        ),
        (
            '{ name = "heavy-tails", degrees = 1e10 }',
            r"problem.inputs.degrees: must be > 2 and at most 1e+09",
        ),
        (
            '{ name = "sphere", radius = 2 }',
            r"problem.inputs.radius: unknown key, it takes no parameters",
        ),
    ):
        text = suite_text(f'model = {{ name = "sequence-multi-index", tokens = 2 }}\nchannel = "linear"\nprior = "gaussian"\n'
                          f"inputs = {written}", [1.0], 20, 1, 'name = "ridge"')  # fmt: skip
        with pytest.raises(SuiteError) as error:
            load_suite(write_suite(tmp_path, text))
        assert message in str(error.value)


def test_one_hot_tokens_have_one_entry_the_identity_and_no_gaussian_sums():
    x = problem_of("one-hot").instance(400.0, 6).inputs
    assert (np.count_nonzero(x, axis=-1) == 1).all()
    assert_allclose(np.sum(x * x, axis=-1), 6)
    flat = x.reshape(-1, 6)
    assert_allclose(flat.T @ flat / len(flat), np.eye(6), atol=0.3)
    assert_allclose(flat.mean(axis=0), 0, atol=0.15)
    assert {one.status for one in check(problem_of("one-hot").inputs)} == {
        "passed",
        "skipped",
    }


def test_all_inputs_meet_the_same_teachers():
    """So that errors on two kinds of tokens are compared in pairs."""
    names = (
        "gaussian",
        "sphere",
        "heavy-tails",
        "one-hot",
        {"name": "correlated-tokens", "decay": 0.3},
    )
    signals = [problem_of(name).instance(1.0, 12, 2).signal for name in names]
    for signal in signals[1:]:
        assert_array_equal(signal, signals[0])
    gaussian, sphere = (
        problem_of(name).instance(1.0, 12, 2).inputs for name in names[:2]
    )
    assert_allclose(
        sphere, gaussian * np.sqrt(12 / np.sum(gaussian**2, axis=-1, keepdims=True))
    )
    assert not np.array_equal(
        problem_of("sphere").instance(1.0, 12, 3).signal, signals[0]
    )
