"""``show --latex``: tables that LaTeX reads as they are, whatever stands in a label."""

import itertools
import json
import re

import pytest

from smimbench.report.tables import contender_tables
from smimbench.report.text_files import latex_table
from smimbench.report.verdict import verdicts
from tests.helpers import ROOT, call
from tests.report.rows import row

LABELS = [
    "a_b & 50% #1 $x$",
    "{c}~^\\d",
    "[e]",
    "*f",
    "<g|h>",
    "naïve ± 2",
    "i\u202e\x1b[2J\nj",
]
ESCAPES = {r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"$\pm$": "±", r"$\div$": "÷",
           **{f"\\{c}": c for c in "&%$#_{}"}, **{f"${c}$": c for c in "<>|"}, **{f"{{{c}}}": c for c in "[]*"}}  # fmt: skip
ESCAPE = re.compile("|".join(map(re.escape, ESCAPES)))


def read(text):
    """Caption, columns and cells of a table, its escapes undone; what is left of the special characters is an error."""
    whole = re.fullmatch(
        r"\\begin\{table\}\n\\centering\n\\caption\{(.*)\}\n\\begin\{tabular\}\{([lr]+)\}\n\\toprule\n(.*) \\\\\n\\midrule\n"
        r"((?:.* \\\\\n)+)\\bottomrule\n\\end\{tabular\}\n\\end\{table\}", text)  # fmt: skip
    assert whole, text
    lines = [line.removesuffix(r" \\") for line in (whole[3], *whole[4].splitlines())]
    cells = [line.split(" & ") for line in lines]
    for cell in (whole[1], *itertools.chain(*cells)):
        assert not re.search(
            r"[&%$#_{}~^\\<>|\[\]*±\x00-\x1f\u202e]", ESCAPE.sub("", cell)
        )
    return (
        undone(whole[1]),
        whole[2],
        [[undone(cell) for cell in line] for line in cells],
    )


def undone(text):
    return ESCAPE.sub(lambda found: ESCAPES[found[0]], text)


@pytest.mark.parametrize("suite", ["quickstart", "contenders", "optimizers"])
def test_every_problem_has_a_table_of_its_contenders(suite, capsys):
    code, out, err = call(
        capsys, "show", ROOT / "results" / "reference" / f"{suite}.json", "--latex"
    )
    assert code == 0
    assert not err or err.endswith(
        ": format 2: only metric values of single runs can be verified; means and other derived numbers are shown as stored\n"
    )
    tables = [read(text) for text in out.strip().split("\n\n")]
    code, out, _ = call(
        capsys, "show", ROOT / "results" / "reference" / f"{suite}.json", "--json"
    )
    found = [one for one in json.loads(out)["verdicts"] if len(one["contenders"]) > 1]
    assert len(tables) == len(found)
    for (caption, form, (head, *lines)), verdict in zip(tables, found):
        assert caption.startswith(f"{verdict['problem']}: all algorithms, ")
        assert {len(line) for line in (head, *lines)} == {len(form)}
        assert [line[0] for line in lines] == [
            one["algorithm"] for one in verdict["contenders"]
        ]
        ratios = [
            line[head.index("error ÷ optimal error")].partition("±")[0]
            for line in lines
        ]
        for text, one in zip(ratios, verdict["contenders"]):
            assert (
                text == ""
                if one["ratio_to_limit"] is None
                else float(text) == pytest.approx(one["ratio_to_limit"], 0.1)
            )


def test_a_label_is_printed_as_it_is_written():
    found = verdicts(
        [
            row(problem="100%_{x}", algorithm=name, ratio_to_bayes=k)
            for k, name in enumerate(LABELS, 1)
        ]
    )
    (text,) = contender_tables(found, latex_table)
    caption, _, (_, *lines) = read(text)
    assert caption.startswith("100%_{x}: all algorithms, ")
    assert [line[0] for line in lines][:-1] == LABELS[:-1]
    assert re.fullmatch(
        r"i\W*\[2J j", lines[-1][0]
    )  # what would steer a terminal, or turn text, is gone


def test_what_has_no_table_is_one_line(capsys):
    code, out, err = call(
        capsys, "show", ROOT / "results" / "reference" / "smi-skip.json", "--latex"
    )
    assert (code, out) == (2, "")
    assert err.endswith(
        "\nsmimbench: --latex: no table, because no problem was run with at least two algorithms\n"
    )
    code, out, err = call(
        capsys,
        "show",
        ROOT / "results" / "reference" / "quickstart.json",
        "--latex",
        "--csv",
    )
    assert (code, out, err) == (
        2,
        "",
        "smimbench: choose one of --json, --csv, --markdown and --latex\n",
    )
