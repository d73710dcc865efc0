"""Every command: what it prints, what it writes, its exit code, and one JSON document where one is asked for."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.helpers import (
    ATTENTION,
    CHANNEL,
    ROOT,
    SUITE,
    call,
    call_outside,
    command,
    ends_with,
    environment,
    write_suite,
)

TROUBLE = str(ROOT / "tests" / "faulty_algorithms.py")


def with_algorithm(folder: Path, *names: str) -> Path:
    tables = "".join(f'\n[[algorithms]]\nname = "{name}"\n' for name in names)
    return write_suite(folder, SUITE.partition("[[algorithms]]")[0] + tables)


def one_document(text: str):
    """JSON that is the whole text, with no number that JSON does not know."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


# -- run ----------------------------------------------------------------------------------------------------------


def test_run_ends_with_the_verdict_on_one_screen(ran):
    folder, done = ran
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines[:4])) <= 80
    assert lines[0] == "A small suite"
    assert lines[1].startswith("line: gamp is best")
    assert any(
        re.fullmatch(
            r"  adam: [\d.]+ x gamp \([\d.]+ to [\d.]+\), [\d.]+ x optimal", line
        )
        for line in lines
    )
    assert "cells: 8 ok" in lines
    figures = folder / "results" / "small" / "figures"
    assert lines[-2:] == [
        f"results: {figures.parent}",
        f"figure:  {figures / 'mse.png'} (and .csv)",
    ]
    assert "running 8 cells, 2 at a time" in done.stderr
    assert {path.name for path in figures.iterdir()} == {"mse.png", "mse.csv"}


def test_show_has_tables_and_all_figures(ran, tmp_path, capsys):
    folder, done = ran
    results = tmp_path / "results"
    shutil.copytree(folder / "results", results)
    code, out, _ = call(
        capsys, "show", results / "small", "--results", results, "--figures"
    )
    assert code == 0
    assert (
        out.splitlines()[:3] == done.stdout.splitlines()[:3]
    )  # title, and the verdict with the ratios of all algorithms
    for words in (
        "A small suite",
        "line: MSE against theory, D = 30",
        "line: overlap against theory",
        "line: runtime",
    ):
        assert words in out
    for words in (
        "mean ± s.e.m.",
        "optimal",
        "z",
        "error /",
        "status",
        "iter.",
        "memory",
        "worst first",
    ):
        assert words in out
    figures = results / "small" / "figures"
    drawn = {
        "mse",
        "overlap",
        "seconds",
        "profiles",
        "learning-mse",
    }  # because adam counts samples
    kinds = ("png", "svg", "pdf", "csv")
    assert {path.name for path in figures.iterdir()} == {
        f"{n}.{kind}" for n in drawn for kind in kinds
    }
    for path in figures.glob("*.png"):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 10_000
    for path in figures.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_tables_fit_eighty_columns_in_a_pipe(ran):
    folder, done = ran
    own = [line for line in done.stdout.splitlines() if str(folder) not in line]
    assert max(map(len, own)) <= 80
    assert "…" not in done.stdout
    assert "\x1b" not in done.stdout


def test_run_again_runs_nothing(ran, capsys):
    folder, _ = ran
    results = folder / "results"
    before = {
        p: p.stat().st_mtime_ns
        for p in (results / "small").glob("*.json")
        if p.name != "run.json"
    }
    assert len(before) == 8
    code, out, err = call(
        capsys, "run", folder / "small.toml", "--results", results, "--no-figure"
    )
    assert code == 0
    assert "cells: 8 ok" in out
    assert "running" not in err
    assert before == {p: p.stat().st_mtime_ns for p in before}


def test_run_json_is_one_document_and_the_same_as_show(ran, capsys):
    folder, _ = ran
    both = [
        call(
            capsys,
            verb,
            folder / "small.toml",
            "--results",
            folder / "results",
            "--json",
            *more,
        )
        for verb, more in (("run", ["--no-figure"]), ("show", []))
    ]
    assert [code for code, _, _ in both] == [0, 0]
    run, show = (one_document(out) for _, out, _ in both)
    assert run == show
    assert run["status_counts"] == {"ok": 8}
    assert run["missing"] == 0


