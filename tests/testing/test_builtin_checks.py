"""Everything that ships passes the checks that third parties are asked to pass."""

import pytest

from smimbench.registry.registry import BUILT_IN, get_registry
from smimbench.testing import all_checks, contexts, parametrize_with_checks
from smimbench.testing.context import instantiate, kind_of
from smimbench.theory import item_tests


def made(kind, name, model=None, **parameters):
    return instantiate(get_registry().get(kind, name, model).item, kind, parameters)


LOW, HIGH = "sequence-multi-index", "attention-indexed"
SHORT = {"steps": 25}
NEEDS_A_FILE = {("inputs", "array")}  # checked by tests/inputs

# Sampled integrals at their cheapest, iterations few: the checks ask for consistency, which does not depend on either.
ITEMS = [
    made("model", LOW, tokens=1),
    made("model", LOW, tokens=3),
    made("model", HIGH, tokens=2),
    made("model", HIGH, tokens=3),
    made("model", HIGH, tokens=3, symmetric=False),
    made("inputs", "gaussian"),
    made("inputs", "correlated-tokens"),
    made("inputs", "heavy-tails"),
    made("inputs", "power-law"),
    made("inputs", "sphere"),
    made("inputs", "one-hot"),
    made("inputs", "text"),
    made("channel", "linear", LOW, tokens=2),
    made("channel", "linear", LOW, tokens=2, components=3, noise=0.3),
    made("channel", "sign", LOW),
    made("channel", "probit", LOW),
    made("channel", "softmax", LOW, tokens=3),
    made("channel", "linear", HIGH, tokens=2, noise=0.2, noise_convention="plain"),
    made("channel", "softmax", HIGH, tokens=2),
    made("channel", "softmax", HIGH, tokens=3, beta=2.0),
    made("channel", "linear", HIGH, tokens=2, noise=0.2, symmetric=False),
    made("channel", "softmax", HIGH, tokens=3, symmetric=False),
    made("channel", "softmax", HIGH, tokens=2, layers=2),
    made("channel", "hardmax", HIGH, tokens=2),
    made("prior", "gaussian"),
    made("prior", "wishart", rho=0.5),
    made("prior", "wishart", rho=1.5),
    made("prior", "bilinear", rho=0.5),
    made("metric", "mse"),
    made("metric", "overlap"),
    made("metric", "generalization_error_bayes"),
    made("metric", "generalization_error_plugin"),
    made("metric", "generalization_error_constant"),
    made("metric", "calibration"),
    made("metric", "cosine"),
    made("metric", "nishimori"),
    made("algorithm", "gamp"),
    made("algorithm", "spectral"),
    made("algorithm", "ridge"),
    made("algorithm", "erm"),
    made("algorithm", "nuclear"),
    made("algorithm", "adam", **SHORT),
    made("algorithm", "adamw", **SHORT),
    made("algorithm", "sgd", **SHORT),
    made("algorithm", "signsgd", **SHORT),
    made("algorithm", "muon", **SHORT),
    made("algorithm", "averaged", of={"name": "adam", **SHORT}, students=2),
]


SLOW_ITEMS = [
    made("channel", "softmax", LOW, tokens=2, layers=2, accuracy=1e-2, points=256),
    made("channel", "hardmax", HIGH, tokens=3, samples=128),
]


@pytest.fixture(autouse=True)
def _hurried(monkeypatch):
    """The draws of a fifth of the time: channels have tests of their own with more of them."""
    monkeypatch.setattr(item_tests.ChannelTest, "seconds", 0.1)


@parametrize_with_checks(ITEMS)
def test_contract(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(SLOW_ITEMS)
def test_contract_of_slow_items(check):
    check()


def test_nothing_that_ships_is_left_out():
    checked = {(kind_of(item), item.name) for item in ITEMS}
    shipped = {
        (e.kind, e.name) for e in get_registry().entries() if e.distribution == BUILT_IN
    }
    assert shipped - checked == NEEDS_A_FILE


def test_every_item_can_be_checked_by_its_name_alone():
    for entry in get_registry().entries():
        assert (entry.kind, entry.name) in NEEDS_A_FILE or contexts(entry.name), (
            entry.name
        )


def test_the_checks_are_published():
    checks = all_checks()
    assert len({(c.kind, c.id) for c in checks}) == len(checks) > 40
    for check in checks:
        assert check.id.isidentifier()
        assert check.meaning.endswith(".")
        assert check.function.__doc__
