"""A metric of somebody else goes through suites, tables, figures and comparison like those that ship."""

import json
import re

import pytest

from smimbench.registry.registry import (
    Registry,
    RegistryError,
    find_metric,
    metric_names_in_key,
    set_registry,
    trajectory_metrics,
    using,
)
from tests.helpers import ATTENTION, SUITE, call, flat, output, refusal, write_suite

pytestmark = pytest.mark.usefixtures("svg_alone")

METRIC = '''
import numpy as np
import smimbench
from smimbench.interfaces import NotMeasured


class Share:
    """Part of the signal's length that is found, along the signal."""

    name, version, reference = "share", VERSION, "this file"
    capabilities = smimbench.Capabilities()
    label, unit, direction, per_component = "found share", "all of the signal", "higher", True

    def measure(self, instance, estimate, claims):
        if not np.any(estimate):
            raise NotMeasured("the estimate is 0")
        inner = instance.problem.model.inner
        return [float(v) for v in np.diagonal(inner(claims.teacher, claims.aligned))]

    def theory(self, problem, point):
        found = [row[i] for i, row in enumerate(point["overlap"])]
        return found, [0.01] * len(found)


@smimbench.hookimpl
def smimbench_register_metrics(register):
    register(Share)
'''


@pytest.fixture
def share(tmp_path):
    """The file with the metric."""
    path = tmp_path / "share.py"
    path.write_text(METRIC.replace("VERSION", "1"))
    return path


@pytest.fixture
def registered(share):
    """The metric in the registry of this process."""
    registry = Registry([str(share)])
    set_registry(registry)
    yield registry
    set_registry(None)


@pytest.mark.slow
def test_it_appears_in_rows_tables_figures_and_comparison(tmp_path, share, capsys):
    suite, out = write_suite(tmp_path, SUITE), tmp_path / "r"
    options = (
        "--plugins",
        share,
        "--set",
        'run.metrics=["share", "mse"]',
        "--only",
        "algorithm=gamp",
    )
    code, text, _ = call(capsys, "run", suite, "--results", out, "--json", *options)
    rows = [row for row in json.loads(text)["rows"] if row["metric"] == "share"]
    assert code in (0, 1)
    assert {row["component"] for row in rows} == {None}
    for row in rows:
        assert row["n"] == 2
        assert row["theory"] == pytest.approx(1 - next(
            r["theory"] for r in json.loads(text)["rows"] if r["metric"] == "mse" and r["alpha"] == row["alpha"]
        ), abs=1e-6)  # fmt: skip
        assert row["theory_error"] == 0.01
        assert row["ratio_to_bayes"] is None
    shown = ("show", suite, "--results", out, "--full", "--figures", *options)
    _, text, _ = call(capsys, *shown)
    assert "line: found share against theory" in text
    assert (
        "error ÷"
        not in text.split("line: found share against theory")[1].split("line:")[0]
    )
    (folder,) = (out / "small" / "settings").iterdir()
    assert "found share" in (folder / "figures" / "share.svg").read_text()
    text = output(capsys, "compare", out / "small", out / "small", "--plugins", share)
    assert "line: found share" in text
    _, text, _ = call(capsys, "list", "metrics", "--plugins", share)
    assert "Part of the signal's length" in text


def test_a_reason_stands_where_there_is_no_value(tmp_path, share, capsys):
    """Without data the estimate of ridge regression is the prior mean, 0."""
    share.write_text(
        METRIC.replace("VERSION", "1").replace(
            "not np.any(estimate)", "claims.V is None"
        )
    )
    suite = write_suite(tmp_path, SUITE)
    options = (
        "--plugins",
        share,
        "--set",
        'run.metrics=["share"]',
        "--results",
        tmp_path / "r",
        "--no-figure",
    )
    _, text, _ = call(capsys, "run", suite, "--json", *options)
    rows = {row["algorithm"]: row for row in json.loads(text)["rows"]}
    assert rows["gamp"]["n"] == 2
    assert rows["gamp"]["blank"] == []
    assert rows["adam"]["mean"] is None
    assert rows["adam"]["blank"] == ["the estimate is 0"]
    _, text, _ = call(capsys, "show", suite, *options[:-1])
    assert "adam: share is blank: the estimate is 0" in flat(text)


