"""What cannot be done: one line on standard error that says what is wrong, exit code 2, and nothing written."""

import importlib.util
import os
import shlex
import subprocess

import numpy as np
import pytest

from tests.helpers import (
    ATTENTION,
    SUITE,
    call,
    command,
    environment,
    refusal,
    write_suite,
)

FULL = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="there is no device that is full"
)
WRITE = ("data {suite}", "report {suite}")
REFUSED = [
    # usage
    ("fly", "No such command 'fly'"),
    ("run", "Missing argument 'SUITE'"),
    ("info", "Missing argument 'NAME'"),
    ("run quickstart --fly", "No such option"),
    ("run quickstart --workers 0", "0 is not in the range"),
    ("run quickstart --backend abacus", "unknown backend 'abacus'; choose one of"),
    ("theory quickstart --alpha many", "or look like 0.1, 0.1,0.2,0.5 or 0.1:0.3:20"),
    ("list colors", "'colors' is not one of"),
    ("info wishert", "did you mean 'wishart'"),
    ("show {results} --csv --json", "choose one of --json, --csv, --markdown and --latex"),
    ("compare {results} {results} --fail-over nan", "--fail-over: must be a finite number, got nan"),
    *((f"theory {{suite}} --alpha {bad}", "must be > 0 and finite") for bad in ("0", "-1", "inf", "nan")),
    # what is not there
    ("run quickstrat", "quickstrat: there is neither a file nor a shipped suite of this name; did you mean 'quickstart'"),
    ("run zzz", "choose from "),
    ("run nowhere/x.toml", "nowhere/x.toml: there is no such file"),
    ("run {tmp}/smal.toml", "smal.toml: there is no such file; did you mean '{tmp}/small.toml'"),
    ("run {tmp}/small", "there is neither a file nor a shipped suite of this name; did you mean '{tmp}/small.toml'"),
    ("run {tmp}/binary.toml", "cannot be read"),
    *((f"{verb} --plugins no.py", "Path 'no.py' does not exist") for verb in ("run quickstart --dry-run", "list")),
    *((f"list --plugins {path}", "neither a file that ends in .py nor a folder") for path in ("{suite}", "{tmp}/empty")),
    ("run {tmp}/code.py", "is a Python file, not a suite; load it with --plugins"),
    ("show {tmp}/empty", "no readable run.json"),
    ("show {suite} --results {tmp}/nothing", "run 'smimbench run {suite} --results {tmp}/nothing' first"),
    ("compare {results} {folder}", "not a results folder (it has no readable run.json), and there are no packed results there"),
    ("score {suite} --estimate {tmp}/other.npz", "other.npz"),
    ("run {tmp}/theory_only.toml", "algorithms: the suite has no algorithm"),
    # packages that cannot be written
    ("new channel softmax", "channel 'softmax' already exists in package 'smimbench'"),
    ("new algorithm attention", "a Python package smimbench_attention is already installed"),
    ("new prior 'My Own'", "'my-own' would be valid"),
    ("new prior 2fast", "use lower-case letters"),
    ("new prior ../up", "is not a valid name"),
    ("new prior ''", "is not a valid name"),
    ("new model mine", "'model' is not one of"),
    ("new channel mine --output {tmp}/file/mine", "cannot be written"),
    # where nothing can be written
    *((f"{verb} --output {{suite}}", "is the suite file itself") for verb in WRITE),
    *((f"{verb} --output ''", "give the file or folder to write") for verb in WRITE),
    ("report {results} --output {tmp}", "is a directory"),
    ("report {results} --output {tmp}/file/p.html", "cannot write"),
    *((f"data {{suite}} --output {where}/x.npz", "cannot write") for where in ("{tmp}/file", "/proc/nowhere")),
    ("run {suite} --results {tmp}/taken --workers 1", "cannot write"),
    # --set, --add and --only
    ("run {suite} --set problem.prior.rho", "must look like problem.prior.rho=0.2"),
    ("run {suite} --set =3", "must look like"),
    ("run quickstart --set problem.prior.rho=1", "this suite has several problems; choose from problems.softmax, problems."),
    ("run {suite} --set problems[0].prior.rho=1", "problems: this suite has a single problem; write problem instead of problems"),
    ("run {suite} --set problem.channel.noise=-1", "problem.channel.noise: must be"),
    ("run {suite} --set problem.channel.nose=1", "problem.channel.nose: unknown key, did you mean 'noise'"),
    ("run {suite} --set problem.channel.noise.deep=1", "problem.channel.noise: is not a table"),
    ("run {suite} --set problem.label.deep=1", "problem.label: is not a table"),
    ("run {suite} --set algorithms.nobody.steps=3", "choose from gamp, adam"),
    ("run {suite} --set algorithms=3", "algorithms: must be a list"),
    ("run {suite} --set grid.alpha=many", "grid.alpha"),
    ("run {suite} --set nonsense=1", "nonsense: unknown key"),
    ("run {suite} --set 'grid.alpha=[0.5, 1'", "--set: grid.alpha=[0.5, 1: the value is not valid TOML"),
    ("run {suite} --add '{{name=\"adam\"'", "--add: {{name=\"adam\": the value is not valid TOML"),
    ("run {suite} --set algorithms+=gmap", "algorithms[2].name: unknown algorithm 'gmap'; did you mean 'gamp'"),
    ("run {suite} --add gmap", "did you mean 'gamp'? (load your own with --plugins FILE)"),
    ("run {suite} --set algorithms+=adam", "algorithms[2].label: 'adam' is used twice"),
    *((f"run {{suite}} --set {key}+=3", "is not a list") for key in ("grid.seed", "grid")),
    ("run {suite} --only algorithm", "must look like algorithm=gamp"),
    ("run {suite} --only color=red", "choose from algorithm, alpha, dimension, seed, problem"),
    ("run {suite} --only alpha=much", "alpha must be a number"),
    ("run {suite} --only algorithm=nobody", "no such algorithm; choose from gamp"),
    ("run {suite} --only algorithm=gmap", "did you mean 'gamp'"),
    ("run {suite} --only problem=lone", "did you mean 'line'"),
    ("run {suite} --only alpha=0.7", "choose from 0.5, 1.0"),
    ("run {suite} --only seed=2", "choose from 0, 1"),
    ("run {suite} --only algoritm=gamp", "did you mean 'algorithm'"),
    # beyond measure
    ("theory {suite} --set grid.seed=" + "9" * 5000, "must be an integer"),
    ("theory {suite} --set grid.alpha=" + "[" * 1000 + "]" * 1000, ""),
    ("theory {suite} --set grid.alpha=[1" + "0" * 400 + "]", ""),
    *((f"{verb} {{tmp}}/{name}.toml", "") for verb in ("theory", "show") for name in ("digits", "brackets")),
    ("theory {results}/run.json", "run.json: this is a file of results, not a suite; read it with smimbench show"),
    # names that lead elsewhere
    *((f"run '{{tmp}}/{name}'", "must not start with a dot") for name in ("...toml", ".toml", "theory.toml", "a\x1bb.toml")),
]  # fmt: skip


