"""Help texts and refusals as the user reads them. ``pytest tests/cli/test_cli_help.py --snapshot-update`` writes them again."""

import json
import re

import pytest

from smimbench.cli import cli
from tests.helpers import ROOT, silent


@pytest.fixture(autouse=True)
def _width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def test_the_first_page(capsys, snapshot):
    out = silent(capsys, "--help")
    assert out == snapshot


@pytest.mark.parametrize("name", list(cli.commands))
def test_help(capsys, snapshot, name):
    out = silent(capsys, name, "--help")
    assert out == snapshot


def test_every_column_of_the_tables_is_explained(capsys):
    out = silent(capsys, "help", "columns", "--json")
    document = json.loads(out)
    known = {
        head
        for columns in document.values()
        for name in columns
        for head in name.split(", ")
    }
    assert all(text for columns in document.values() for text in columns.values())
    heads = set()
    for path in (ROOT / "smimbench" / "report").glob("*.py"):
        heads |= set(
            re.findall(r'Column\(\s*"([^"{]+)",', path.read_text(encoding="utf-8"))
        )
    own = {
        "column",
        "meaning",
        "name ",
        "what it is",
        "for",
        "title",
        "takes",
        "quantity",
    }
    assert {name for head in heads for name in head.split(", ")} - own - known == set()
    out = silent(capsys, "help", "columns")
    assert set(document) <= set(out.splitlines())
