"""What algorithms refuse: parameters that make no sense, problems that they cannot solve, predictions that do not exist."""

import math
from dataclasses import dataclass

import pytest
from smimbench_attention.algorithms.adam import Adam, AdamW
from smimbench_attention.algorithms.averaged import Averaged
from smimbench_attention.algorithms.erm import Erm
from smimbench_attention.algorithms.gamp import Gamp
from smimbench_attention.algorithms.nuclear import Nuclear
from smimbench_attention.algorithms.ridge import Ridge
from smimbench_attention.algorithms.sgd import Sgd
from smimbench_attention.algorithms.spectral import Spectral

from smimbench.interfaces import Channel, Conditions, ParameterError
from smimbench.interfaces.problem import placeholder_data
from smimbench.theory.predictions import own_theory
from tests.helpers import attention, sequence

BAD = [
    (Gamp, "damping", {"damping": 1.0}),
    (Gamp, "damping", {"damping": -0.1}),
    (Gamp, "initial_overlap", {"initial_overlap": 0.0}),
    (Gamp, "initial_overlap", {"initial_overlap": 1.0}),
    (Adam, "learning_rate", {"learning_rate": 0.0}),
    (Adam, "beta1", {"beta1": 1.0}),
    (Adam, "beta2", {"beta2": -0.1}),
    (Adam, "epsilon", {"epsilon": 0.0}),
    (Adam, "weight_decay", {"weight_decay": -1.0}),
    (Adam, "steps", {"steps": 0}),
    (Adam, "width", {"width": 0}),
    (Adam, "epochs", {"steps": 3, "epochs": 2}),
    (Adam, "batch", {"online": True}),
    (Adam, "epochs", {"online": True, "batch": 3, "epochs": 2}),
    (Adam, "loss", {"loss": "hinge"}),
    (AdamW, "weight_decay", {"weight_decay": -0.1}),
    (Sgd, "schedule", {"schedule": "linear"}),
    (Sgd, "decay_steps", {"schedule": "step", "decay_factor": 0.5}),
    (Sgd, "decay_factor", {"schedule": "1/t", "decay_steps": 3, "decay_factor": 0.5}),
    (Sgd, "decay_factor", {"schedule": "step", "decay_steps": 3, "decay_factor": 1.5}),
    (Sgd, "decay_factor", {"schedule": "step", "decay_steps": 3, "decay_factor": 0.0}),
    (Sgd, "momentum", {"momentum": 1.0}),
    (Sgd, "nesterov", {"nesterov": True}),
    (Sgd, "weight_decay", {"weight_decay": -0.1}),
    (Sgd, "surrogate_beta", {"surrogate_beta": (3.0, 1.0)}),
    (Averaged, "students", {"of": "adam", "students": 0}),
    (Averaged, "of.name", {"of": {}}),
    (Averaged, "of.name", {"of": {"name": "unheard-of"}}),
    (Averaged, "of.name", {"of": {"name": "averaged", "of": {"name": "adam"}}}),
    (Averaged, "of.learning_rate", {"of": {"name": "adam", "learning_rate": -1.0}}),
    (Averaged, "of.momentum", {"of": {"name": "adam", "momentum": 0.5}}),
    (Ridge, "regularisation", {"regularisation": -1.0}),
    (Ridge, "regularisation", {"regularisation": math.inf}),
    (Ridge, "regularisation", {"regularisation": "guess"}),
    (Nuclear, "regularisation", {"regularisation": 0.0}),
    (Nuclear, "regularisation", {"regularisation": "theory"}),
    (Erm, "penalty", {"penalty": 0.0}),
    (Erm, "penalty", {"penalty": "best"}),
    (Erm, "loss", {"loss": "hinge"}),
    (Erm, "length", {"length": "long"}),
    (Spectral, "kind", {"kind": "skew"}),
    (Spectral, "origin", {"origin": "one"}),
    (Spectral, "regularisation", {"regularisation": 0.0}),
    (Spectral, "regularisation", {"kind": "asymmetric", "regularisation": 0.1}),
]


@pytest.mark.parametrize(("cls", "key", "parameters"), BAD)
def test_parameters_that_make_no_sense(cls, key, parameters):
    with pytest.raises(ParameterError) as error:
        cls(**parameters)
    assert error.value.key == key


