"""Features with a spectrum: the Bayes error, ridge and convex losses against deterministic equivalents, and finite runs."""

import json
import math

import numpy as np
import pytest
from smimbench_attention.algorithms.erm import Erm
from smimbench_attention.algorithms.erm.fixed_point import order_parameters
from smimbench_attention.algorithms.gamp import Gamp
from smimbench_attention.algorithms.least_squares import ridge_averages, ridge_overlaps
from smimbench_attention.algorithms.ridge import Ridge

from smimbench.problem.problem import Problem, ProblemError
from smimbench.suite import SuiteError
from smimbench.suite.reader import load_suite
from smimbench.testing import check
from smimbench.theory.predictions import solve, thresholds
from tests.helpers import call, run_once, suite_text, write_suite

EXPONENTS = [0.5, 1.0, 1.5]


def problem_of(
    inputs,
    channel="linear",
    tokens=2,
    prior="gaussian",
    model="sequence-multi-index",
    **parameters,
):
    return Problem(
        {"name": model, "tokens": tokens},
        {"name": channel, **parameters},
        prior,
        inputs,
    )


def power_law(exponent, D, **more):
    return {"name": "power-law", "exponent": exponent, "features": D, **more}


def variances_of(exponent, D):
    found = 1.0 / np.arange(1, D + 1) ** exponent
    return D * found / found.sum()


# -- a deterministic equivalent, by the resolvent and complex steps -------------------------------------------------------


def resolvent(variances, ratio, penalty, shift=0.0):
    """Traces ``tr L R / D`` and ``tr R / D`` of ``R = (X^T X / D + penalty + shift L)^-1``, L the variances of the features.

    Silverstein's equation, iterated in complex numbers.
    """
    delta = 1.0 + 0j
    for _ in range(20_000):
        new = np.mean(variances / (penalty + (shift + ratio / (1 + delta)) * variances))
        if abs(new.real - delta.real) < 1e-16 * abs(new) and abs(
            new.imag - delta.imag
        ) <= 1e-14 * abs(new.imag):
            break
        delta = new
    return delta, np.mean(1 / (penalty + (shift + ratio / (1 + delta)) * variances))


def equivalent_error(variances, ratio, penalty, noise):
    """Error of ridge: ``penalty^2 tr R L R / D + noise (tr L R - penalty tr L R^2) / D`` from derivatives of the resolvent."""
    h = 1e-30
    bias = -(penalty**2) * resolvent(variances, ratio, penalty, 1j * h)[1].imag / h
    delta = resolvent(variances, ratio, penalty + 1j * h)[0]
    return bias + noise * (delta.real + penalty * delta.imag / h)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize(
    ("alpha", "tokens", "noise", "D"),
    [(0.4, 1, 0.1, 300), (1.3, 2, 0.02, 1000), (0.05, 3, 1.5, 77)],
)
def test_ridge_and_the_bayes_error_are_the_deterministic_equivalent(
    exponent, alpha, tokens, noise, D
):
    one, problem = (
        problem_of(power_law(exponent, D), tokens=tokens, noise=noise, components=P)
        for P in (1, 2)
    )
    variances = variances_of(exponent, D)
    ratio = alpha * tokens
    bayes = equivalent_error(variances, ratio, noise, noise)
    assert np.allclose(solve(one, [alpha])[0].mse, bayes, rtol=1e-8)
    both = solve(problem, [alpha])[0]  # read off a curve
    assert np.allclose(both.mse, bayes, rtol=1e-4)
    assert np.allclose(Ridge().theory(problem, alpha).mse, bayes, rtol=1e-8)
    for penalty in (1e-3, 0.3, 20.0):
        wanted = equivalent_error(variances, ratio, penalty, noise)
        assert np.allclose(Ridge(penalty).theory(problem, alpha).mse, wanted, rtol=1e-8)
        erm = Erm(loss="square", penalty=penalty).theory(problem, alpha)
        assert np.allclose(erm.mse, wanted, rtol=1e-8)
    best = Erm(loss="square").theory(problem, alpha)
    assert best.more["penalty"] == pytest.approx(noise, rel=1e-3)


