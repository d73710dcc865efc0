"""The same verbs from Python, and what the README promises."""

import json
import re
import subprocess
import sys
import tomllib
import warnings

import pytest

import smimbench
from smimbench.suite import SuiteError
from tests.helpers import ROOT, SUITE, environment, flat, output, write_suite


def test_every_public_name_is_there_and_an_unknown_one_is_not():
    for name in smimbench.__all__:
        assert getattr(smimbench, name) is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", smimbench.__version__)
    with pytest.raises(AttributeError, match="'smimbench' has no attribute 'nothing'"):
        _ = smimbench.nothing


def test_importing_the_package_is_cheap():
    script = "import sys, smimbench; print(sorted({'numpy', 'scipy', 'pydantic', 'rich', 'click'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert done.stdout.strip() == "[]"


def test_run_and_show_give_a_tidy_table(tmp_path):
    path = write_suite(tmp_path, SUITE)
    rows = smimbench.run(
        path,
        results=tmp_path / "results",
        overrides=["grid.seeds=3", "grid.alpha=[0.7]"],
    )
    assert len(rows) == 2 * 2
    assert all(row["n"] == 3 and row["status_counts"] == {"ok": 3} for row in rows)
    suite = smimbench.load_suite(path, ["grid.seeds=3", "grid.alpha=[0.7]"])
    assert smimbench.show(suite, results=tmp_path / "results") == rows
    assert smimbench.run(suite, results=tmp_path / "results") == rows


def test_running_a_part_keeps_the_rest(tmp_path):
    path = write_suite(tmp_path, SUITE)
    part = smimbench.load_suite(path, only=["algorithm=adam"])
    assert {
        row["algorithm"] for row in smimbench.run(part, results=tmp_path / "r")
    } == {"adam"}
    assert {
        row["algorithm"] for row in smimbench.run(str(path), results=tmp_path / "r")
    } == {"adam", "gamp"}


def test_progress_comes_through_a_callback_and_remarks_with_the_rows(tmp_path):
    path = write_suite(tmp_path, SUITE)
    seen = []
    smimbench.run(
        path, results=tmp_path / "r", overrides=["grid.seeds=1"], on_record=seen.append
    )
    assert [record["status"] for record in seen] == ["ok"] * 4
    (tmp_path / "r" / "small" / "torn.json").write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = smimbench.run(
            path,
            results=tmp_path / "r",
            overrides=["grid.seeds=1"],
            on_record=seen.append,
        )
    (remark,) = rows.remarks
    assert "torn.json: the file is incomplete or not JSON; not used" in remark
    assert "note:" in repr(rows)
    assert "torn.json: the file is incomplete" in flat(rows._repr_html_())
    assert len(seen) == 4


def test_overrides_of_a_loaded_suite_are_not_silently_dropped(tmp_path):
    suite = smimbench.load_suite(write_suite(tmp_path))
    for verb in (smimbench.run, smimbench.theory):
        with pytest.raises(ValueError, match="load_suite"):
            verb(suite, overrides=["grid.seeds=9"])


def test_errors_are_exceptions(tmp_path):
    with pytest.raises(SuiteError, match="no such file"):
        smimbench.run(str(tmp_path / "nothing.toml"))
    from smimbench.backend.device import BackendError

    with pytest.raises(BackendError, match="choose one of"):
        smimbench.run(
            str(write_suite(tmp_path)), backend="abacus", results=tmp_path / "r"
        )
    assert not (tmp_path / "r").exists()


README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(mark, language):
    return re.search(
        rf"<!-- {mark} -->\n```{language}\n(.*?)```", README, re.DOTALL
    ).group(1)


def test_the_readme_is_one_screen():
    assert len(README.splitlines()) <= 85
    assert (ROOT / "docs" / "quickstart.png").stat().st_size < 100_000


@pytest.mark.slow
def test_the_optimiser_of_the_readme_joins_a_shipped_suite(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "signed.py").write_text(
        block("file: signed.py", "python"), encoding="utf-8"
    )
    small = "--set grid.dimension=20 --set grid.seeds=1 --only problem=linear --only alpha=0.1 --no-figure --workers 1 --json"
    out = output(capsys, *block("add", "sh").split()[1:], *small.split())
    rows = [
        row
        for row in json.loads(out)["rows"]
        if row["metric"] == "mse" and row["algorithm"] == "signed"
    ]
    assert len(rows) == 1
    assert 0 < rows[0]["mean"] < 1.5  # it learns: the prior mean alone scores 1
    records = [
        json.loads(path.read_text())
        for path in (tmp_path / "results" / "quickstart").glob("*.json")
    ]
    (own,) = [
        one["cell"]["algorithm"] for one in records if one.get("algorithm") == "signed"
    ]
    assert (
        own["learning_rate"] == 0.02
    )  # the one that is written, not the default of its base


def test_the_two_commands_are_one_line_each_and_use_what_the_project_offers():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for mark, verb in (("run", "smimbench run quickstart"), ("test", "pytest")):
        command = block(mark, "sh").strip()
        assert "\n" not in command
        assert verb in command
        (extra,) = re.findall(r"\[(\w+)\]", command)
        assert extra in extras


@pytest.mark.slow
def test_the_lines_of_python_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = block("python", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 6
    exec(compile(code, "README.md", "exec"), {})
    assert "linear: gamp, " in capsys.readouterr().out
    assert (tmp_path / "theory.pdf").stat().st_size > 1000


def test_files_that_the_readme_links_to_exist():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