def test_rows_keep_their_published_names_and_meaning(ran, capsys):
    folder, _ = ran
    _, out, _ = call(
        capsys, "show", folder / "small.toml", "--results", folder / "results", "--json"
    )
    rows = one_document(out)["rows"]
    assert len(rows) == 2 * 2 * 2
    published = {
        "problem", "algorithm", "backend", "alpha", "dimension", "n", "metric", "component", "mean", "sem", "theory",
        "theory_error", "z", "seconds", "iterations", "status_counts",
    }  # fmt: skip
    records = [
        json.loads(p.read_text())
        for p in (folder / "results" / "small").glob("*.json")
        if p.name != "run.json"
    ]
    for row in rows:
        assert published <= set(row)
        own = [
            r
            for r in records
            if r["algorithm"] == row["algorithm"] and r["sample_ratio"] == row["alpha"]
        ]
        values = [r["metrics"][row["metric"]][0] for r in own]
        assert row["n"] == len(values) == 2
        assert row["mean"] == pytest.approx(sum(values) / 2, rel=1e-14)
        assert row["sem"] == pytest.approx(abs(values[0] - values[1]) / 2, rel=1e-12)
        assert row["z"] == pytest.approx(
            (row["mean"] - row["theory"]) / math.hypot(row["sem"], row["theory_error"])
        )
        assert row["iterations"] == pytest.approx(sum(r["iterations"] for r in own) / 2)
        assert row["seconds"] == pytest.approx(
            sum(r["timing"]["seconds"] for r in own) / 2
        )
        assert row["component"] is None
        assert row["status_counts"] == {"ok": 2}
        a, noise, m = row["alpha"], 0.2, 2
        v = (1 - a * m - noise + math.sqrt((a * m + noise - 1) ** 2 + 4 * noise)) / 2
        assert row["theory"] == pytest.approx(
            v if row["metric"] == "mse" else 1 - v, abs=1e-9
        )


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Words for a suite of troublesome algorithms that was run once; ``only`` takes some of them."""
    folder = tmp_path_factory.mktemp("troubled")
    suite = with_algorithm(
        folder, "gamp", "raiser", "diverger", "choosy", "talker", "raising-digger"
    )
    words = [suite, "--results", folder / "r", "--plugins", TROUBLE]
    assert ends_with("run", *words, "--workers", "1", "--no-figure", "--quiet") == 1

    def only(*names):
        return [
            *words,
            *(word for name in names for word in ("--only", f"algorithm={name}")),
        ]

    return only


@pytest.mark.parametrize(
    ("algorithm", "status", "code"),
    [
        ("raiser", "failed", 1),
        ("diverger", "diverged", 1),
        ("choosy", "skipped", 0),
        ("talker", "ok", 0),
    ],
)
def test_the_exit_code_tells_and_nothing_is_dropped(
    troubled, capsys, algorithm, status, code
):
    words = troubled("gamp", algorithm)
    arguments = [*words, "--workers", "1", "--no-figure"]
    found, out, err = call(capsys, "run", *arguments)
    assert found == code, err
    assert call(capsys, "show", *words)[1].count(algorithm) >= 4
    if status == "ok":
        assert "cells: 8 ok" in out
        assert "talker: note: by info" in out
    else:
        assert f"cells: 4 ok, 4 {status}" in out
    if status == "failed":
        assert (
            "raiser: 4 cells failed, first at alpha 0.5: ZeroDivisionError: nothing to divide by"
            in " ".join(out.split())
        )
        assert "Traceback" not in out + err
    document = one_document(call(capsys, "run", *arguments, "--json")[1])
    rows = [row for row in document["rows"] if row["algorithm"] == algorithm]
    assert len(rows) == 4
    for row in rows:
        assert row["status_counts"] == {status: 2}
        if status in ("failed", "diverged", "skipped"):
            assert (row["n"], row["mean"], row["sem"], row["z"]) == (
                0,
                None,
                None,
                None,
            )
            assert row["theory"] is not None
            assert row["time_to_theory"]["0.05"]["seconds"] is None


def test_an_error_with_markup_in_its_text_is_shown(troubled, capsys):
    for more in (["run", "--no-figure"], ["show"]):
        code, out, _ = call(capsys, *more, *troubled("raising-digger"))
        assert code == 1
        assert "cannot open [/data/x]" in out


def test_a_run_of_nothing_is_no_success(troubled, capsys):
    """Cells that an algorithm refuses are no failure if others ran, but where it refuses all nothing has been measured."""
    found, out, _ = call(
        capsys, "run", *troubled("choosy"), "--workers", "1", "--no-figure"
    )
    assert "cells: 4 skipped" in out
    assert found == 1


def test_cells_of_a_status_can_be_run_again(troubled, capsys):
    words = troubled("raiser", "talker")
    _, _, err = call(
        capsys, "run", *words, "--workers", "1", "--no-figure", "--retry", "failed"
    )
    assert "running 4 cells" in err
    assert len(list((words[2] / "small" / "set-aside").glob("*.json"))) == 4


def test_timing_mode_is_serial_and_trusted(tmp_path, capsys):
    suite = write_suite(tmp_path, SUITE.replace("[0.5, 1.0]", "[0.5]"))
    arguments = ["run", suite, "--results", tmp_path / "r", "--no-figure"]
    plain = one_document(call(capsys, *arguments, "--json", "--workers", "1")[1])
    assert not any(row["trusted"] for row in plain["rows"])
    code, out, err = call(capsys, *arguments, "--timing", "--workers", "2")
    assert code == 0
    assert "running 4 cells, 1 at a time" in err
    assert "untrusted" not in out
    timed = one_document(call(capsys, *arguments, "--json", "--timing")[1])
    assert all(row["trusted"] for row in timed["rows"])
    for a, b in zip(plain["rows"], timed["rows"]):
        assert (a["mean"], a["sem"], a["iterations"]) == (
            b["mean"],
            b["sem"],
            b["iterations"],
        )


def test_a_spoiled_record_is_reported_and_run_again(ran, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(ran[0], folder)
    arguments = [
        "run",
        folder / "small.toml",
        "--results",
        folder / "results",
        "--workers",
        "1",
        "--no-figure",
    ]
    before = one_document(call(capsys, *arguments, "--json")[1])
    spoiled = next(
        p for p in (folder / "results" / "small").glob("*.json") if p.name != "run.json"
    )
    spoiled.write_text(
        spoiled.read_text().replace('"status": "ok"', '"status": "failed"')
    )
    code, _, err = call(capsys, *arguments)
    assert code == 0
    assert "running 1 cells" in err
    assert (
        f"{spoiled}: changed after it was written (digest does not match); not used, moved to"
        in err
    )
    after = one_document(call(capsys, *arguments, "--json")[1])
    assert [row["mean"] for row in after["rows"]] == [
        row["mean"] for row in before["rows"]
    ]


# -- theory -------------------------------------------------------------------------------------------------------


def test_theory_json_keeps_its_published_names(tmp_path, capsys):
    suite = write_suite(tmp_path, ATTENTION)
    code, out, err = call(capsys, "theory", suite, "--json")
    assert (code, err) == (0, "")
    (document,) = one_document(out)
    assert document["problem"]["prior"]["rho"] == 0.5
    assert document["problem"]["label"] == "softmax"
    assert [point["alpha"] for point in document["points"]] == [0.1, 0.3]
    for point in document["points"]:
        assert {"alpha", "mse", "mse_error", "overlap", "branch", "method"} <= set(
            point
        )
        assert isinstance(point["mse"], float)
        ((overlap,),) = point["overlap"]
        assert overlap == pytest.approx(1.5 - point["mse"])
        assert 0 <= point["mse_error"] < 1e-6
    thresholds = document["thresholds"]
    assert set(thresholds) == {
        "weak_recovery", "perfect_recovery", "sequential", "spinodal", "algorithmic", "information_theoretic", "reasons",
    }  # fmt: skip
    assert thresholds["weak_recovery"] is None
    assert thresholds["perfect_recovery"]["value"] == pytest.approx(0.75 / 4, abs=1e-6)
    assert document["points"][1]["mse"] == 0


def test_theory_at_other_sample_ratios(tmp_path, capsys):
    suite = write_suite(tmp_path, SUITE)
    more = ("--json", "--set", "problem.channel.noise=0.1")
    _, out, _ = call(capsys, "theory", suite, "--alpha", "0.25", "--alpha", "2", *more)
    (document,) = one_document(out)
    assert [point["alpha"] for point in document["points"]] == [0.25, 2.0]
    assert document["problem"]["channel"]["noise"] == 0.1


# -- show ---------------------------------------------------------------------------------------------------------


def test_show_needs_no_suite_beside_its_results(ran, capsys):
    folder, _ = ran
    by_suite = call(
        capsys, "show", folder / "small.toml", "--results", folder / "results", "--json"
    )
    by_folder = call(capsys, "show", folder / "results" / "small", "--json")
    assert by_suite == by_folder


def test_show_as_csv_and_markdown(ran, capsys):
    folder, _ = ran
    results = folder / "results" / "small"
    rows = one_document(call(capsys, "show", results, "--json")[1])["rows"]
    code, out, _ = call(capsys, "show", results, "--csv")
    assert code == 0
    table = list(csv.DictReader(io.StringIO(out)))
    assert len(table) == len(rows)
    for line, row in zip(table, rows):
        for field in ("alpha", "mean", "sem", "theory", "z"):
            assert float(line[field]) == row[field]
        assert line["component"] == ""
        assert line["status_counts"] == "2 ok"
    code, out, _ = call(capsys, "show", results, "--markdown")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 2 + len(rows)
    assert {line.count(" | ") for line in lines if "---" not in line} == {
        len(lines[0].split(" | ")) - 1
    }


# -- what others print ----------------------------------------------------------------------------------------------

BAD = "ZeroDivisionError: division by zero"
SHOWN = [
    ("theory {attention}", 0, ["softmax", "MSE", "overlap", "error", "obtained by: closed form", "perfect recovery", "0.1875",
                               "weak recovery", "none"]),
    ("show {results} --set grid.seeds=3", 1, ["4 not run yet"]),
    ("show {results} --only algorithm=gamp", 0, ["gamp", "cells: 4 ok"]),
    ("info wishart", 0, ["prior wishart", "parameters", "rho", "required", "arXiv:"]),
    ("info adam", 0, ["theory of its own", "every step depends on all earlier ones"]),
    ("info quickstart", 0, ["[[problems]]"]),
    ("plugins", 0, ["loaded attention"]),
    ("plugins --plugins {tmp}/drop", 1, ["loaded good", "channel twice", BAD]),
    ("list channels --plugins {tmp}/drop/good.py --trace-plugins", 0, ["loading good of good", "channel twice"]),
    ("doctor", 0, ["versions", "numpy", "blas", "gpu", "cupy", "plugins"]),
    ("doctor --plugins {tmp}/drop/bad.py", 1, [BAD]),
    ("--version", 0, ["smimbench, version "]),
    ("run {ran}/small.toml --results {ran}/results --quiet --no-figure", 0, ["cells: 8 ok"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "code", "said"), SHOWN, ids=[line for line, _, _ in SHOWN]
)
def test_a_command_says_what_it_is_for(ran, tmp_path, capsys, line, code, said):
    (tmp_path / "drop").mkdir()
    (tmp_path / "drop" / "good.py").write_text(CHANNEL)
    (tmp_path / "drop" / "bad.py").write_text("1 / 0")
    attention = write_suite(tmp_path, ATTENTION, "attention")
    where = {
        "attention": attention,
        "ran": ran[0],
        "results": ran[0] / "results" / "small",
        "tmp": tmp_path,
    }
    found, out, err = call(capsys, *line.format(**where).split())
    assert found == code, err
    for words in said:
        assert words in " ".join((out + err).split())
    assert "--only" not in line or "adam" not in out
    assert "--quiet" not in line or not err


def test_plugins_and_doctor_as_json(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("1 / 0")
    code, out, _ = call(capsys, "plugins", "--plugins", tmp_path, "--json")
    (found,) = [plugin for plugin in one_document(out) if plugin["name"] == "bad"]
    assert (code, found["status"], found["problems"]) == (1, "failed", [BAD])
    found = one_document(call(capsys, "doctor", "--json")[1])
    assert found["healthy"] is True
    assert found["versions"]["numpy"]
    assert found["machine"]["cores"] >= 1
    assert {"driver", "cupy", "devices", "advice"} <= set(found["gpu"])


def test_list_has_everything_by_kind(capsys):
    code, out, _ = call(capsys, "list", "--json")
    assert code == 0
    found = one_document(out)
    assert list(found) == [
        "models",
        "inputs",
        "channels",
        "priors",
        "metrics",
        "algorithms",
        "suites",
    ]
    names = {kind: {item["name"] for item in items} for kind, items in found.items()}
    assert names["models"] == {"attention-indexed", "sequence-multi-index"}
    assert names["priors"] >= {"wishart", "gaussian"}
    assert names["algorithms"] >= {"gamp", "adam"}
    assert "quickstart" in names["suites"]
    assert all(item["summary"] for items in found.values() for item in items)
    code, out, _ = call(capsys, "list")
    for name in set().union(*names.values()):
        assert name in out


def test_info_of_a_name_shows_all_that_bear_it(capsys):
    code, out, _ = call(capsys, "info", "softmax", "--json")
    assert code == 0
    found = one_document(out)
    assert {tuple(item["models"]) for item in found} == {
        ("attention-indexed",),
        ("sequence-multi-index",),
    }
    for item in found:
        assert item["reference"]
        assert item["documentation"]
        assert "tokens" not in {p["name"] for p in item["parameters"]}
    parameters = next(
        item["parameters"] for item in found if item["models"] == ["attention-indexed"]
    )
    (beta,) = [p for p in parameters if p["name"] == "beta"]
    assert (beta["required"], beta["default"]) == (False, 1.0)


def test_a_broken_plugin_is_one_line_and_stops_nothing(tmp_path, capsys):
    bad = tmp_path / "bad.py"
    bad.write_text("1 / 0")
    code, out, err = call(capsys, "list", "priors", "--plugins", bad)
    assert code == 0
    assert "wishart" in out
    assert (
        err
        == f"smimbench: plugin bad ({bad}) was not loaded: ZeroDivisionError: division by zero\n"
    )
    assert (
        call(capsys, "list", "priors", "--plugins", bad, "--quiet")[2] == err
    )  # an error, not a remark
    assert call(capsys, "list", "priors", "--plugins", bad, "--no-plugins")[::2] == (
        0,
        "",
    )


ENDING = {
    "class E(BaseException): pass\nraise E('\x1b[31mred')": "was not loaded: E: \ufffd[31mred",
    "import os\nos._exit(0)": "was not loaded: SystemExit: os._exit(0)",
    "from os import _exit\n_exit(3)": "was not loaded: SystemExit: os._exit(3)",
}


def test_a_plugin_that_ends_the_process_when_it_is_imported_is_one_line(tmp_path):
    for place, text in enumerate(ENDING):
        (tmp_path / f"bad{place}.py").write_text(text)
    done = call_outside("list", "priors", "--plugins", tmp_path, "--quiet")
    assert done.returncode == 0
    assert "wishart" in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == len(ENDING)
    assert all(said in line for said, line in zip(ENDING.values(), lines))


TWICE = SUITE.partition("[problem]")[2].partition("[grid]")[0]


def test_a_problem_that_cannot_be_solved_says_so_and_the_others_stay(tmp_path, capsys):
    plugin = tmp_path / "bad.py"
    plugin.write_text(
        CHANNEL.replace(
            "return smimbench.Posterior(y / self.gain, 0 * V)",
            "raise ZeroDivisionError('no')",
        )
    )
    bad = TWICE.replace('"line"', '"bad"').replace(
        'name = "linear", noise = 0.2', 'name = "twice"'
    )
    text = SUITE.replace("[problem]" + TWICE, f"[[problems]]{bad}\n[[problems]]{TWICE}")
    options = (
        write_suite(tmp_path, text),
        "--plugins",
        plugin,
        "--results",
        tmp_path / "r",
    )
    code, out, err = call(capsys, "theory", *options, "--json")
    found = {one["problem"]["label"]: one for one in one_document(out)}
    assert code == 1, err
    assert "ZeroDivisionError: no" in found["bad"]["unsolved"]
    assert found["bad"]["points"] == []
    assert len(found["line"]["points"]) == 2
    assert "unsolved" not in found["line"]
    code, out, _ = call(capsys, "theory", *options)
    assert code == 1
    assert (
        "bad not solved: channel 'twice': posterior raised ZeroDivisionError: no"
        in " ".join(out.split())
    )
    assert "0.358258" in out


RAISING = "    def __post_init__(self):\n        raise {}('no')\n\n    @property"
POSTERIOR = CHANNEL[CHANNEL.index("    def posterior") : CHANNEL.index("@hookimpl")]
LIKELIHOOD = "    def log_likelihood(self, y, z):\n        return 0 * z[:, 0, 0]\n\n\n"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("    @property", RAISING.format("ZeroDivisionError"), "ZeroDivisionError: no"),
        ("    @property", RAISING.format("BaseException"), "BaseException: no"),
        (
            "        return 1\n",
            "        return [][0]\n",
            "IndexError: list index out of range",
        ),
        (POSTERIOR, LIKELIHOOD, "a delta function"),
    ],
    ids=["constructor", "BaseException", "property", "likelihood"],
)
def test_a_problem_that_cannot_be_made_says_so_and_the_others_stay(
    tmp_path, capsys, before, after, said
):
    plugin = tmp_path / "bad.py"
    plugin.write_text(CHANNEL.replace(before, after))
    bad = TWICE.replace('"line"', '"bad"').replace(
        'name = "linear", noise = 0.2', 'name = "twice"'
    )
    text = SUITE.replace("[problem]" + TWICE, f"[[problems]]{bad}\n[[problems]]{TWICE}")
    suite, options = (
        write_suite(tmp_path, text),
        ("--plugins", plugin, "--results", tmp_path / "r"),
    )
    code, out, err = call(capsys, "theory", suite, *options, "--json")
    assert code == 1, err
    good, failed = one_document(out)
    assert (good["problem"]["label"], len(good["points"]), "unsolved" in good) == (
        "line",
        2,
        False,
    )
    assert (failed["problem"]["label"], failed["points"]) == ("bad", [])
    assert said in failed["unsolved"]
    assert said == "a delta function" or f"({plugin}, line " in failed["unsolved"]
    code, out, err = call(capsys, "theory", suite, *options)
    assert code == 1
    assert "bad not solved: channel.name: " in " ".join(out.split())
    assert "0.358258" in out
    for words in (("run", suite, "--workers", "1", "--no-figure"), ("show", suite)):
        code, out, err = call(capsys, *words, *options, "--json")
        found = one_document(out)
        assert code == 1, err
        assert {row["problem"] for row in found["rows"]} == {"line"}
        assert (found["status_counts"], found["missing"]) == ({"ok": 8}, 0)
        assert said in found["left_out"][0]
        assert said in err
        assert err.count("left out: ") == 1
    alone = write_suite(
        tmp_path, SUITE.replace("[problem]" + TWICE, f"[problem]{bad}"), "alone"
    )
    for verb in ("theory", "run"):
        code, _, err = call(capsys, verb, alone, *options)
        assert (code, err.count("\n")) == (2, 1)
        assert said in err
    code, _, err = call(
        capsys, "theory", suite, *options, "--set", "problems.bad.channel.gian=2"
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "did you mean 'gain'?" in err


PRIOR = """
from dataclasses import dataclass
from smimbench import hookimpl
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.priors.gaussian import Gaussian


