"""Submissions: packed results that anybody can run again, and the board that is made of them alone."""

import json
import math
import shutil

import numpy as np
import pytest

from smimbench.registry.registry import Registry, using
from smimbench.report.packed import _text_of, read_packed, rerun_obstacle
from smimbench.run.record import indented_json, with_digest
from smimbench.suite.cells import key_of
from tests.helpers import (
    LINE,
    call,
    call_outside,
    ends_with,
    flat,
    importable,
    install_package,
    silent,
    suite_text,
    write_suite,
)
from tests.records import records_in
from tools.board import (
    absent,
    board,
    in_words,
    packages,
    page,
    picture,
    simultaneous_intervals,
)

NOISE = """
from smimbench import Capabilities, hookimpl


class Noise:
    name, version, reference, capabilities = "noise", 1, "here", Capabilities()

    def fit(self, data, rng):
        return 0.5 * rng.standard_normal((1, data.dimension))


@hookimpl
def smimbench_register_algorithms(register):
    register(Noise)
"""
SGD = 'name = "sgd"\nsteps = 8\n[algorithms.tune]\ntrials = 2\nlearning_rate = { low = 0.001, high = 0.1, log = true }\n'
TEXT = suite_text(
    LINE,
    [0.5, 1.0],
    20,
    3,
    'name = "ridge"',
    'name = "noise"',
    SGD,
    'name = "adam"\nsteps = [4, 6]',
)
COMMIT = "0123456789ab"


def smimbench(folder, *words, code=0):
    """What a command says where the package of ``folder`` is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        done = call_outside(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return flat(done.stdout + done.stderr)


def made_by(results, **changes):
    """Change what ``run.json`` says of the run; the tests run in a checkout, which may have changes."""
    path = results / "small" / "run.json"
    path.write_text(
        indented_json(
            with_digest(
                {**json.loads(path.read_text()), "git_commit": COMMIT, **changes}
            )
        )
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with an installed plugin, a tuned and finished suite, and its submission."""
    folder = tmp_path_factory.mktemp("board")
    install_package(folder, "smimbench-noise", {"noise_of_mine": NOISE}, "1.5")
    suite, results = write_suite(folder, TEXT), folder / "results"
    words = (suite, "--results", results)
    with pytest.MonkeyPatch.context() as patch, importable(folder, patch):
        patch.setenv("PYTHONPATH", str(folder))
        assert ends_with("tune", *words) == 0
        assert ends_with("run", *words, "--no-figure") == 0
        made_by(results)
        assert (
            ends_with(
                "submit", *words, "--by", "A. Name", "--output", folder / "a.json"
            )
            == 0
        )
    return folder


@pytest.fixture
def said(made, monkeypatch, capsys):
    """The same in this process, which is quicker."""
    monkeypatch.setenv("PYTHONPATH", str(made))

    def function(*words, code=0):
        found, out, err = call(capsys, *words)
        assert found == code, out + err
        return flat(out + err)

    with importable(made, monkeypatch):
        yield function


@pytest.fixture
def plugin(made, monkeypatch):
    """Its plugin is installed."""
    with importable(made, monkeypatch), using(Registry()):
        yield


def changed(made, path, change):
    """A copy of the submission with a change of its document, under digests that fit."""
    pack = json.loads((made / "a.json").read_text())
    change(pack)
    pack["records"] = [with_digest(record) for record in pack["records"]]
    path.write_bytes(_text_of(pack))


def records_of(pack, algorithm, alpha=1.0):
    """Records of a place in a pack, one for each instance."""
    return [
        r
        for r in pack["records"]
        if (r["algorithm"], r["cell"]["alpha"]) == (algorithm, alpha)
    ]


@pytest.mark.slow
def test_what_was_packed_agrees_when_it_is_run_again(made, said):
    text = said("verify", made / "a.json", "--cells", 30)
    for line in (
        "1 packs",
        "30 cells run again",
        "5 contenders that others can run again",
    ):
        assert f"{line}: all agree" in text
    run = json.loads((made / "a.json").read_text())["run"]
    assert (run["by"], run["packages"], run["git_commit"]) == (
        "A. Name",
        {"smimbench-noise": "1.5"},
        COMMIT,
    )
    assert [one["trials"] for one in run["searches"]] == [run["searches"][0]["trials"]]
    assert run["choices"][0]["tuning"]["search"] == run["searches"][0]["digest"]


