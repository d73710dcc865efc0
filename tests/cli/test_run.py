"""``smimbench run``: what it prints and writes, exit codes, and what cells that end badly leave."""

import json
import re
import shutil
import types

import pytest

from tests.helpers import ROOT, SUITE, call, ends_with, flat, one_document, write_suite
from tests.records import records_in

TROUBLE = str(ROOT / "tests" / "faulty_algorithms.py")


def with_algorithm(folder, *names):
    tables = "".join(f'\n[[algorithms]]\nname = "{name}"\n' for name in names)
    return write_suite(folder, SUITE.partition("[[algorithms]]")[0] + tables)


def test_run_ends_with_the_verdict_on_one_screen(ran):
    folder, done = ran
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines[4:])) <= 80
    figures = folder / "results" / "small" / "figures"
    assert lines[:2] == ["A small suite", f"cells: 8 ok, in {figures.parent}"]
    assert lines[2].startswith("tables:  smimbench show ")
    assert lines[3] == f"figure:  {figures / 'mse.png'} (and .csv)"
    assert lines[4].startswith("line: gamp is best")
    assert any(
        re.fullmatch(
            r"  adam: [\d.]+ times gamp's error \([\d.]+ to [\d.]+\), [\d.]+ times the optimal error",
            line,
        )
        for line in lines
    )
    assert lines[-1] == "what this means: smimbench help verdict"
    assert "running 8 cells, 2 at a time" in done.stderr
    assert {path.name for path in figures.iterdir()} == {"mse.png", "mse.csv"}


def test_tables_fit_eighty_columns_in_a_pipe(ran):
    folder, done = ran
    own = [line for line in done.stdout.splitlines() if str(folder) not in line]
    assert max(map(len, own)) <= 80
    assert "…" not in done.stdout
    assert "\x1b" not in done.stdout


def test_run_again_runs_nothing(ran, capsys):
    folder, _ = ran
    results = folder / "results"
    before = {p: p.stat().st_mtime_ns for p in records_in(results / "small")}
    assert len(before) == 8
    code, out, err = call(
        capsys, "run", folder / "small.toml", "--results", results, "--no-figure"
    )
    assert code == 0
    assert "cells: 8 ok" in out
    assert "running" not in err
    assert before == {p: p.stat().st_mtime_ns for p in before}


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
    assert call(capsys, "show", *words, "--full")[1].count(algorithm) >= 4
    if status == "ok":
        assert "cells: 8 ok" in out
        assert "; talker: by info" in flat(out)
    else:
        assert f"cells: 4 ok, 4 {status}" in out
    if status == "failed":
        assert (
            "raiser: 4 cells failed, first at alpha 0.5: ZeroDivisionError: nothing to divide by"
            in flat(out)
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    spoiled, *_ = records_in(folder / "results" / "small")
    spoiled.write_text(
        spoiled.read_text().replace('"status": "ok"', '"status": "failed"')
    )
    code, out, err = call(capsys, *arguments)
    assert code == 0
    assert "running 1 cell," in err
    assert (
        f"{spoiled}: the file was changed after it was written (its digest does not match); not used, moved to"
        in flat(out)
    )
    after = one_document(call(capsys, *arguments, "--json")[1])
    assert [row["mean"] for row in after["rows"]] == [
        row["mean"] for row in before["rows"]
    ]


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