@dataclass(frozen=True)
class Moody(Gaussian):
    name = "moody"

    def mean(self, components, dimension):
        raise ZeroDivisionError("no")


class Broken(Adam):
    name = "broken"

    def __post_init__(self):
        raise ZeroDivisionError("none")


@hookimpl
def smimbench_register_priors(register):
    register(Moody)


@hookimpl
def smimbench_register_algorithms(register):
    register(Broken)
"""


def test_a_prior_without_a_mean_and_an_algorithm_that_cannot_be_made_leave_the_others(
    tmp_path, capsys
):
    plugin = tmp_path / "bad.py"
    plugin.write_text(PRIOR)
    bad = TWICE.replace('"line"', '"bad"').replace("gaussian", "moody")
    text = SUITE.replace("[problem]" + TWICE, f"[[problems]]{bad}\n[[problems]]{TWICE}")
    suite = write_suite(tmp_path, text + '\n[[algorithms]]\nname = "broken"\n')
    options = ("--plugins", plugin, "--results", tmp_path / "r", "--json")
    code, out, _ = call(capsys, "theory", suite, *options)
    assert code == 1
    assert [one.get("unsolved", "")[-1:] for one in one_document(out)] == ["", ")"]
    code, out, _ = call(capsys, "run", suite, *options, "--workers", "1", "--no-figure")
    assert code == 1
    found = one_document(out)
    assert found["status_counts"] == {"ok": 8}
    first, second = found["left_out"]
    assert "problems[0].prior.name: cannot be made: ZeroDivisionError: no (" in first
    assert "algorithms[2].name: cannot be made: ZeroDivisionError: none (" in second


def test_the_small_width_limit_has_a_theory_and_no_data(tmp_path, capsys):
    suite = write_suite(tmp_path, ATTENTION.replace("rho = 0.5", "rho = 0.0"))
    code, out, err = call(
        capsys, "theory", suite, "--json", "--results", tmp_path / "r"
    )
    assert code == 0, err
    (document,) = one_document(out)
    assert document["algorithms"] == []
    assert len(document["points"]) == 2
    for words in (
        ("data", suite, "--output", tmp_path / "x.npz"),
        ("run", suite),
        ("show", suite),
    ):
        code, _, err = call(capsys, *words)
        assert (code, err.count("\n")) == (2, 1)
        assert (
            "must be > 0 to run; rho = 0 is the small-width limit, for theory only"
            in err
        )


# -- the command line as a whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ("--help", "numpy scipy pydantic rich matplotlib numba hashlib"),
        ("theory --json", "scipy.stats matplotlib numba"),
    ],
)
def test_a_command_loads_nothing_that_it_does_not_need(tmp_path, words, heavy):
    """Start-up is kept short by importing late; this names the module that breaks it, where a stop-watch could not."""
    suite = [str(write_suite(tmp_path, ATTENTION))] if "theory" in words else []
    script = (
        "import sys\nfrom smimbench.cli.main import main\n"
        f"try:\n    main({words.split() + suite})\nexcept SystemExit as e:\n    assert not e.code\n"
        f"print(sorted({set(heavy.split())} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_a_reader_that_stops_reading_is_no_error():
    first = subprocess.Popen(
        command("info", "quickstart"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    first.stdout.close()
    assert b"Traceback" not in first.stderr.read()
    first.stderr.close()
    first.wait()


@pytest.mark.parametrize(
    ("free", "asked", "workers", "said"),
    [
        (1 << 40, None, 4, None),
        (
            450 << 20,
            None,
            2,
            "2 at a time instead of 4: a cell takes up to 0.1 GB and 0.4 GB are free",
        ),
        (450 << 20, 2, 2, None),
        (450 << 20, 4, 4, "the memory may not suffice for 4 at a time"),
        (100 << 20, None, 1, "the memory may not suffice for 1 at a time"),
    ],
)
def test_no_more_cells_at_a_time_than_the_memory_holds(
    tmp_path, capsys, monkeypatch, free, asked, workers, said
):
    monkeypatch.setattr(
        "psutil.virtual_memory",
        lambda: types.SimpleNamespace(available=free, total=1 << 40),
    )
    monkeypatch.setattr(
        "os.sched_getaffinity", lambda process: {0, 1, 4, 5}, raising=False
    )
    arguments = [
        "run",
        write_suite(tmp_path, SUITE),
        "--results",
        tmp_path / "r",
        "--dry-run",
    ]
    code, out, err = call(
        capsys, *arguments, "--json", *(["--workers", asked] if asked else [])
    )
    assert code == 0
    found = json.loads(out)
    assert (found["cells"], found["missing"], found["workers"]) == (8, 8, workers)
    assert found["peak_bytes"] > 0
    assert (said in err) if said else not err
    if asked:
        _, out, err = call(capsys, *arguments, "--timing", "--workers", asked)
        assert "8 cells, 8 of them to run, 1 at a time" in out
        assert f"--workers {asked} is not used: --timing runs one cell at a time" in err
    assert not (tmp_path / "r").exists()