@pytest.mark.parametrize("base", [Gamp, Ridge, Nuclear])
def test_a_parameter_steps_of_a_subclass_is_the_number_of_steps(base):
    @dataclass(frozen=True)
    class Short(base):
        steps: int = 3

    assert Short().plan(placeholder_data(30, 2, 20)).steps == 3


class Steps(Channel):
    """A channel without a derivative that is no hardmax."""

    name, components, symmetry = "steps", 1, "none"


def stubborn(problem):
    problem.channel = Steps()
    return problem


@pytest.mark.parametrize(
    ("algorithm", "problem", "words"),
    [
        (Adam(width=3), sequence(layers=2), "width"),
        (Adam(surrogate_beta=(1.0, 2.0)), attention(), "surrogate_beta"),
        (Adam(loss="cross-entropy"), attention("linear"), "probabilities"),
        (Adam(loss="cross-entropy"), attention(), None),
        (Adam(), sequence("linear"), None),
        (Adam(), attention("hardmax"), None),
        (Sgd(), stubborn(attention()), "channel 'steps' has no derivative"),
        (Averaged(of="nuclear"), sequence(layers=2), "does not work for model"),
        (
            Averaged(of={"name": "adam", "loss": "cross-entropy"}),
            attention("linear"),
            "probabilities",
        ),
        (Ridge(), sequence(), "not linear"),
        (Ridge(), sequence(layers=2), "not linear"),
        (Ridge(), attention("hardmax"), "not linear"),
        (Ridge(), attention(), None),
        (Nuclear(), attention("hardmax"), "not linear"),
        (Nuclear(), attention(), None),
        (Nuclear("optimal"), attention("linear", rho=0.0, noise=0.3), "small-width"),
        (Erm(), sequence(), "sign of the signal"),
        (Erm("logistic"), sequence("linear", noise=0.3), "needs labels -1 and"),
        (Spectral(origin="zero"), sequence(), "origin"),
        (Spectral(kind="symmetric"), attention(), "kind"),
        (Spectral(regularisation=0.1), attention(), "regularisation"),
        (Spectral(), sequence(), None),
        (Spectral(), attention(), None),
    ],
)
def test_problems_that_are_refused(algorithm, problem, words):
    reason = algorithm.refuses(problem)
    assert reason is None if words is None else words in reason


AT = Conditions(dimension=24)
NOISY = attention("linear", noise=0.3, noise_convention="plain")
ONLINE = {"online": True, "batch": 4, "steps": 5, "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("algorithm", "problem", "conditions", "words"),
    [
        (Adam(), NOISY, AT, "theory exists for sgd and muon only"),
        (AdamW(weight_decay=1.0), NOISY, AT, "theory exists for sgd and muon only"),
        (
            Adam(weight_decay=1.0, batch=5),
            NOISY,
            AT,
            "theory exists for sgd and muon only",
        ),
        (Adam(weight_decay=1.0), NOISY, Conditions(), "needs the dimension D"),
        (
            Adam(weight_decay=0.01, width=5),
            NOISY,
            AT,
            "fewer than the rank of the minimum",
        ),
        (Adam(weight_decay=1.0), attention(), AT, "squared error only"),
        (
            Adam(weight_decay=1.0, loss="squared"),
            attention(),
            AT,
            "single latents plus noise",
        ),
        (Adam(**ONLINE), sequence(), AT, "adaptive step sizes"),
        (Sgd(), attention(), AT, "low-rank signals"),
        (Sgd(**ONLINE), sequence("linear", noise=0.3), Conditions(), "dimension"),
        (
            Sgd(**{**ONLINE, "learning_rate": 9.0, "steps": 50}),
            sequence("linear", noise=0.3),
            AT,
            "diverge",
        ),
        (Sgd(**ONLINE), sequence("hardmax"), AT, "annealed softmax"),
        (
            Averaged(of={"name": "sgd", **ONLINE}, students=3),
            sequence("linear", noise=0.3),
            AT,
            "two independent students",
        ),
        (Ridge("validation"), attention("linear"), AT, "by validation"),
        (Ridge(0.3), NOISY, AT, "'theory' only"),
        (Ridge(0.3), sequence(), AT, "not linear"),
        (Nuclear(), NOISY, AT, "validation"),
    ],
)
def test_predictions_that_do_not_exist(algorithm, problem, conditions, words):
    reason = own_theory(algorithm, problem, 0.4, conditions)
    assert isinstance(reason, str)
    assert words in reason