FORGED = {
    "half the error": (lambda record: record["metrics"].update(mse=[record["metrics"]["mse"][0] / 2]), "metrics.mse[0] is "),
    "half the sample ratio": (lambda record: record.update(sample_ratio=record["sample_ratio"] / 2), "sample_ratio is 1.0"),
    "fewer iterations": (lambda record: record.update(iterations=0), "iterations is 1, stored is 0"),
    "another teacher": (lambda record: record["start"].update(truth=[[2.0]]), "start.truth[0][0] is "),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGED)
def test_a_number_that_was_changed_is_named_with_its_cell(made, tmp_path, said, name):
    forge, line = FORGED[name]
    changed(made, tmp_path / "b.json", lambda pack: forge(records_of(pack, "noise")[1]))
    text = said("verify", tmp_path / "b.json", "--cells", 30, "--no-theory", code=1)
    key = next(
        r["key"]
        for r in records_of(json.loads((tmp_path / "b.json").read_text()), "noise")[1:]
    )
    assert f"b.json: small/{key}.json: run again, {line}" in text
    assert "30 cells run again: 1 disagrees" in text


@pytest.mark.slow
def test_a_theory_that_was_changed_is_solved_again(made, tmp_path, said):
    def harder(pack):
        answer = pack["theory"]["point"][0]
        answer["answer"][0]["mse"] *= 1.5
        pack["theory"]["point"][0] = with_digest(answer)

    changed(made, tmp_path / "b.json", harder)
    text = said("verify", tmp_path / "b.json", "--cells", 0, code=1)
    assert "solved again, [0].mse is" in text


LIES = {
    "a run is left out": (lambda pack: pack["records"].remove(records_of(pack, "noise")[0]), "line, noise, alpha 1, D = 20"),
    "other runs are left out": (lambda pack: pack["run"].update(left_out=[["line", "adam, steps 4"]]), ""),
    "other code": (lambda pack: renamed(records_of(pack, "noise"), "source", "0" * 12), "3 records belong to no cell"),
    "no code": (lambda pack: renamed(records_of(pack, "noise"), "source", None), "3 records belong to no cell"),
    "another backend": (lambda pack: [r["cell"].update(backend="cupy") for r in pack["records"]], "its key does not match"),
}  # fmt: skip


def renamed(records, name, new):
    """Other records of another algorithm, under keys that fit."""
    for record in records:
        record["cell"]["algorithm"] = {**record["cell"]["algorithm"], name: new}
        record["key"] = key_of(record["cell"])


@pytest.mark.parametrize("lie", LIES)
def test_what_a_file_should_not_say_is_named(made, tmp_path, said, lie):
    change, line = LIES[lie]
    changed(made, tmp_path / "b.json", change)
    code = {"another backend": 2, "other runs are left out": 0}.get(lie, 1)
    assert line in said(
        "verify", tmp_path / "b.json", "--cells", 0, "--no-theory", code=code
    )


def test_another_search_is_named(made, tmp_path, said):
    changed(
        made,
        tmp_path / "b.json",
        lambda pack: pack["run"]["searches"][0]["rounds"][0]["errors"].reverse(),
    )
    text = said("verify", tmp_path / "b.json", "--cells", 0, "--no-theory", code=1)
    assert "the search that chose its parameters is not in the file" in text


