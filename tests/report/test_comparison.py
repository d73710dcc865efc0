"""Two result folders side by side."""

from __future__ import annotations

import json

import pytest

from smimbench.report.comparison import compare_rows, exceeds
from smimbench.report.tables import comparison_tables, missing_values
from tests.helpers import SUITE, call, ends_with, write_suite
from tests.report.rows import printed, values_of
from tests.report.rows import row as any_row


def row(mean, **more):
    return any_row(**{"mean": mean, "alpha": 0.1, "dimension": 10, "theory": None, **more})


@pytest.mark.parametrize(
    ("before", "after", "verdict", "fails"),
    [
        (row(1.0), row(1.2), "worse", True),
        (row(1.2), row(1.0), "better", False),
        (row(1.0), row(1.02, values=values_of(1.02, 0.01, 4, root=1)), "within noise", False),
        (row(1.0), row(1.02), "worse", False),
        (row(1.0, metric="overlap"), row(1.2, metric="overlap"), "better", False),
        (row(1.2, metric="overlap"), row(1.0, metric="overlap"), "worse", True),
        (row(1.0), row(1.0), "unchanged", False),
        (row(1.0), row(1.0, per_iteration=2.0), "unchanged", True),
        (row(1.0), row(1.0, per_iteration=2.0, machines=["other"]), "unchanged", False),
        (row(1.0), row(None), "no estimate any more", True),
        (row(1.0, sem=None, n=1), row(1.2), "differs", True),
    ],
)
def test_a_change_is_judged(before, after, verdict, fails):
    (entry,) = compare_rows([before], [after])
    assert entry["verdict"] == verdict
    assert exceeds(entry, 10.0) is fails


def test_what_is_in_one_folder_only_is_named():
    entries = compare_rows([row(1.0)], [row(1.0, algorithm="adam")])
    assert {(e["algorithm"], e["verdict"]) for e in entries} == {("gamp", "only before"), ("adam", "only after")}
    assert exceeds(next(e for e in entries if e["algorithm"] == "gamp"), 10.0)


def test_both_verdicts_stand_beside_a_change():
    own = {"theory": 1.1, "own_theory": 1.1, "own_z": -2.0, "no_theory": None, "bayes": 0.5, "ratio_to_bayes": 2.0}
    none = {"theory": 0.5, "own_theory": None, "own_z": None, "no_theory": "it has none", "bayes": 0.5}
    before = [row(1.0) | own, row(0.9, algorithm="adam") | none]
    after = [row(1.12) | own | {"own_z": 0.4, "ratio_to_bayes": 2.24}, row(0.9, algorithm="adam") | none]
    entries = {entry["algorithm"]: entry for entry in compare_rows(before, after)}
    found = entries["gamp"]
    assert (found["own_theory"], found["bayes"]) == (1.1, 0.5)
    assert (found["before_own_z"], found["after_own_z"], found["after_ratio_to_bayes"]) == (-2.0, 0.4, 2.24)
    assert found["verdict"] == "nearer to theory"
    text = " ".join(printed(comparison_tables(list(entries.values()))).split())
    assert "predicted z optimal" in text
    assert "1.1000 +0.4 0.5000" in text
    assert "adam: no prediction: it has none" in text
    assert missing_values([*after, row(1.0, algorithm="sgd") | none]) == ["adam, sgd: no prediction: it has none"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Results of the same cells, gamp at a good and at a bad tolerance."""
    root = tmp_path_factory.mktemp("compare")
    suite = write_suite(root, SUITE)
    for name, tolerance in (("good", 1e-6), ("bad", 0.9)):
        more = ("--workers", "1", "--no-figure", "--set", f"run.tolerance={tolerance}")
        assert ends_with("run", suite, "--results", root / name, *more) in (0, 1)
    return root, suite


def test_two_folders_are_compared_worst_first(folders, capsys):
    root, suite = folders
    one, two = root / "good" / suite.stem, root / "bad" / suite.stem
    code, out, _ = call(capsys, "compare", one, one, "--fail-over", "1", "--json")
    assert code == 0
    same = json.loads(out)
    assert {e["verdict"] for e in same["rows"]} == {"unchanged"}
    assert same["failing"] == 0
    changed = json.loads(call(capsys, "compare", one, two, "--json")[1])["rows"]
    assert any(e["algorithm"] == "gamp" and e["change_percent"] for e in changed)
    code, text, _ = call(capsys, "compare", one, two)
    assert code == 0
    assert "worst first" in text
    assert max(map(len, text.splitlines())) <= 80


def test_z_of_few_runs_is_marked():
    own = {"own_theory": 1.1, "own_z": -2.0, "no_theory": None, "bayes": 0.5}
    few, many = ({**row(1.0), **own, "alpha": alpha, "n": n} for alpha, n in ((0.1, 3), (0.2, 4)))
    text = printed(comparison_tables(compare_rows([few, many], [few, many])))
    assert "-2.0?" in next(line for line in text.splitlines() if " 0.1 " in line)
    assert "-2.0 " in next(line for line in text.splitlines() if " 0.2 " in line)


def test_sizes_and_backends_are_told_apart():
    before = [row(1.0), {**row(1.0), "dimension": 20}, {**row(1.0), "backend": "torch"}]
    text = printed(comparison_tables(compare_rows(before, before)))
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("gamp")] == [
        ["gamp@numpy", "0.1", "10"],
        ["gamp@numpy", "0.1", "20"],
        ["gamp@torch", "0.1", "10"],
    ]
