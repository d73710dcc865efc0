"""What archives and other packagers are told is what pyproject.toml says."""

import json
import re
import tomllib

import pytest

from tests.helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower()


def test_one_version_everywhere():
    version = PROJECT["version"]
    assert json.loads((ROOT / "codemeta.json").read_text())["version"] == version
    assert json.loads((ROOT / ".zenodo.json").read_text())["version"] == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'\n  version: "{version}"\n' in (ROOT / "conda" / "recipe.yaml").read_text()


def test_one_list_of_requirements_everywhere():
    wanted = set(PROJECT["dependencies"])
    assert (
        set(json.loads((ROOT / "codemeta.json").read_text())["softwareRequirements"])
        == wanted
    )
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    run, _, optional = recipe.partition("  run:\n")[2].partition("  run_constraints:\n")
    written = {
        line.strip()[2:].replace(" ", "")
        for line in run.splitlines()
        if line.strip().startswith("- ")
    }
    assert written == wanted | {f"python{PROJECT['requires-python']}"}
    extras = {
        one
        for name in ("plot", "report", "dask")
        for one in PROJECT["optional-dependencies"][name]
    }
    for one in extras:
        package, version = re.match(r"([\w-]+)>=(.+)", one).groups()
        assert re.search(rf"- {package}(-base)? >={re.escape(version)}\n", optional), (
            one
        )


@pytest.mark.parametrize(
    "extra", [None, "plot", "report", "dask", "cuda12", "cuda13", "torch"]
)
def test_every_licence_is_listed(extra):
    page = (ROOT / "docs" / "release.md").read_text()
    for one in (
        PROJECT["dependencies"]
        if extra is None
        else PROJECT["optional-dependencies"][extra]
    ):
        (row,) = re.findall(
            rf"^\| {re.escape(name_of(one))} \|(.*?)\|", page, re.MULTILINE
        )
        assert row.split() == [] if extra is None else extra in row.strip().split(", ")


def test_the_command_is_called_as_the_package():
    """``uvx smimbench`` looks for a command of the package's own name."""
    assert PROJECT["scripts"] == {"smimbench": "smimbench.cli:main"}
