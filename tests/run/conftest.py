"""All that ships and the faulty algorithms of the tests, as this process and its workers know them."""

import pytest

from smimbench.registry.registry import Registry, set_registry
from tests.helpers import ROOT

PLUGIN = str(ROOT / "tests" / "faulty_algorithms.py")


@pytest.fixture(scope="module")
def registry():
    found = Registry([PLUGIN])
    assert not [plugin for plugin in found.plugins if plugin.failed]
    set_registry(found)
    yield found
    set_registry(None)
