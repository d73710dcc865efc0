"""Calibration and cosine: definitions on hand-made estimates, and runs of finite size next to theory."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from smimbench.interfaces import NotMeasured
from smimbench.problem.problem import Problem
from smimbench.registry.registry import find_metric, theory_of
from tests.helpers import SUITE, JsonPoint, call, write_suite

LOW = Problem(
    {"name": "sequence-multi-index", "tokens": 2},
    {"name": "softmax", "layers": 2},
    "gaussian",
)
HIGH = Problem(
    {"name": "attention-indexed", "tokens": 2},
    "softmax",
    {"name": "wishart", "rho": 0.5},
)


def measured(name, instance, estimate, V=None):
    return find_metric(name).measure(instance, estimate, instance.claims(estimate, V))


def test_calibration_is_the_claimed_over_the_real_error():
    instance = LOW.instance(1.0, 50)
    estimate = 0.5 * instance.signal
    real = 0.25 * np.mean(instance.signal**2, axis=1)
    found = measured("calibration", instance, estimate, np.diag([0.1, 0.2]))
    assert found == pytest.approx(np.array([0.1, 0.2]) / real)


def test_the_claim_follows_the_component_that_it_belongs_to():
    """Labels that see neither order nor sign: the components exchanged, one with the other sign, and the claim with them."""
    drawn = LOW.instance(1.0, 50)
    blind = SimpleNamespace(
        model=LOW.model,
        prior=LOW.prior,
        components=2,
        channel=SimpleNamespace(symmetry="signed-permutations"),
    )
    instance = replace(drawn, problem=blind)
    estimate, V = 0.5 * drawn.signal, np.array([[0.1, 0.02], [0.02, 0.3]])
    move = np.array([[0.0, -1.0], [1.0, 0.0]])
    one = measured("calibration", instance, estimate, V)
    other = measured("calibration", instance, move @ estimate, move @ V @ move.T)
    assert one == pytest.approx(other, rel=1e-10)
    assert one[0] != pytest.approx(one[1], rel=0.5)


def test_what_cannot_be_calibrated_says_why():
    instance = LOW.instance(1.0, 50)
    with pytest.raises(NotMeasured, match="states no error of its estimate"):
        measured("calibration", instance, 0.5 * instance.signal)
    with pytest.raises(NotMeasured, match="0 up to rounding"):
        measured("calibration", instance, instance.signal, 1e-12 * np.eye(2))
    half = instance.signal * np.array([[1.0], [0.5]])
    found = measured("calibration", instance, half, 0.25 * np.eye(2))
    assert math.isnan(found[0])
    assert found[1] == pytest.approx(1.0, rel=0.5)


@pytest.mark.parametrize("problem", [LOW, HIGH], ids=["low rank", "extensive rank"])
def test_the_cosine_does_not_depend_on_length(problem):
    instance = problem.instance(0.5, 30)
    P = problem.components
    assert measured("cosine", instance, 3.0 * instance.signal) == pytest.approx(
        [1.0] * P
    )
    assert measured("cosine", instance, 0.0 * instance.signal) == [0.0] * P


def test_theory_of_the_cosine_is_a_root_with_its_error():
    point = JsonPoint(
        mse=[0.75, 1.0], mse_error=[0.01, 0.01], overlap=[[0.25, 0.0], [0.0, 0.0]]
    )
    values, errors = theory_of(find_metric("cosine"), LOW, point, 2)
    assert values == pytest.approx([0.5, 0.0])
    assert errors == pytest.approx([0.01, 0.1])
    values, _ = theory_of(
        find_metric("cosine"),
        LOW,
        JsonPoint(point, squared_cosine=[0.36, 0.0], squared_cosine_error=[0, 0]),
        2,
    )
    assert values == pytest.approx([0.6, 0.0])
    second = float(HIGH.prior.second_moment(1)[0, 0])
    values, _ = theory_of(
        find_metric("cosine"),
        HIGH,
        JsonPoint(mse=0.4, mse_error=0.0, overlap=[[second - 0.4]]),
        1,
    )
    assert values == pytest.approx([math.sqrt(1 - 0.4 / second)])


def test_theory_of_the_calibration_is_one_where_an_error_is_left():
    values, errors = theory_of(
        find_metric("calibration"),
        LOW,
        JsonPoint(mse=[0.3, 0.0], mse_error=[0.0, 0.0]),
        2,
    )
    assert values == [1.0, None]
    assert errors == [0.0, None]


FINITE = (
    SUITE.replace("[30]", "[400]")
    .replace("seeds     = 2", "seeds     = 6")
    .replace("[0.5, 1.0]", "[1.0]")
)


def test_message_passing_of_finite_size_lands_near_theory(tmp_path, capsys):
    """GAMP's claim is right and its angle is the predicted one; Adam claims nothing and the table says so."""
    suite = write_suite(tmp_path, FINITE)
    options = (
        "--set",
        'run.metrics=["calibration", "cosine"]',
        "--results",
        tmp_path / "r",
    )
    _, text, _ = call(capsys, "run", suite, "--json", "--no-figure", *options)
    rows = {(row["algorithm"], row["metric"]): row for row in json.loads(text)["rows"]}
    calibration, cosine = rows["gamp", "calibration"], rows["gamp", "cosine"]
    assert calibration["theory"] == 1.0
    assert calibration["mean"] == pytest.approx(1.0, abs=4 * calibration["sem"] + 0.02)
    assert cosine["mean"] == pytest.approx(
        cosine["theory"], abs=4 * cosine["sem"] + 0.01
    )
    assert 0 < cosine["theory"] < 1
    assert rows["adam", "calibration"]["n"] == 0
    assert rows["adam", "calibration"]["blank"] == [
        "the algorithm states no error of its estimate"
    ]
    assert rows["adam", "cosine"]["n"] == 6
    _, text, _ = call(capsys, "show", suite, "--full", *options)
    assert (
        "adam: calibration is blank: the algorithm states no error of its estimate"
        in " ".join(text.split())
    )
