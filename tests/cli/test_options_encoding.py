"""Data on standard output are UTF-8, whatever the encoding of the terminal is."""

import csv
import io
import json
import sys

import pytest

from tests.helpers import SUITE, ends_with

LABELS = ["η=α", "η=β"]


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A suite whose algorithms and problem have Greek letters, run once, and its results."""
    folder = tmp_path_factory.mktemp("greek")
    first, second = (
        f'name = "adam"\nlabel = "{label}"\nsteps = {5 + i}'
        for i, label in enumerate(LABELS)
    )
    text = SUITE.replace('name = "gamp"', first).replace(
        'name  = "adam"\nsteps = 5', second
    )
    (folder / "greek.toml").write_text(
        text.replace('"line"', '"Größe ω"'), encoding="utf-8"
    )
    asked = (folder / "greek.toml", "--results", folder / "results")
    assert ends_with("run", *asked, "--workers", "1", "--no-figure") == 0
    return asked


def printed(monkeypatch, encoding, *arguments):
    """Bytes that a command writes to a standard output of this encoding."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    monkeypatch.setattr(sys, "stdout", stream)
    assert ends_with(*arguments) == 0
    stream.flush()
    return stream.buffer.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-16"])
@pytest.mark.parametrize(
    "words",
    [
        ("show", "--csv"),
        ("show", "--markdown"),
        ("show", "--latex"),
        ("show", "--json"),
        ("theory", "--csv"),
    ],
    ids=" ".join,
)
def test_data_are_utf8_whatever_the_terminal_is(suite, monkeypatch, encoding, words):
    given = (words[0], *suite, *words[1:])
    data = printed(monkeypatch, encoding, *given)
    assert data == printed(monkeypatch, "utf-8", *given)
    text = data.decode("utf-8")
    if words[1] == "--json":
        assert {row["algorithm"] for row in json.loads(text)["rows"]} == set(LABELS)
    elif words[0] == "theory":
        assert {row["problem"] for row in csv.DictReader(io.StringIO(text))} == {
            "Größe ω"
        }
    else:
        assert all(label in text for label in LABELS)