def test_random_spectra_and_no_penalty():
    rng = np.random.default_rng(3)
    for _ in range(6):
        D = int(rng.integers(5, 200))
        ratio = float(rng.uniform(0.1, 3))
        noise = float(rng.uniform(0.05, 1))
        values = rng.gamma(0.5, 1, D) + 1e-3
        problem = problem_of(
            {"name": "power-law", "spectrum": values.tolist()}, tokens=1, noise=noise
        )
        wanted = equivalent_error(values / values.mean(), ratio, noise, noise)
        assert np.allclose(solve(problem, [ratio])[0].mse, wanted, rtol=1e-8)
        bare, nearly = (
            Ridge(penalty).theory(problem, ratio).mse for penalty in (0.0, 1e-9)
        )
        assert np.allclose(bare, nearly, rtol=1e-4)


def test_exponent_zero_is_gaussian_inputs():
    flat = np.ones(50)
    for ratio in (0.3, 1.0, 2.5):
        for penalty in (1e-4, 0.3, 50.0):
            same = [
                ridge_overlaps(np.eye(1), 0.2 * np.eye(1), ratio, penalty, v)
                for v in (None, flat)
            ]
            assert np.allclose(*same, rtol=1e-12, atol=0)
            shares = [ridge_averages(ratio, penalty, v) for v in (None, flat)]
            assert np.allclose(*shares, rtol=1e-11, atol=0)
    V = np.array([[0.3, 0.1], [0.1, 0.4]])
    here = np.stack([V, np.diag([0.5, 0.7]), np.array([[1.0, 0.2], [0.2, 2.0]])])
    for one, two in zip(
        *(order_parameters(here, np.eye(2), 0.3, v) for v in (None, flat))
    ):
        assert np.allclose(one, two, rtol=1e-12, atol=1e-12)
    plain = problem_of("gaussian", noise=0.2)
    for exponent in (0.0, 1e-13):
        problem = problem_of(power_law(exponent, 50), noise=0.2)
        assert (problem.features is None) == (exponent == 0)
        assert np.allclose(
            solve(problem, [0.7])[0].mse, solve(plain, [0.7])[0].mse, rtol=1e-12, atol=0
        )


def test_the_map_of_the_prior_agrees_with_its_denoiser():
    problem = problem_of(power_law(1.0, 400), components=2)
    Qhat = np.array([[3.0, 1.0], [1.0, 0.7]])
    D = 400
    Q, V = problem.prior.overlap(Qhat)
    assert np.allclose(Q + V, np.eye(2))
    rng = np.random.default_rng(2)
    errors = []
    for _ in range(200):
        W = problem.prior.sample(rng, 2, D)
        noise = np.linalg.cholesky(np.linalg.inv(Qhat)) @ problem.model.draw_noise(
            rng, 2, D
        )
        found = problem.prior.denoise(W + noise, Qhat)
        assert np.allclose(found.V, V)
        gap = W - found.estimate
        errors.append(problem.model.inner(gap, gap))
    assert np.allclose(
        np.mean(errors, axis=0),
        V,
        atol=4 * np.std(errors, axis=0).max() / math.sqrt(200),
    )
    known = problem.prior.overlap(np.diag([np.inf, 0.0]))
    assert np.allclose(known.Q, np.diag([1.0, 0.0]))


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_gamp_and_ridge_end_at_the_posterior_mean(exponent):
    D = 200
    problem = problem_of(power_law(exponent, D), noise=0.3, components=2)
    instance = problem.instance(0.8, D)
    X = instance.inputs.reshape(-1, D) / math.sqrt(D)
    y = instance.labels.transpose(1, 0, 2).reshape(2, -1)
    exact = np.linalg.solve(X.T @ X + 0.3 * np.eye(D), X.T @ y.T).T
    assert np.var(np.sqrt(D) * X, axis=0)[:3] == pytest.approx(
        variances_of(exponent, D)[:3], rel=0.3
    )
    for algorithm in (Gamp(), Ridge()):
        found = run_once(
            problem, instance, algorithm, tolerance=1e-7, max_iterations=3000
        )
        assert found.status.value == "ok"
        assert np.linalg.norm(found.estimate - exact) < 1e-4 * np.linalg.norm(exact)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_weak_recovery_is_earlier_by_the_mean_square_of_the_variances(exponent):
    # Linearized, Q -> <lambda^2> Qhat: at alpha_c = 1 / (M (M + 1) <lambda^2>) for one layer of attention over M tokens.
    problem = problem_of(power_law(exponent, 90), "softmax")
    found = thresholds(problem).weak_recovery
    expected = 1 / (6 * np.mean(variances_of(exponent, 90) ** 2))
    assert found.value == pytest.approx(expected, rel=1e-3)