REFUSED = {
    "changes": (
        {"git_commit": f"{COMMIT}-dirty"},
        "others can run none of its rows again: line: ridge: smimbench had uncommitted changes",
    ),
    "versions": (
        {"versions": {"smimbench": "0"}},
        "some cells were run with other versions than run.json states ({'smimbench': '0'})",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_nobody_can_run_again_is_not_packed(made, tmp_path, case, said):
    changes, line = REFUSED[case]
    shutil.copytree(made / "results", tmp_path / "results")
    made_by(tmp_path / "results", **changes)
    words = (
        "--results",
        tmp_path / "results",
        "--by",
        "A",
        "--output",
        tmp_path / "b.json",
    )
    assert line in said("submit", made / "small.toml", *words, code=2)
    assert not (tmp_path / "b.json").exists()


def test_a_part_of_a_suite_is_not_packed(made, tmp_path, said):
    shutil.copytree(made / "results", tmp_path / "results")
    records_in(tmp_path / "results" / "small")[0].unlink()
    words = (
        "--results",
        tmp_path / "results",
        "--by",
        "A",
        "--output",
        tmp_path / "b.json",
    )
    assert "1 cells have not been run" in said(
        "submit", made / "small.toml", *words, code=2
    )


@pytest.mark.slow
def test_a_file_of_code_is_left_out_and_said(tmp_path):
    (tmp_path / "mine.py").write_text(NOISE)
    suite, results = (
        write_suite(
            tmp_path, suite_text(LINE, [1.0], 20, 2, 'name = "ridge"', 'name = "noise"')
        ),
        tmp_path / "r",
    )
    given = (suite, "--results", results, "--plugins", tmp_path / "mine.py")
    smimbench(tmp_path / "none", "run", *given, "--no-figure")
    made_by(results)
    said = smimbench(
        tmp_path / "none",
        "submit",
        *given,
        "--by",
        "A",
        "--output",
        tmp_path / "a.json",
    )
    assert (
        "line: noise is left out: noise comes from the file mine, not from a package that others can install"
        in said
    )
    assert {one["algorithm"] for one in board([tmp_path / "a.json"])} == {"ridge"}
    assert "all agree" in smimbench(
        tmp_path / "none", "verify", tmp_path / "a.json", "--cells", 2
    )


@pytest.mark.slow
def test_what_diverges_is_packed_and_run_again_and_what_is_for_other_problems_is_not(
    tmp_path, capsys
):
    problem = 'model = { name = "attention-indexed", tokens = 2 }\nchannel = "linear"\nprior = { name = "wishart", rho = 0.5 }'
    tables = (
        'name = "ridge"',
        'name = "adam"\nsteps = 20\nlearning_rate = 50.0',
        'name = "erm"',
    )
    suite, results = (
        write_suite(tmp_path, suite_text(problem, [0.3], 20, 2, *tables)),
        tmp_path / "results",
    )
    code, _, err = call(capsys, "run", suite, "--results", results, "--no-figure")
    assert code == 1, err
    made_by(results)
    words = ("--results", results, "--by", "A", "--output", tmp_path / "a.json")
    code, out, err = call(capsys, "submit", suite, *words)
    assert code == 0, err
    assert (
        ": erm is left out: the algorithm does not apply to this problem (all runs were skipped)"
        in err
    )
    assert [one["status_counts"] for one in board([tmp_path / "a.json"])] == [
        {"ok": 2},
        {"diverged": 2},
    ]
    out = silent(capsys, "verify", tmp_path / "a.json", "--cells", 6)
    assert "4 cells run again: all agree" in out


# -- the board ------------------------------------------------------------------------------------------------------------


def test_the_board_has_rankings_by_how_settings_were_chosen(made, plugin):
    entries = board([made / "a.json"])
    assert {(one["ranking"], one["algorithm"]) for one in entries} == {
        ("tuned, 2 trials", "sgd"), ("self-tuning", "ridge"), ("self-tuning", "noise"), ("self-tuning", "adam, steps 4"),
        ("self-tuning", "adam, steps 6"),
    }  # fmt: skip
    assert {one["contest"] for one in entries} == {"line, D = 20, alpha 0.5, 1"}
    own = [one for one in entries if one["ranking"] == "self-tuning"]
    assert own[0]["algorithm"] == "ridge"
    ratios = [one["ratio_to_limit"] for one in own]
    assert ratios == sorted(ratios)
    for one in own:
        low, high = one["interval"]
        assert low < one["ratio_to_limit"] < high
        if one["behind_leader"] is not None:
            below, above = one["behind_leader"]
            assert below <= above
            assert one["rank"] == 1 or below > 1
    text = page([made / "a.json"])
    assert "## line, D = 20, alpha 0.5, 1\n" in text
    assert "**Tuned, 2 trials**" in text
    assert "smimbench-noise 1.5" in text
    assert "A. Name" in text
    assert absent(made / "a.json") == []
    assert packages(made / "a.json") == ["smimbench-noise==1.5"]


def test_without_trajectories_passes_are_counted(made, plugin):
    rows = read_packed(made / "a.json")[0].rows
    passes = {
        row.place.algorithm: row.first_order.passes
        for row in rows
        if row.metric == "mse"
    }
    assert (passes["sgd"], passes["adam, steps 6"], passes["adam, steps 4"]) == (
        8,
        6,
        4,
    )
    assert passes["ridge"] is passes["noise"] is None


def test_the_sentence_is_written_from_the_numbers():
    def entry(worth, **more):
        usual = {
            "algorithm": "adam",
            "contest": "line, D = 20, alpha 1",
            "ranking": "tuned, 16 trials",
            "passes": 300.0,
            "is_compared": True,
            "worth_passes": worth,
        }
        return {**usual, **more}

    words = in_words(
        [
            entry(1.5),
            entry(0.0, algorithm="lion"),
            entry(4.26, contest="probit, D = 400, alpha 3"),
            entry(None),
            entry(9.0, ranking="self-tuning"),
        ]
    )
    assert "make 300 passes" in words
    assert (
        "0.0 (lion on line) to 4.3 passes (adam on probit), 1.5 in the median" in words
    )
    assert "1 of 4 errors" in words
    assert in_words([entry(None, is_compared=False)]) == ""


@pytest.mark.slow
def test_intervals_against_the_leader_hold_together(monkeypatch):
    """Thirteen contenders as good as the leader: in 5% of all boards, within chance, one of them looks different; by single
    intervals of Student's t it would be in 40%."""
    monkeypatch.setattr("tools.board.RESAMPLINGS", 2000)
    rng = np.random.default_rng(5)
    wrong, wrong_alone = 0, 0
    for _ in range(400):
        leader, rivals = rng.normal(size=32), rng.normal(size=(13, 32))
        logs = np.vstack([leader, leader + 0.3 * rivals])
        runs = [dict(zip(map(str, range(32)), row)) for row in logs]
        intervals = simultaneous_intervals(runs, 0.95)
        assert intervals[0] == [1.0, 1.0]
        wrong += not all(low <= 1 <= high for low, high in intervals)
        t = rivals.mean(axis=1) / (rivals.std(axis=1, ddof=1) / math.sqrt(32))
        wrong_alone += bool((abs(t) > 2.04).any())
    assert 7 <= wrong <= 33  # 20 +- 3 standard deviations
    assert wrong_alone > 120


def test_intervals_against_the_leader_see_a_difference_and_skip_what_is_missing():
    leader = {str(i): 0.01 * (-1) ** i for i in range(20)}
    worse = {i: log + 0.1 + 0.02 * (int(i) % 3) for i, log in leader.items()}
    few = {"3": 1.0}
    fewer_runs = dict(list(worse.items())[:8])
    _, first, none, second = simultaneous_intervals(
        [leader, worse, few, fewer_runs], 0.99
    )
    mean = math.exp(np.mean([worse[i] - leader[i] for i in leader]))
    assert 1 < first[0] < mean < first[1]
    assert none is None
    assert second[1] / second[0] > first[1] / first[0]


def test_the_picture_has_a_row_for_every_contender(made, plugin, tmp_path):
    picture([made / "a.json"], tmp_path / "board.svg")
    drawn = (tmp_path / "board.svg").read_text()
    for name in ("ridge", "noise", "sgd", "adam, steps 4", "CPU seconds"):
        assert name in drawn


def test_a_contender_whose_package_is_not_installed_is_named(made):
    (line,) = absent(made / "a.json")
    assert "a.json: left out: small.toml: algorithms[1].name" in line


def test_of_what_was_submitted_twice_the_newest_is_there(made, plugin, tmp_path):
    changed(
        made,
        tmp_path / "b.json",
        lambda pack: pack["run"].update(by="B", written=pack["run"]["written"] + 1),
    )
    for paths in (
        [made / "a.json", tmp_path / "b.json"],
        [tmp_path / "b.json", made / "a.json"],
    ):
        entries = board(paths)
        assert len(entries) == len(board([made / "a.json"]))
        assert {one["by"] for one in entries} == {"B"}


def test_a_row_that_cannot_be_run_again_is_not_on_the_board(made, plugin, tmp_path):
    changed(made, tmp_path / "b.json", lambda pack: pack["run"].pop("by"))
    assert board([tmp_path / "b.json"]) == []
    assert absent(tmp_path / "b.json")[0].endswith(
        "b.json: line: ridge is not on the board: the submission does not name its author"
    )
    changed(made, tmp_path / "b.json", lambda pack: pack["run"]["packages"].clear())
    assert "noise" not in {one["algorithm"] for one in board([tmp_path / "b.json"])}


def test_what_a_stranger_writes_does_not_change_the_page(made, plugin, tmp_path):
    changed(
        made, tmp_path / "b.json", lambda pack: pack["run"].update(by="<script>|a\n# b")
    )
    text = page([tmp_path / "b.json"])
    assert "<script>" not in text
    assert text.count("\n#") == page([made / "a.json"]).count("\n#")


def test_a_reference_is_no_submission():
    assert (
        rerun_obstacle({}, {"versions": {"smimbench": "1"}})
        == "the submission does not name its author"
    )


@pytest.mark.slow
def test_a_plugin_with_other_code_is_named(made, tmp_path):
    install_package(
        tmp_path,
        "smimbench-noise",
        {"noise_of_mine": NOISE.replace("0.5 *", "0.6 *")},
        "1.5",
    )
    said = smimbench(
        tmp_path, "verify", made / "a.json", "--cells", 0, "--no-theory", code=1
    )
    assert "6 records belong to no cell of the suite and appear in no table" in said
    assert "line, noise, alpha 1, D = 20, replicate 2, numpy" in said
