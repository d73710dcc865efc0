"""Figures are drawn with Matplotlib's own defaults, whatever the user's files and environment say."""

import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from smimbench.report.charts import Chart, Panel, Series, save

matplotlib = pytest.importorskip("matplotlib")

DRAW = """
from pathlib import Path
from smimbench.report.charts import Chart, Panel, Series, save
series = [Series("a_b, 50% of $x$ {", {"alpha": [1.0, 2.0], "value": [0.1, 0.2]}),
          Series("_own", {"alpha": [1.0, 2.0], "value": [0.2, 0.1]})]
save(Chart("figure", "title", [Panel("panel", "$x_1", "y_$", series, xlog=True)]), Path("drawn"))
"""

USERS_FILE = """text.usetex: True
font.family: No Such Font
axes.titleweight: bold
savefig.bbox: tight
axes.facecolor: black
font.size: 30
"""


def drawn(folder):
    """The files that a process of its own draws in this folder."""
    given = os.environ | {"PATH": ""}  # without it there is no LaTeX
    done = subprocess.run(
        [sys.executable, "-c", DRAW],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {path.name: path.read_bytes() for path in (folder / "drawn").iterdir()}


@pytest.mark.slow
def test_the_users_settings_change_nothing(tmp_path):
    given, plain = tmp_path / "given", tmp_path / "plain"
    given.mkdir()
    plain.mkdir()
    # The working folder is the first place where Matplotlib looks.
    (given / "matplotlibrc").write_text(USERS_FILE)
    assert drawn(given) == drawn(plain)


def test_settings_of_a_process_that_has_matplotlib_change_nothing(tmp_path):
    chart = Chart(
        "figure",
        "",
        [
            Panel(
                "title",
                "",
                "",
                [Series("a", {"alpha": [1.0, 2.0], "value": [0.1, 0.2]})],
            )
        ],
    )
    files = []
    for changed in (
        {},
        {"text.usetex": True, "font.family": "No Such Font", "figure.autolayout": True},
    ):
        with matplotlib.rc_context(changed):
            files.append(save(chart, tmp_path, ("svg",))[0].read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "label", ["_own", "a_b", "50%", "$x$", r"\$x\$", "{", "$", "a\\b"]
)
def test_a_label_is_drawn_as_it_is_written(tmp_path, label):
    series = Series(label, {"alpha": [1.0, 2.0], "value": [0.1, 0.2]})
    upright = Series(f"threshold of {label}", {"alpha": [1.5]}, None, "vertical")
    chart = Chart("figure", label, [Panel(label, label, label, [series, upright])] * 2)
    path, *_ = save(chart, tmp_path, ("svg",))
    words = [
        "".join(text.itertext()).strip("\u200b")
        for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert (
        words.count(label) == 1 + 2 * 2 + 1
    )  # of the figure, of both axes of two panels, in the legend
    assert words.count(f"threshold of {label}") == 1


def test_a_letter_that_the_font_does_not_have_is_no_warning(recwarn, tmp_path):
    series = [
        Series(f"{'字体'[i % 2]} {i}", {"alpha": [1.0, 2.0], "value": [0.1, 0.2]})
        for i in range(4)
    ]
    save(Chart("figure", "", [Panel("", "", "", series)]), tmp_path)
    assert not recwarn.list
