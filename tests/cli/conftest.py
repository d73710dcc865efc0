"""A suite that was run once, and the registry of plugins as it was before every test."""

import shutil

import pytest

from smimbench.registry.registry import set_registry
from tests.helpers import call_outside, ends_with, write_suite


@pytest.fixture(autouse=True)
def _fresh_registry():
    yield
    set_registry(None)


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """A suite that was run once from a shell: folder, finished process."""
    folder = tmp_path_factory.mktemp("ran")
    done = call_outside(
        "run", write_suite(folder), "--results", folder / "results", "--workers", "2"
    )
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture(scope="session")
def twice(ran, tmp_path_factory):
    """The same, run with another seed as well: the folder."""
    folder = tmp_path_factory.mktemp("twice") / "ran"
    shutil.copytree(ran[0], folder)
    suite = folder / "small.toml"
    assert (
        ends_with(
            "run",
            suite,
            "--results",
            folder / "results",
            "--workers",
            "1",
            "--set",
            "grid.seed=7",
            "--no-figure",
        )
        == 0
    )
    return folder
