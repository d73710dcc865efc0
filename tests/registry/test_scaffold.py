"""``smimbench new``: packages that work as they are written, and refusals that say what would be right."""

import ast
import importlib.util
import json
import sys
import tomllib

import pytest

from smimbench.registry.registry import Registry, set_registry
from smimbench.suite.reader import load_suite
from smimbench.testing import check
from tests.helpers import call, output, refusal, silent

KINDS = ("inputs", "channel", "prior", "algorithm")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in; the registry of this process is made again afterwards."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    set_registry(None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_complete_package(kind, folder, capsys):
    out = silent(capsys, "new", kind, "my_own", "--json")
    document = json.loads(out)
    package = folder / "smimbench-my-own"
    assert document["folder"] == "smimbench-my-own"
    written = sorted(
        p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()
    )
    assert written == document["files"]
    assert len(document["next"]) == 4
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert project["project"]["name"] == "smimbench-my-own"
    assert project["project"]["entry-points"]["smimbench"] == {
        "my-own": "smimbench_my_own"
    }
    assert project["build-system"]["build-backend"] == "hatchling.build"
    readme = (package / "README.md").read_text()
    for line in (f"smimbench new {kind} my_own", *document["next"]):
        assert line in readme
    for path in written:
        text = (package / path).read_text()
        assert "$" not in text, path
        if path.endswith(".py"):
            assert ast.get_docstring(ast.parse(text)), path
    assert sorted(p.name for p in folder.iterdir()) == ["smimbench-my-own"]


@pytest.mark.slow
def test_inputs_pass_their_own_checks(folder, capsys, monkeypatch):
    """Those of the other kinds are run by the CI, on the installed package, and so are their suites."""
    call(capsys, "new", "inputs", "fresh")
    monkeypatch.syspath_prepend(folder / "smimbench-fresh")
    registry = Registry([str(folder / "smimbench-fresh" / "smimbench_fresh")])
    set_registry(registry)
    assert not [p.problems for p in registry.plugins if p.problems]
    (entry,) = [e for e in registry.entries("inputs") if e.name == "fresh"]
    outcomes = check(entry.item)
    assert [o for o in outcomes if o.status == "failed"] == []
    assert sum(o.status == "passed" for o in outcomes) >= 4
    suite = load_suite(str(folder / "smimbench-fresh" / "fresh.toml"))
    assert "gamp" in [algorithm.label for algorithm in suite.algorithms]
    assert suite.cells()


def test_its_own_tests(folder, capsys, monkeypatch):
    """What its author is told to write himself: everything but the contract, which is checked above."""
    call(capsys, "new", "channel", "fresh")
    package = folder / "smimbench-fresh"
    monkeypatch.syspath_prepend(package)
    spec = importlib.util.spec_from_file_location(
        "fresh_tests", package / "tests" / "test_fresh.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_likelihood_is_a_density_of_the_label()
    module.test_labels_have_the_mean_and_the_variance_they_should()
    for name in ("fresh_tests", "smimbench_fresh"):
        sys.modules.pop(name, None)


def test_from_a_new_algorithm_to_a_row(folder, capsys):
    """The suite that is written, at a smaller size, with the package handed over as a folder."""
    call(capsys, "new", "algorithm", "fresh")
    sizes = ("grid.dimension=60", "grid.alpha=1.0", "grid.seeds=2")
    options = [word for size in sizes for word in ("--set", size)]
    plugin = (
        "--plugins",
        "smimbench-fresh/smimbench_fresh",
        "--workers",
        "1",
        "--no-figure",
        "--json",
    )
    out = output(capsys, "run", "smimbench-fresh/fresh.toml", *plugin, *options)
    rows = [r for r in json.loads(out)["rows"] if r["metric"] == "mse"]
    assert [r["n"] for r in rows] == [2, 2]
    found = {r["algorithm"]: r["mean"] for r in rows}
    assert found["fresh"] == pytest.approx(
        found["gamp"], rel=0.02
    )  # both are Bayes-optimal here
    assert rows[0]["theory"] == pytest.approx(0.27, abs=0.01)


def test_a_folder_that_exists_is_left_alone(folder, capsys):
    (folder / "smimbench-mine").mkdir()
    err = refusal(capsys, "new", "channel", "mine")
    assert "smimbench-mine already exists" in err
    assert list((folder / "smimbench-mine").iterdir()) == []
    out = output(capsys, "new", "channel", "mine", "--output", "else where/mine")
    assert "'./else where/mine[test]'" in out
    assert (folder / "else where" / "mine" / "pyproject.toml").is_file()
