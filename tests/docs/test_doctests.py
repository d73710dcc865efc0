"""The examples in docstrings run."""

import doctest
import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest

PACKAGES = (
    "smimbench", "smimbench_attention",
)  # fmt: skip


def modules_with_examples():
    """Every module whose source has a doctest."""
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        names = [
            name,
            *(m.name for m in pkgutil.walk_packages(package.__path__, f"{name}.")),
        ]
        for module in names:
            spec = importlib.util.find_spec(module)
            if (
                spec
                and spec.origin
                and ">>>" in Path(spec.origin).read_text(encoding="utf-8")
            ):
                found.append(module)
    return found


MODULES = modules_with_examples()


def test_there_are_examples():
    assert len(MODULES) >= 5


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    result = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS
    )
    assert result.failed == 0
