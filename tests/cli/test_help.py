"""Help texts and refusals as the user reads them. ``pytest tests/cli/test_help.py --snapshot-update`` writes them anew."""

from __future__ import annotations

import pytest

from smimbench.cli.main import cli
from tests.helpers import call


@pytest.fixture(autouse=True)
def _width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def test_the_first_page(capsys, snapshot):
    code, out, err = call(capsys, "--help")
    assert (code, err) == (0, "")
    assert out == snapshot


@pytest.mark.parametrize("name", list(cli.commands))
def test_help(capsys, snapshot, name):
    code, out, err = call(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert out == snapshot
