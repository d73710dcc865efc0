"""Changed code of somebody's item under an unchanged version is said, and its results are not mixed."""

import contextlib
import json
import sys

import pytest

from smimbench.registry.registry import Registry
from smimbench.registry.source import source_of
from tests.helpers import CHANNEL, SUITE, call, importable, install_package, write_suite
from tests.records import records_in

HONEST = CHANNEL.replace("0 * V", "1e-12 * V")
TEXT = SUITE.replace('name = "linear", noise = 0.2', 'name = "twice"').replace(
    "[0.5, 1.0]", "[1.0]"
)
SAID = "channel 'twice' has other code under the same version 1"


@pytest.fixture
def arguments(tmp_path):
    """A suite with a channel of one's own that has been run, and whose theory is kept."""
    mine = tmp_path / "mine.py"
    mine.write_text(HONEST)
    suite = write_suite(tmp_path, TEXT)
    return mine, (
        suite,
        "--plugins",
        mine,
        "--results",
        tmp_path / "r",
        "--only",
        "algorithm=adam",
        "--json",
    )


def cells(folder):
    return [path.name for path in records_in(folder / "r" / "small")]


@pytest.mark.slow
def test_changed_code_is_said_and_not_mixed(tmp_path, capsys, arguments):
    mine, given = arguments
    run = ("run", *given, "--workers", "1", "--no-figure")
    code, first, err = call(capsys, *run)
    assert (code, SAID in err) == (0, False)
    before, theory = cells(tmp_path), sorted((tmp_path / "r" / "theory").glob("*.json"))
    # A comment and a blank line change nothing.
    mine.write_text(
        "# a remark\n" + HONEST.replace("    name:", "\n    name:  # the name\n", 0)
    )
    code, out, err = call(capsys, "show", *given)
    assert (code, SAID in err, json.loads(out)["rows"]) == (
        0,
        False,
        json.loads(first)["rows"],
    )
    mine.write_text(
        HONEST.replace("self.gain * z", "(self.gain + 1e-3) * z").replace(
            "y / self.gain", "y / (self.gain + 1e-3)"
        )
    )
    code, out, err = call(capsys, "show", *given)
    assert (code, out) == (2, "")
    assert err.count(SAID) == 1
    assert "2 cells of this suite" in err
    assert (
        "2 of the stored cells were computed by other code and are not counted" in err
    )
    code, out, err = call(capsys, *run)
    assert code == 0
    assert json.loads(out)["other_versions"] == [
        {"item": "channel 'twice'", "then": 1, "now": 1, "cells": 2}
    ]
    assert (
        sum("answers of theory were stored" in line for line in err.splitlines()) == 1
    )
    assert len(set(cells(tmp_path)) - set(before)) == 2
    assert set(before) < set(cells(tmp_path))
    assert set(theory) < set((tmp_path / "r" / "theory").glob("*.json"))
    # The same instances, whatever the code.
    assert [
        r["seeds"] if "seeds" in r else r["n"] for r in json.loads(out)["rows"]
    ] == [r["seeds"] if "seeds" in r else r["n"] for r in json.loads(first)["rows"]]


def test_all_of_its_package_belongs_to_the_code_of_an_item(tmp_path, monkeypatch):
    texts = {
        "__init__": "",
        "channel": "from mine.helper import one\n" + HONEST,
        "helper": "from . import deeper\none = 1\n",
    }
    texts |= {"deeper": "two = 2\n", "other": "three = 3\n"}
    (tmp_path / "mine").mkdir()

    def code(**changed):
        for name, text in (texts | changed).items():
            (tmp_path / "mine" / f"{name}.py").write_text(text)
        with importable(tmp_path, monkeypatch):
            __import__("mine.channel")
            return source_of(sys.modules["mine.channel"].Twice)

    first = code()
    assert first == code(helper="from . import deeper\n\none = 1  # the first\n")
    changed = [
        code(deeper="two = 3\n"),
        code(helper="one = 2\n"),
        code(channel=HONEST),
        code(other="three = 4\n"),
    ]
    assert len({first, *changed}) == 5
    (tmp_path / "mine" / "tables").mkdir()
    (tmp_path / "mine" / "tables" / "numbers.py").write_text("four = 4\n")
    (tmp_path / "mine" / "notes.txt").write_text("not code\n")
    assert code() not in {first, *changed}
    (tmp_path / "mine" / "tables" / "numbers.py").unlink()
    assert code() == first


def test_neighbors_that_a_drop_in_file_imports_belong_to_its_code(tmp_path):
    texts = {
        "mine": "import helper, numpy\n" + HONEST,
        "helper": "from toolbox.deep import x\n",
        "other": "",
        "a": HONEST,
    }
    (tmp_path / "toolbox").mkdir()

    def code(deep="x = 1\n", **changed):
        (tmp_path / "toolbox" / "deep.py").write_text(deep)
        (tmp_path / "toolbox" / "__init__.py").write_text("")
        for name, text in (texts | changed).items():
            (tmp_path / f"{name}.py").write_text(text)
        with undone_imports(("helper", "toolbox", "toolbox.deep")):
            (entry,) = Registry([str(tmp_path / "mine.py")]).entries_named(
                "twice", "channel"
            )
        return entry.source

    first = code()
    assert first == code(
        other="y = 2\n", helper="\nfrom toolbox.deep import x  # deep\n"
    )
    assert (
        len(
            {
                first,
                code(deep="x = 2\n"),
                code(helper="from toolbox.deep import x as z\n"),
                code(mine=HONEST),
            }
        )
        == 4
    )


@contextlib.contextmanager
def undone_imports(names):
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in names:
        sys.modules.pop(name, None)


def test_what_ships_has_no_hash_and_neighbors_of_a_single_module_do_not_count(
    tmp_path, monkeypatch
):
    site = tmp_path / "site-packages"
    with importable(site, monkeypatch):
        install_package(site, "mine", {"mine": "import neighbor\n" + HONEST})
        (site / "neighbor.py").write_text("x = 1\n")
        entries = Registry().entries("channel")
        (first,) = [entry.source for entry in entries if entry.distribution == "mine"]
    with importable(site, monkeypatch):
        (site / "neighbor.py").write_text("x = 2\n")
        (again,) = [
            entry.source
            for entry in Registry().entries("channel")
            if entry.distribution == "mine"
        ]
    assert first == again is not None
    assert {entry.source for entry in entries if entry.distribution == "smimbench"} == {
        None
    }