def test_a_metric_that_leaves_costs_its_own_values_alone(tmp_path, share, capsys):
    """It is measured along the way even if the suite does not name it, in the rows of all algorithms."""
    share.write_text(
        METRIC.replace("VERSION", "1").replace(
            "        inner =", "        raise SystemExit(3)\n        inner ="
        )
    )
    suite = write_suite(tmp_path, SUITE)
    options = ("--plugins", share, "--results", tmp_path / "r", "--no-figure")
    for more in ((), ("--set", 'run.metrics=["mse", "share"]')):
        _, text, _ = call(capsys, "run", suite, "--json", *options, *more)
        document = json.loads(text)
        assert document["status_counts"] == {"ok": 8}
    rows = [row for row in document["rows"] if row["metric"] == "share"]
    assert {row["mean"] for row in rows} == {None}
    assert rows[0]["blank"] == ["SystemExit: 3"]


@pytest.mark.parametrize("in_trajectory", [True, False])
def test_a_metric_that_is_no_number_says_so_and_costs_the_exit_code(
    tmp_path, share, capsys, in_trajectory
):
    text = METRIC.replace("VERSION", "1").replace(
        "        inner =", "        return [float('nan')]\n        inner ="
    )
    if not in_trajectory:
        text = text.replace(
            "    def measure", "    in_trajectory = False\n\n    def measure", 1
        )
    share.write_text(text)
    suite = write_suite(tmp_path, SUITE)
    options = ("--plugins", share, "--results", tmp_path / "r", "--no-figure")
    code, text, _ = call(
        capsys, "run", suite, *options, "--set", 'run.metrics=["share"]'
    )
    assert code == 1
    assert "8 ok" in text
    assert "share has no value in any run: ValueError: measure returned NaN" in text


def test_an_unknown_metric_is_refused_with_its_key(tmp_path, capsys):
    suite = write_suite(tmp_path, ATTENTION)
    err = refusal(capsys, "run", suite, "--set", 'run.metrics=["mse", "overlp"]')
    assert "run.metrics[1]: unknown metric 'overlp'; did you mean 'overlap'?" in err


def test_names_and_later_versions_are_in_the_key_of_a_cell(registered, tmp_path):
    from smimbench.suite.reader import load_suite

    suite = write_suite(tmp_path, SUITE)
    plain = {cell.key for cell in load_suite(suite).cells()}
    listed = {
        cell.key for cell in load_suite(suite, ['run.metrics=["mse", "share"]']).cells()
    }
    assert plain.isdisjoint(listed)
    assert plain == {
        cell.key for cell in load_suite(suite, ['run.metrics=["overlap"]']).cells()
    }
    (name,) = metric_names_in_key(("share", "mse", "share"))
    # The code of another package's item is part of what it is.
    assert re.fullmatch(r"share@1\.[0-9a-f]+", name)
    second = tmp_path / "second.py"
    second.write_text(METRIC.replace("VERSION", "2"))
    registry = Registry([str(second)])
    with using(registry):
        assert re.fullmatch(r"share@2\.[0-9a-f]+", metric_names_in_key(("share",))[0])


def test_a_direction_must_be_one_of_three(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(METRIC.replace("VERSION", "1").replace('"higher"', '"upwards"'))
    plugin = next(p for p in Registry([str(wrong)]).plugins if p.name == "wrong")
    assert plugin.failed
    assert "direction must be one of lower, higher, one" in plugin.problems[0]


def test_only_what_is_cheap_is_measured_along_the_way(registered):
    assert set(trajectory_metrics()) == {"mse", "overlap"}
    with pytest.raises(RegistryError):
        find_metric("nothing")
