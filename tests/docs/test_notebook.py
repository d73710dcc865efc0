"""The notebook runs cell by cell, its text says what comes out, and what is stored is short and complete."""

import json
import re
import subprocess
import sys

import pytest

from tests.helpers import ROOT, environment

FILE = ROOT / "docs" / "own-optimizer.ipynb"
CELLS = json.loads(FILE.read_text(encoding="utf-8"))["cells"]
TEXT = "\n".join(
    "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown"
)
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
OUTPUTS = [output for cell in CODE for output in cell["outputs"]]

TABLES = """
import json

import matplotlib.pyplot
from smimbench.report.row import row_of
from smimbench.report.verdict import verdicts

def contenders(loaded):
    (verdict,) = verdicts([row_of(row) for row in smimbench.show(loaded)])
    return {
        one.algorithm: (one.compared and one.compared.ratio, one.ratio_to_limit, one.settings, one.agreement.prediction)
        for one in verdict.contenders
    }

def curves(axes):
    return {
        line.get_label(): ([*map(float, line.get_xdata())], [*map(float, line.get_ydata())])
        for line in axes.get_lines()
    }

numbers = matplotlib.pyplot.get_fignums()
figures = [curves(figure.axes[0]) for figure in map(matplotlib.pyplot.figure, numbers)]
print(eval(NEXT))
print(json.dumps([contenders(suite), contenders(changed), figures]))
"""


def script():
    """All code cells as a plain script, with what %%writefile does."""
    parts = ["import matplotlib; matplotlib.use('agg')", "from pathlib import Path"]
    for cell in CODE:
        source = "".join(cell["source"])
        if match := re.match(r"%%writefile (\S+)\n", source):
            text = source[match.end() :] + "\n"
            source = f"Path({match[1]!r}).write_text({text!r}, encoding='utf-8')"
        parts.append(source)
    (suggested,) = re.findall(r"`(load_suite\(.*?\))`", TEXT)
    return "\n".join([*parts, f"NEXT = 'smimbench.' + {suggested!r}", TABLES])


def ranges(words):
    """Ends of all ranges that the text states in these words."""
    found = re.findall(rf"(\d\.\d+) to (\d\.\d+) {words}", " ".join(TEXT.split()))
    return [(float(low), float(high)) for low, high in found]


@pytest.mark.slow
def test_the_cells_run_and_the_text_says_what_comes_out(tmp_path):
    command = [sys.executable, "-W", "error::UserWarning:__main__", "-c", script()]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after, figures = json.loads(done.stdout.splitlines()[-1])
    assert {name: after[name] for name in before} == before
    assert list(after)[:2] == ["gamp", "mine-decay"]
    assert {ranked[2] for name, ranked in after.items() if name != "gamp"} == {
        "tuned, 4 trials"
    }
    # "gamp ends within 10% of the limit", and "agrees with theory".
    assert abs(after["gamp"][1] - 1) < 0.1
    assert after["gamp"][3] == "yes"
    assert {after[name][3] for name in ("adam", "mine", "mine-decay")} == {None}
    (low, high), (decayed_low, decayed_high) = ranges("times")
    assert all(low < after[name][0] < high for name in ("adam", "mine"))
    assert decayed_low < after["mine-decay"][0] < decayed_high
    # gamp comes near the optimum within 30 passes over the data; the error of mine rises again at the end.
    assert len(figures) == 2
    for curves in figures:
        (optimum,) = set(curves["Bayes-optimal"][1])
        samples, errors = curves["gamp"]
        last_pass = sum(count <= 30 * samples[0] for count in samples)
        assert min(errors[:last_pass]) < 1.1 * optimum
        assert 1.3 * optimum < 1.03 * min(curves["mine"][1]) < curves["mine"][1][-1]
    # What is suggested next.
    assert done.stdout.count("Suite('optimizers'") == 1


def test_it_is_short_and_its_outputs_are_stored():
    assert len(CELLS) <= 15
    assert len(TEXT.split()) <= 500
    assert FILE.stat().st_size < 300_000
    assert [cell["execution_count"] for cell in CODE] == [*range(1, len(CODE) + 1)]
    assert {output["output_type"] for output in OUTPUTS} == {
        "stream",
        "execute_result",
        "display_data",
    }
    assert {output["name"] for output in OUTPUTS if "name" in output} == {"stdout"}
    shown = [output.get("data", {}) for output in OUTPUTS]
    assert sum("text/html" in data for data in shown) == 2
    assert sum("image/png" in data for data in shown) == 2


def test_stored_tables_lie_within_the_ranges_of_the_text():
    tables = [
        "".join(output["data"]["text/plain"])
        for output in OUTPUTS
        if output["output_type"] == "execute_result"
    ]
    (low, high), (decayed_low, decayed_high) = ranges("times")
    ratios = re.findall(r"  (\S+): (\S+) times gamp's error", "\n".join(tables))
    assert len(ratios) == 2 + 3
    for name, ratio in ratios:
        if name == "mine-decay":
            assert decayed_low < float(ratio) < decayed_high
        else:
            assert low < float(ratio) < high
    assert "agrees with" in tables[0]


def test_files_that_it_links_to_exist():
    for target in re.findall(r"\]\(([\w.-]+)[^)]*\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