LOGISTIC = Erm(loss="logistic", penalty=0.5, length="loss")


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_a_convex_loss_that_is_not_the_square_lands_on_its_fixed_point(exponent):
    D = 300
    runs = 24
    problem = problem_of(power_law(exponent, D), "sign", tokens=1)
    theory = LOGISTIC.theory(problem, 2.0)
    found = []
    for replicate in range(runs):
        instance = problem.instance(2.0, D, replicate)
        estimate = run_once(
            problem, instance, LOGISTIC, tolerance=1e-7, max_iterations=300
        ).estimate
        truth, cross, own = (matrix.item() for matrix in instance.overlaps(estimate))
        found.append((cross / math.sqrt(truth), own))  # of a signal of length 1
    mean = np.mean(found, axis=0)
    error = np.std(found, axis=0, ddof=1) / math.sqrt(runs)
    wanted = np.array([theory.overlap.item(), theory.own_overlap.item()])
    assert (np.abs(mean - wanted) < 4 * error + 0.02 * wanted).all(), (
        mean,
        error,
        wanted,
    )


SUITE = suite_text(
    """
model = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "linear", noise = 0.1 }
prior = "gaussian"
inputs = { name = "power-law", exponent = [0.5, 1.0, 1.5] }
""",
    [0.5],
    60,
    24,
    'name = "gamp"',
)


@pytest.mark.slow
def test_a_suite_fills_in_its_dimensions_and_extrapolates_over_them(tmp_path, capsys):
    text = SUITE.replace("dimension = [60]", "dimension = [60, 90, 120]")
    file = write_suite(tmp_path, text)
    suite = load_suite(file)
    assert [
        (plan.problem.inputs.features, plan.dimensions) for plan in suite.plans
    ] == [(D, (D,)) for _ in EXPONENTS for D in (60, 90, 120)]
    out = str(tmp_path / "results")
    found = call(capsys, "run", str(file), "--quiet", "--results", out)
    assert found[0] == 0, found
    document = json.loads(
        call(capsys, "show", str(file), "--json", "--results", out)[1]
    )
    mse = [row for row in document["extrapolated"] if row["metric"] == "mse"]
    assert [row["refusal"] for row in mse] == [""] * 3
    assert max(abs(row["z"]) for row in mse) < 3
    assert all([p["dimension"] for p in row["points"]] == [60, 90, 120] for row in mse)


@pytest.mark.slow
def test_plain_draws_agree_with_theory(tmp_path, capsys):
    code, out, err = call(
        capsys,
        "theory",
        str(write_suite(tmp_path, SUITE)),
        "--verify",
        "--results",
        str(tmp_path),
    )
    assert code == 0, out + err


