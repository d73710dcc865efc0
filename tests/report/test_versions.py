"""Results of another version of an item are shown as such and counted nowhere."""

from __future__ import annotations

import json

import numpy as np
import pytest

from smimbench.run.store import Store
from tests.helpers import CHANNEL, SUITE, call, write_suite

TEXT = SUITE.replace('name = "linear", noise = 0.2', 'name = "twice"').replace("[0.5, 1.0]", "[1.0]")
VERSION = "    version: ClassVar[int] = 1\n"


@pytest.fixture
def arguments(tmp_path):
    """A suite with a channel of one's own, run with the channel's first version."""
    (tmp_path / "mine.py").write_text(CHANNEL)
    suite = write_suite(tmp_path, TEXT)
    return (suite, "--plugins", tmp_path / "mine.py", "--results", tmp_path / "r", "--only", "algorithm=adam")


def change(tmp_path, old, new):
    file = tmp_path / "mine.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def errors(document, key):
    return [row for row in document[key] if row["metric"] == "mse"]


@pytest.mark.slow
def test_results_of_an_older_version_are_set_apart(tmp_path, capsys, arguments):
    run = ("run", *arguments, "--workers", "1", "--no-figure", "--json")
    code, out, err = call(capsys, *run)
    assert code == 0, err
    (first,) = errors(json.loads(out), "rows")
    assert json.loads(out)["other_versions"] == []

    # A new version with a parameter more, and other labels: nothing of the old one may enter its rows.
    change(tmp_path, VERSION, VERSION.replace("1", "2"))
    change(tmp_path, "gain: float = 2.0\n", "gain: float = 2.0\n    offset: float = 0.0\n")
    change(tmp_path, "return self.gain * z", "return self.gain * z + 1.0")
    change(tmp_path, "Posterior(y / self.gain", "Posterior((y - 1.0) / self.gain")
    code, out, err = call(capsys, "show", *arguments, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["rows"] == []
    assert found["missing"] == 2
    (old,) = errors(found, "other_versions")
    assert old["versions"] == {"channel twice": [1, 2]}
    assert (old["n"], old["mean"], old["sem"]) == (2, first["mean"], first["sem"])
    code, out, _ = call(capsys, "show", *arguments)
    assert "MSE of other versions" in out
    assert "channel twice version 1, now 2" in " ".join(out.split())

    code, out, err = call(capsys, *run)
    assert code == 0, err
    (new,) = errors(json.loads(out), "rows")
    assert new["n"] == 2
    assert not np.isclose(new["mean"], first["mean"])
    assert errors(json.loads(out), "other_versions") == [old]


@pytest.mark.parametrize("missing", [1, 2])
def test_a_value_that_was_not_to_be_had_counts_nowhere(tmp_path, capsys, arguments, monkeypatch, missing):
    """As the Nishimori ratio of a component of which nothing was learned."""
    assert call(capsys, "run", *arguments, "--workers", "1", "--no-figure")[0] == 0
    change(tmp_path, VERSION, VERSION.replace("1", "2"))
    load = Store.load

    def with_gaps(self, **how):
        records = load(self, **how)
        for record in list(records.values())[:missing]:
            record["metrics"]["mse"] = [None]
        return records

    monkeypatch.setattr(Store, "load", with_gaps)
    (old,) = errors(json.loads(call(capsys, "show", *arguments, "--json")[1]), "other_versions")
    assert old["n"] == 2 - missing
    assert (old["mean"] is None) == (missing == 2)
    code, out, _ = call(capsys, "show", *arguments)
    assert code == 1
    assert "MSE of other versions" in out


def test_another_parameter_is_not_another_version(tmp_path, capsys, arguments):
    assert call(capsys, "run", *arguments, "--workers", "1", "--no-figure")[0] == 0
    code, _, err = call(capsys, "show", *arguments, "--set", "problem.channel.gain=3.0")
    assert code == 2
    assert "no results of small" in err
    change(tmp_path, VERSION, VERSION.replace("1", "2"))
    code, _, err = call(capsys, "show", *arguments, "--set", "problem.channel.gain=3.0")
    assert code == 2
    assert "no results of small" in err