@pytest.fixture
def places(ran, tmp_path):
    """A suite, its results, and things that are in the way."""
    np.savez(tmp_path / "other.npz", guess=np.zeros((1, 30)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "code.py").write_text("import numpy as np\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "small").write_text("in the way")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("...toml", ".toml", "theory.toml", "a\x1bb.toml"):
        (tmp_path / name).write_text(SUITE)
    write_suite(tmp_path, SUITE.partition("[[algorithms]]")[0], "theory_only")
    write_suite(tmp_path, SUITE + f"\n[x]\nseed = {'9' * 5000}\n", "digits")
    write_suite(
        tmp_path, SUITE + f"\n[x]\nalpha = {'[' * 1000}{']' * 1000}\n", "brackets"
    )
    return {
        "folder": ran[0],
        "results": ran[0] / "results" / "small",
        "suite": write_suite(tmp_path),
        "tmp": tmp_path,
    }


@pytest.mark.parametrize(
    ("line", "words"), REFUSED, ids=[line[:60] for line, _ in REFUSED]
)
def test_it_is_one_line(places, capsys, line, words):
    before = places["suite"].read_bytes()
    err = refusal(capsys, *shlex.split(line.format(**places)))
    assert err.startswith("smimbench: ")
    assert words.format(**places) in err
    assert len(err) < 900
    assert not {"unexpected", "Traceback", "\x1b"} & {*err.split(), *err}
    assert places["suite"].read_bytes() == before
    assert not (places["tmp"] / "results").exists()


@pytest.mark.parametrize("text", [
    '{"text": 1, "suite": "x"}', '{"text": "", "suite": "../../x"}', '{"text": "a", "overrides": {"a": 1}}',
    "[" * 10**5, '{"text": "", "only": [1]}',
])  # fmt: skip
def test_run_json_of_another_making(tmp_path, capsys, text):
    (tmp_path / "run.json").write_text(text)
    for words in (
        ("show", tmp_path),
        ("report", tmp_path, "--output", tmp_path / "p.html"),
    ):
        code, _, err = call(capsys, *words)
        assert (code, len(err.splitlines()), "unexpected" in err) == (2, 1, False)


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_a_report_asks_for_its_needs_first(ran, capsys, monkeypatch, missing):
    monkeypatch.setattr(
        "smimbench.cli.show.stored_results",
        lambda *a, **k: pytest.fail("worked before it asked"),
    )
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else object()
    )
    err = refusal(
        capsys, "report", ran[0] / "results" / "small", "--output", ran[0] / "page.html"
    )
    assert f"a report needs {missing}; pip install 'smimbench[report]'" in err


@pytest.mark.skipif(
    importlib.util.find_spec("cupy") is not None, reason="CuPy is installed"
)
def test_cupy_without_cupy(tmp_path, capsys):
    err = refusal(
        capsys,
        "run",
        write_suite(tmp_path),
        "--backend",
        "cupy",
        "--results",
        tmp_path / "r",
    )
    assert "smimbench[cuda12]" in err or "smimbench doctor" in err


@pytest.mark.slow
@FULL
@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("--help",)])
def test_a_full_disk(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(*words),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left" in done.stderr


@pytest.mark.parametrize("verb", ["theory", "show", "run"])
@pytest.mark.parametrize(
    ("old", "new"),
    [("rho = 0.5", "rho = -0.5"), ("[grid]", "[grids]"), ("[0.1, 0.3]", "[0.0]")],
)
def test_every_command_that_reads_a_suite_refuses_it(tmp_path, capsys, verb, old, new):
    refusal(capsys, verb, write_suite(tmp_path, ATTENTION.replace(old, new)))
