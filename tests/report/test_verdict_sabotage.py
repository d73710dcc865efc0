"""Mistakes that the mean error at one size hardly shows, and errors that no algorithm can make, in the verdict of real runs."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from tests.helpers import LINE, ends_with, suite_text

PLUGIN = Path(__file__).parents[1] / "sabotaged_algorithms.py"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """What ``show --json`` prints of intact and sabotaged algorithms at three sizes."""
    folder = tmp_path_factory.mktemp("sabotage")
    file = folder / "sabotage.toml"
    algorithms = [f'name = "{name}"' for name in ("gamp", "onsager", "shrunk", "peek")]
    text = suite_text(
        LINE,
        [0.3, 0.6, 1.2],
        150,
        16,
        *algorithms,
        'name = "ridge"\nregularisation = 1.0',
    )
    file.write_text(
        '[suite]\ntitle = "sabotage"\n' + text.replace("[150]", "[150, 300, 600]")
    )
    where = (file, "--results", folder, "--plugins", PLUGIN)
    ends_with("run", *where, "--workers", "1", "--no-figure", "--quiet")
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        assert ends_with("show", *where, "--json") == 1
    return json.loads(stream.getvalue())


@pytest.mark.parametrize(("name", "said", "below"), [
    ("gamp", "yes", False), ("ridge", "yes", False), ("onsager", "no", False), ("shrunk", "no", False), ("peek", None, True),
])  # fmt: skip
def test_verdict(document, name, said, below):
    (verdict,) = document["verdicts"]
    one = next(one for one in verdict["contenders"] if one["algorithm"] == name)
    assert (one["prediction"], one["below_optimum"]) == (said, below)
    assert (verdict["contenders"][-1] is one) is below
    if said == "yes":
        assert one["would_have_seen"] < 0.1
        assert abs(one["deviation_z"]) < 3.5
    if said == "no":
        assert abs(one["deviation_z"]) > 3.5
        assert one["deviation_of"] in ("mse", "nishimori", "calibration", "overlap")


def test_what_is_impossible_costs_the_exit_code(tmp_path):
    file = tmp_path / "peek.toml"
    file.write_text(
        '[suite]\ntitle = "peek"\n'
        + suite_text(LINE, [0.6], 1000, 4, 'name = "gamp"', 'name = "peek"')
    )
    where = (file, "--results", tmp_path, "--plugins", PLUGIN, "--no-figure", "--quiet")
    assert ends_with("run", *where) == 1
    assert ends_with("run", *where, "--only", "algorithm=gamp") == 0
