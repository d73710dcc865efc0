"""Options of all commands that draw: width, title, and the file."""

import json
import shutil

import pytest

from smimbench.report.style import width_in_inches
from tests.helpers import LINE, call, output, refusal

THEORY = ["theory", "--model", "attention-indexed", "--channel", "linear", "--prior", "wishart",
          "--rho", "0.3", "--noise", "0.1", "--alpha", "0.1,0.2"]  # fmt: skip


def pdf_width(path):
    """Width of the only page of a PDF, in inches."""
    (box,) = [
        line for line in path.read_bytes().splitlines() if line.startswith(b"/MediaBox")
    ]
    return float(box.split()[4]) / 72


@pytest.mark.parametrize(
    ("text", "inches"),
    [("3.3in", 3.3), ("3.3 in", 3.3), ("84mm", 84 / 25.4), ("8.4cm", 8.4 / 2.54), ("240pt", 240 / 72.27),
     ("column", 3.4), ("page", 7.0), ("PAGE", 7.0)],
)  # fmt: skip
def test_a_width_is_any_length(text, inches):
    assert width_in_inches(text) == pytest.approx(inches)


@pytest.mark.parametrize(
    "text", ["wide", "3.3", "3px", "0in", "-3in", "1in", "9e9mm", "50in", ""]
)
def test_no_other_width_is_taken(text):
    with pytest.raises(
        ValueError, match=r"column, page or a length from .* such as 3\.3in"
    ):
        width_in_inches(text)


@pytest.mark.slow
def test_theory_goes_to_a_file_of_this_width_without_title(tmp_path, capsys):
    file = tmp_path / "new" / "curve.pdf"
    options = [
        "--results",
        tmp_path / "r",
        "--width",
        "3.3in",
        "--no-title",
        "--output",
        file,
    ]
    out = output(capsys, *THEORY, *options)
    assert {path.name for path in file.parent.iterdir()} == {
        "curve.pdf", "curve.csv", "curve-theory-overlap.pdf", "curve-theory-overlap.csv"
    }  # fmt: skip
    assert f"{file} (and .csv)" in out
    assert pdf_width(file) == pytest.approx(3.3)
    assert not list((tmp_path / "r").glob("*/figures"))


@pytest.mark.slow
def test_runs_go_to_a_file(ran, tmp_path, capsys):
    results = tmp_path / "results"
    shutil.copytree(ran[0] / "results", results)
    suite, file = ran[0] / "small.toml", tmp_path / "error.svg"
    words = [suite, "--results", results, "--width", "84mm"]
    output(capsys, "run", *words, "--output", file)
    assert {path.name for path in tmp_path.iterdir()} == {
        "results",
        "error.svg",
        "error.csv",
    }
    assert 'width="238.110' in file.read_text()  # 84 mm in points of 1/72 inch
    output(capsys, "show", *words, "--figures", "--output", tmp_path / "all.PDF")
    drawn = {path.name for path in tmp_path.glob("all*.PDF")}
    assert drawn == {
        f"all{name}.PDF"
        for name in ("", "-overlap", "-seconds", "-profiles", "-learning-mse")
    }
    assert pdf_width(tmp_path / "all.PDF") == pytest.approx(84 / 25.4)


def test_a_figure_of_a_paper_goes_to_a_file(tmp_path, capsys):
    suite = tmp_path / "line.toml"
    suite.write_text(
        f"[problem]\n{LINE}\n[suite]\ntitle = 'A line'\n[grid]\nalpha = [0.2, 0.6, 1.0]\ndimension = [40]\nseeds = 1\n"
        "[figure]\nxlim = [0.1, 2.5]\nylim = [0.0, 1.0]\nsource = 'nowhere'\n"
        "[[figure.curves]]\nlabel = 'line'\ntable = 'line.csv'\ncolumns = ['alpha', 'error']\nband = 0.1\n"
    )
    file = tmp_path / "figure.pdf"
    code, out, _ = call(
        capsys,
        "reproduce",
        suite,
        "--results",
        tmp_path / "r",
        "--width",
        "3.3in",
        "--output",
        file,
        "--json",
    )
    assert code == 0
    assert json.loads(out)["files"] == [str(file), str(file.with_suffix(".csv"))]
    assert pdf_width(file) == pytest.approx(3.3)


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["show", "--width", "3"], "--width"),
     (["show", "--output", "figure.jpg"], "must end in .png, .svg or .pdf, got 'figure.jpg'"),
     (["show", "--output", "figure"], "must end in"),
     (["show", "--output", "figure.pdf", "--csv"], "draw no figure"),
     (["run", "--output", "figure.pdf", "--no-figure"], "--no-figure")],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_before_anything_runs(
    words, reason, tmp_path, capsys
):
    assert reason in refusal(capsys, *words, "quickstart", "--results", tmp_path / "r")
    assert not (tmp_path / "r").exists()