def test_where_no_theory_is_known_none_is_claimed():
    spectrum = power_law(1.0, 40)
    matrices = problem_of(
        spectrum, model="attention-indexed", prior={"name": "wishart", "rho": 0.5}
    )
    assert "matrices over features with a spectrum" in matrices.no_theory
    assert "give its number of features" in problem_of({"name": "power-law"}).no_theory
    assert problem_of(spectrum).no_theory is None
    with pytest.raises(ProblemError, match="no theory is known"):
        solve(matrices, [0.5])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"exponent": -1.0}, "exponent: must be between 0 and 20"),
        ({"exponent": 300.0}, "exponent: must be between 0 and 20"),
        (
            {"spectrum": []},
            "spectrum: must be a list of numbers between 1e-09 and 1e\\+09",
        ),
        ({"spectrum": [1.0, 0.0]}, "spectrum: must be a list of numbers"),
        ({"spectrum": [1e308, 1e308]}, "spectrum: must be a list of numbers"),
        ({"spectrum": [1.0, 2.0], "features": 3}, "features: must be 2"),
        ({"spectrum": [1.0, 2.0], "exponent": 2.0}, "exponent: must be left out"),
        ({"features": 0}, "features: must be at least 1"),
    ],
)
def test_bad_parameters_are_one_line(inputs, words):
    with pytest.raises(ProblemError, match=words):
        problem_of({"name": "power-law", **inputs})


def test_the_dimension_of_a_suite_is_that_of_a_given_spectrum(tmp_path):
    text = SUITE.replace("exponent = [0.5, 1.0, 1.5]", "spectrum = [1.0, 2.0, 3.0]")
    with pytest.raises(
        SuiteError,
        match=r"must be 3, because problem\.inputs has this number of features",
    ):
        load_suite(write_suite(tmp_path, text))


def test_it_keeps_its_contract():
    assert {one.status for one in check(problem_of({"name": "power-law"}).inputs)} == {
        "passed"
    }


LAPLACE = """
import numpy as np
import smimbench
from smimbench.interfaces import Law, Prior


class Laplace(Prior):
    name, version, reference = "laplace", 1, "none"
    capabilities = smimbench.Capabilities(models=("sequence-multi-index",))
    law = Law(log_density=lambda w: -np.sqrt(2) * np.abs(w))


@smimbench.hookimpl
def smimbench_register_priors(register):
    register(Laplace)
"""


def test_signals_that_are_not_gaussian_have_no_theory_and_no_message_passing(
    tmp_path, capsys
):
    (tmp_path / "laplace.py").write_text(LAPLACE)
    text = SUITE.replace('prior = "gaussian"', 'prior = "laplace"').replace(
        "seeds     = 24", "seeds     = 1"
    )
    file = write_suite(
        tmp_path,
        text.replace("[0.5, 1.0, 1.5]", "[1.0]") + '\n[[algorithms]]\nname = "ridge"\n',
    )
    how = "--plugins", str(tmp_path / "laplace.py"), "--results", str(tmp_path)
    assert call(capsys, "run", str(file), "--quiet", "--no-figure", *how)[0] == 0
    rows = json.loads(call(capsys, "show", str(file), "--json", *how)[1])["rows"]
    found = {row["algorithm"]: row for row in rows if row["metric"] == "mse"}
    assert found["gamp"]["status_counts"] == {"skipped": 1}
    assert found["ridge"]["status_counts"] == {"ok": 1}
    assert found["ridge"]["theory"] is None


def test_theory_without_a_suite_takes_the_number_of_features():
    from smimbench import theory

    asked = {
        "model": "sequence-multi-index",
        "channel": "sign",
        "prior": "gaussian",
        "tokens": 1,
        "alpha": [1.3],
    }
    (independent,) = theory(**asked).table
    (flat,) = theory(**asked, inputs="power-law", exponent=0.0, features=37).table
    (steep,) = theory(**asked, inputs="power-law", features=37).table
    assert flat["mse"] == pytest.approx(independent["mse"], rel=1e-9)
    assert steep["mse"] < 0.95 * flat["mse"]
    spectrum = [1 / k for k in range(1, 38)]
    (given,) = theory(**asked, inputs="power-law", spectrum=spectrum).table
    assert given["mse"] == pytest.approx(steep["mse"], rel=1e-9)
