"""Spectra of estimates: bars of the runs, the line of theory, and no figure where nobody tells a spectrum."""

import csv

import numpy as np
import pytest
from matplotlib.figure import Figure

import smimbench
from smimbench.report.charts import save
from smimbench.report.results import Results
from smimbench.report.run_figures import spectrum_chart
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.reader import load_suite
from tests.helpers import SUITE, suite_text, write_suite

pytestmark = pytest.mark.usefixtures("svg_alone")

PROBLEM = """label   = "pairs"
model   = { name = "attention-indexed", tokens = 2 }
channel = { name = "linear", noise = 0.3 }
prior   = { name = "wishart", rho = 0.5 }"""


def draw(tmp_path, text):
    path = write_suite(tmp_path, text)
    smimbench.run(path, results=tmp_path / "results")
    suite, store = load_suite(path), Store(tmp_path / "results" / "small")
    return save(
        spectrum_chart(Results(suite, store, answers=TheorySolver())),
        tmp_path / "figures",
    )


@pytest.mark.slow
def test_bars_and_line_say_the_same(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: figures.append(self))
    penalised = (
        'name = "nuclear"\nregularisation = 1.0',
        'name = "nuclear"\nlabel = "validated"',
    )
    paths = draw(
        tmp_path,
        '[suite]\ntitle = "Spectra"\n' + suite_text(PROBLEM, [0.3], 40, 3, *penalised),
    )
    assert [path.name for path in paths] == [
        f"spectrum.{kind}" for kind in ("png", "svg", "pdf", "csv")
    ]
    with paths[-1].open(encoding="utf-8", newline="") as file:
        told = [one for one in csv.DictReader(file) if one["algorithm"] == "nuclear"]
    for what in ("runs", "predicted"):  # the bars and what is zero are all eigenvalues
        own = [one for one in told if one["what"] == what]
        bars = sum(
            (float(one["to"]) - float(one["from"])) * float(one["density"])
            for one in own
        )
        assert bars + float(own[0]["zero"]) == pytest.approx(1.0, abs=2e-3)
    known, unknown = [axis for axis in figures[0].axes if axis.get_visible()]
    line = known.lines[0]
    width = np.diff(line.get_xdata())[0]
    bar = known.patches[0].get_width()
    assert bar > width
    share = sum(bar.get_height() * bar.get_width() for bar in known.patches)
    expected = line.get_ydata().sum() * width
    assert abs(share - expected) < 0.05
    centre = (
        sum(
            bar.get_height() * bar.get_width() * (bar.get_x() + bar.get_width() / 2)
            for bar in known.patches
        )
        / share
    )
    assert (
        abs(centre - (line.get_xdata() * line.get_ydata()).sum() * width / expected)
        < 0.15
    )
    # A penalty chosen by validation has no theory: bars only.
    assert unknown.patches
    assert not unknown.lines


def test_no_figure_without_spectra(tmp_path):
    assert draw(tmp_path, SUITE) == []
