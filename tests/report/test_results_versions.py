"""Results of another version of an item are shown as such and counted nowhere."""

import json

import numpy as np
import pytest

from smimbench.api import load
from tests.helpers import CHANNEL, SUITE, call, flat, output, refusal, write_suite

TEXT = SUITE.replace('name = "linear", noise = 0.2', 'name = "twice"').replace(
    "[0.5, 1.0]", "[1.0]"
)
VERSION = "    version: ClassVar[int] = 1\n"


@pytest.fixture
def arguments(tmp_path):
    """A suite with a channel of one's own, run with the channel's first version."""
    (tmp_path / "mine.py").write_text(CHANNEL)
    suite = write_suite(tmp_path, TEXT)
    return (
        suite,
        "--plugins",
        tmp_path / "mine.py",
        "--results",
        tmp_path / "r",
        "--only",
        "algorithm=adam",
    )


def change(tmp_path, old, new):
    file = tmp_path / "mine.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def errors(document, key):
    return [row for row in document[key] if row["metric"] == "mse"]


@pytest.mark.slow
def test_results_of_an_older_version_are_set_apart(tmp_path, capsys, arguments):
    run = ("run", *arguments, "--workers", "1", "--no-figure", "--json")
    out = output(capsys, *run)
    (first,) = errors(json.loads(out), "rows")
    assert json.loads(out)["other_versions"] == []

    # A new version with a parameter more, and other labels: nothing of the old one may enter its rows.
    change(tmp_path, VERSION, VERSION.replace("1", "2"))
    change(
        tmp_path, "gain: float = 2.0\n", "gain: float = 2.0\n    offset: float = 0.0\n"
    )
    change(tmp_path, "return self.gain * z", "return self.gain * z + 1.0")
    change(tmp_path, "Posterior(y / self.gain", "Posterior((y - 1.0) / self.gain")
    err = refusal(capsys, "show", *arguments)
    assert "no results of small" in err
    assert (
        "channel 'twice': 2 of the stored cells were computed by version 1 (now 2) and are not counted"
        in err
    )
    assert "'smimbench run' runs them again" in err

    out = output(capsys, *run)
    (new,) = errors(json.loads(out), "rows")
    assert new["n"] == 2
    assert not np.isclose(new["mean"], first["mean"])
    other = {"item": "channel 'twice'", "then": 1, "now": 2, "cells": 2}
    assert json.loads(out)["other_versions"] == [other]
    _, out, err = call(capsys, "show", *arguments)
    assert "2 of the stored cells were computed by version 1 (now 2)" in flat(out)
    assert "run' runs them again" not in flat(out)
    # They can be told apart where they are read.
    loaded = load(arguments[-3]).values
    values = loaded if isinstance(loaded, list) else loaded.to_dict("records")
    means = {
        version: np.mean(
            [
                one["value"]
                for one in values
                if one["metric"] == "mse" and f"twice {version}," in one["versions"]
            ]
        )
        for version in (1, 2)
    }
    assert means == pytest.approx({1: first["mean"], 2: new["mean"]})
