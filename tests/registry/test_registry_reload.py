"""A plugin file that is loaded from Python: once, again where its code or a neighbor's has changed; its failure is raised."""

import re

import pytest

import smimbench
from smimbench.registry.registry import RegistryError, get_registry, set_registry
from tests.helpers import ROOT, SUITE, importable, write_suite

README = (ROOT / "README.md").read_text(encoding="utf-8")
SIGNED = re.search(r"signed.py -->\n```python\n(.*?)```", README, re.DOTALL).group(1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An importable working folder with a suite and a plugin file."""
    monkeypatch.chdir(tmp_path)
    set_registry(None)
    write_suite(tmp_path, SUITE)
    (tmp_path / "signed.py").write_text(SIGNED)
    with importable(tmp_path, monkeypatch):
        yield tmp_path
    set_registry(None)


def load(plugin="signed.py"):
    only = ["algorithm=signed", "alpha=0.7"]
    overrides = ["grid.alpha=[0.7]", "algorithms+=signed"]
    return smimbench.load_suite("small.toml", overrides, only, plugins=[plugin])


def rate(suite):
    (spec,) = (plan.spec for plan in suite.algorithms if plan.label == "signed")
    return spec["learning_rate"]


@pytest.mark.parametrize("given", ["signed.py", "."])
def test_a_file_or_a_folder_joins_a_suite_and_is_loaded_once(folder, given):
    assert rate(load(given)) == 0.02
    plugins = list(get_registry().plugins)
    assert rate(load(given)) == 0.02
    assert get_registry().plugins == plugins


def test_a_file_of_the_environment_is_not_loaded_twice(folder, monkeypatch):
    monkeypatch.setenv("SMIMBENCH_PLUGINS", "signed.py")
    assert rate(load()) == 0.02


@pytest.mark.slow
def test_changed_code_is_loaded_again_and_its_runs_are_repeated(folder):
    records, means = [], []
    for learning_rate in ("0.02", "0.05", "0.05"):
        (folder / "signed.py").write_text(SIGNED.replace("0.02", learning_rate))
        suite = load()
        assert rate(suite) == float(learning_rate)
        rows = smimbench.run(suite, results="results", on_record=records.append)
        means.append([row["mean"] for row in rows])
    assert len(records) == 4
    assert means[0] != means[1] == means[2]


def test_a_changed_neighbor_is_imported_again(folder):
    for learning_rate in ("0.03", "0.04"):
        (folder / "rates.py").write_text(f"RATE = {learning_rate}\n")
        text = SIGNED.replace("0.02", "rates.RATE")
        (folder / "signed.py").write_text(f"import rates\n{text}")
        assert rate(load()) == float(learning_rate)


def test_a_mistake_is_raised_and_can_be_corrected(folder):
    (folder / "signed.py").write_text(SIGNED.replace("return", "retrun"))
    for _ in range(2):
        with pytest.raises(RegistryError, match=r"signed\.py\) was not loaded: .*Syn"):
            load()
    with pytest.raises(RegistryError, match="is neither a file nor a folder"):
        load("sigend.py")
    (folder / "signed.py").write_text(SIGNED)
    assert rate(load()) == 0.02
