"""Solving elsewhere: an instance goes out, an estimate comes back as a row."""

import io
import json
import os
import re
import zipfile

import numpy as np
import pytest

import smimbench
from smimbench import load_suite
from smimbench.run.answers import Answers, document_of
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory.types import TheoryPoint
from tests.helpers import (
    ATTENTION,
    SUITE,
    call,
    flat,
    loaded,
    output,
    refusal,
    silent,
    write_suite,
)

POINT = ("--only", "alpha=1.0", "--only", "seed=1")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """The folder ``results`` is that of the test."""
    monkeypatch.chdir(tmp_path)


def sent(folder, capsys, *options):
    suite, file = write_suite(folder, SUITE), folder / "instance.npz"
    out = output(capsys, "data", suite, "--output", file, "--json", *options)
    return suite, file, json.loads(out)


def test_an_instance_is_the_one_of_the_cell_and_hides_the_teacher(tmp_path, capsys):
    suite, file, about = sent(tmp_path, capsys, *POINT)
    with np.load(file) as arrays:
        assert sorted(arrays.files) == ["about", "inputs", "labels"]
        inputs, labels = arrays["inputs"], arrays["labels"]
    instance = load_suite(suite).plans[0].problem.instance(1.0, 30, 1, seed=0)
    np.testing.assert_array_equal(inputs, instance.inputs)
    np.testing.assert_array_equal(labels, instance.labels)
    assert about["alpha"] == 1.0
    assert about["seed"] == 1
    assert about["estimate_shape"] == list(instance.signal.shape)


def test_the_line_to_go_on_with_names_the_same_instance(tmp_path, capsys):
    suite = write_suite(tmp_path, SUITE)
    out = output(
        capsys,
        "data",
        suite,
        "--output",
        tmp_path / "i.npz",
        *POINT,
        "--set",
        "grid.seed=3",
    )
    assert "--set grid.seed=3 --only alpha=1.0 --only seed=1" in flat(out)


def test_least_squares_done_elsewhere_is_scored_against_the_limit(tmp_path, capsys):
    suite, file, about = sent(tmp_path, capsys, *POINT)
    with np.load(file) as arrays:
        X, y = arrays["inputs"], arrays["labels"]
    D = X.shape[-1]
    # z = sqrt(1/D) W x for each of the tokens, and a prior of unit variance: ridge regression is optimal
    rows, targets = X.reshape(-1, D) / np.sqrt(D), y.reshape(-1)
    W = np.linalg.solve(rows.T @ rows + 0.2 * np.eye(D), rows.T @ targets)
    answer = tmp_path / "answer.npz"
    np.savez(answer, estimate=W.reshape(about["estimate_shape"]))
    out = output(
        capsys,
        "score",
        suite,
        "--estimate",
        answer,
        "--label",
        "ridge",
        "--json",
        *POINT,
    )
    rows = {row["metric"]: row for row in json.loads(out)["rows"]}
    assert rows["mse"]["algorithm"] == "ridge"
    assert rows["mse"]["alpha"] == 1.0
    assert 0.4 < rows["mse"]["ratio_to_bayes"] < 2.0
    # for another instance it is worth nothing
    _, out, _ = call(
        capsys,
        "score",
        suite,
        "--estimate",
        answer,
        "--json",
        "--only",
        "alpha=1.0",
        "--only",
        "seed=0",
    )
    other = {row["metric"]: row for row in json.loads(out)["rows"]}
    assert other["mse"]["mean"] > 1


def test_an_estimate_of_nan_is_a_row_that_says_so(tmp_path, capsys):
    suite, answer = write_suite(tmp_path, SUITE), tmp_path / "answer.npz"
    np.savez(answer, estimate=np.full((1, 30), np.nan))
    code, out, _ = call(capsys, "score", suite, "--estimate", answer, "--json")
    assert code == 1
    (row, *_) = json.loads(out)["rows"]
    assert row["status_counts"] == {"diverged": 1}
    assert "the estimate has 30 NaN, first at [0, 0]" in row["reasons"][0]


def test_an_estimate_too_large_for_its_square_is_a_row_that_says_so(tmp_path, capsys):
    suite, answer = write_suite(tmp_path, SUITE), tmp_path / "answer.npz"
    np.savez(answer, estimate=np.full((1, 30), -1e160))
    code, out, err = call(capsys, "score", suite, "--estimate", answer, "--json")
    assert (code, "Warning" in err) == (1, False)
    (row, *_) = json.loads(out)["rows"]
    assert row["status_counts"] == {"diverged": 1}
    assert "numbers that are too large to be scored, up to 1e+160" in row["reasons"][0]


def _estimate(**arrays):
    def write(path):
        np.savez(path, **arrays)

    return write


def _packed(*parts):
    def write(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, data in parts:
                packed.writestr(name, data)

    return write


def _npy(array, **change):
    buffer = io.BytesIO()
    np.save(buffer, array)
    data = buffer.getvalue()
    for old, new in change.values():
        data = data.replace(old, new)
    return data


SOUND = _npy(np.zeros((1, 30)))
BAD = {
    "another shape": (
        _estimate(estimate=np.zeros((1, 7))),
        r"estimate: the array must have the shape \(1, 30\), got \(1, 7\)",
    ),
    "another name": (
        _estimate(W=np.zeros((1, 30))),
        "estimate: the array is missing; the file holds W",
    ),
    "no zip": (lambda path: path.write_text("no"), "cannot be read as .npz"),
    "a pipe": (
        lambda path: os.mkfifo(path),
        "is no regular file; write the estimate to an .npz first",
    ),
    "a device": (
        lambda path: path.symlink_to("/dev/zero"),
        "is no regular file; write the estimate to an .npz first",
    ),
    "a directory": (lambda path: path.mkdir(), "is a directory"),
    "complex": (
        _estimate(estimate=np.ones((1, 30)) + 1j),
        "must hold real numbers, got the type complex128",
    ),
    "dates": (
        _estimate(estimate=np.zeros((1, 30), "M8[s]")),
        "must hold real numbers, got the type datetime64",
    ),
    "objects": (
        _estimate(estimate=np.full((1, 30), None)),
        "cannot be read as .npz: ValueError: Object arrays",
    ),
    "a scalar": (
        _estimate(estimate=1.0),
        r"the array must have the shape \(1, 30\), got \(\)",
    ),
    "too many axes": (_estimate(estimate=np.zeros((1,) * 40)), "got \\(1, 1, 1"),
    "nothing": (_packed(), "the array is missing; the file holds nothing"),
    "no array": (
        _packed(("estimate.npy", b"hello")),
        "must hold real numbers, got the type",
    ),
    "cut": (_packed(("estimate.npy", SOUND[:200])), "cannot be read as .npz"),
    "another head": (
        _packed(
            ("estimate.npy", _npy(np.zeros((1, 30)), shape=(b"(1, 30)", b"(9, 99)")))
        ),
        "cannot be read as .npz",
    ),
    "a bomb": (
        _packed(("estimate.npy", _npy(np.zeros((3000, 3000))))),
        "is larger than 16 MB",
    ),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", BAD)
def test_every_kind_of_bad_estimate_is_one_line(tmp_path, capsys, name):
    spoil, message = BAD[name]
    suite, answer = write_suite(tmp_path, SUITE), tmp_path / "answer.npz"
    spoil(answer)
    err = refusal(capsys, "score", suite, "--estimate", answer)
    assert re.search(message, err)


def test_data_on_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path, capsys, monkeypatch
):
    def full(handle):
        raise OSError(28, "No space left on device")

    suite = write_suite(tmp_path, SUITE)
    monkeypatch.setattr(os, "fsync", full)
    err = refusal(capsys, "data", suite, "--output", tmp_path / "out" / "instance.npz")
    assert re.fullmatch(
        r"smimbench: cannot write .*instance.npz: No space left on device\n", err
    )
    assert not list((tmp_path / "out").iterdir())


def test_a_theory_file_copied_over_another_is_not_believed(tmp_path):
    suite = loaded(tmp_path, SUITE)
    problem = suite.plans[0].problem
    right = TheorySolver().points(problem, [0.5, 1.0])
    TheorySolver(tmp_path / "theory").points(problem, [0.5, 1.0])
    first, second = sorted((tmp_path / "theory").glob("point-*.json"))
    first.write_bytes(second.read_bytes())
    found = TheorySolver(tmp_path / "theory").points(problem, [0.5, 1.0])
    assert document_of(found) == document_of(right)


def test_many_estimates_are_one_row_for_each_sample_ratio(tmp_path, capsys):
    """Two replicates at each of two sample ratios; the mean is that of the four scored one by one."""
    suite, shape = write_suite(tmp_path, SUITE), (1, 30)
    options, single = [], {}
    for alpha in (0.5, 1.0):
        for seed in (0, 1):
            file = tmp_path / f"{alpha}-{seed}.npz"
            np.savez(file, estimate=np.random.default_rng(seed).normal(size=shape))
            options += ["--estimate", file]
            only = ("--only", f"alpha={alpha}", "--only", f"seed={seed}")
            _, out, _ = call(
                capsys, "score", suite, "--estimate", file, "--json", *only
            )
            single[alpha, seed] = next(
                r["mean"] for r in json.loads(out)["rows"] if r["metric"] == "mse"
            )
    out = output(capsys, "score", suite, *options, "--json")
    rows = [row for row in json.loads(out)["rows"] if row["metric"] == "mse"]
    assert [(row["nominal_alpha"], row["n"]) for row in rows] == [(0.5, 2), (1.0, 2)]
    for row in rows:
        assert row["mean"] == pytest.approx(
            np.mean([single[row["nominal_alpha"], seed] for seed in (0, 1)])
        )
    err = refusal(capsys, "score", suite, *options, *options[:2])
    assert "too few points of this suite: 4 for 5 estimates" in err


def scored(folder, capsys, suite, label, *options, value=0.0):
    """Score an estimate whose entries are all ``value`` of the first point that the options leave."""
    np.savez(folder / "found.npz", estimate=np.full((1, 30), value))
    results = ("--results", folder / "results")
    return call(
        capsys,
        "score",
        suite,
        "--estimate",
        folder / "found.npz",
        "--label",
        label,
        "--quiet",
        *results,
        *options,
    )


def test_a_score_stays_and_stands_beside_what_was_run(tmp_path, capsys):
    suite, results = write_suite(tmp_path, SUITE), tmp_path / "results"
    call(
        capsys,
        "run",
        suite,
        "--results",
        results,
        "--workers",
        "1",
        "--no-figure",
        "--only",
        "algorithm=gamp",
    )
    for seed in "01":
        assert (
            scored(
                tmp_path,
                capsys,
                suite,
                "zero [red]",
                *POINT[:2],
                "--only",
                f"seed={seed}",
            )[0]
            == 0
        )
    code, out, _ = call(capsys, "show", suite, "--results", results, "--json", "--full")
    found = json.loads(out)
    (row,) = [
        r
        for r in found["rows"]
        if r["algorithm"] == "zero [red]" and r["metric"] == "mse"
    ]
    assert (row["backend"], row["n"], row["alpha"], row["status_counts"]) == (
        "elsewhere",
        2,
        1.0,
        {"ok": 2},
    )
    assert row["mean"] == pytest.approx(
        1.0, rel=0.3
    )  # an estimate of zero errs by the norm of the signal
    # It has no estimate at the other sample ratio: behind those that have one everywhere.
    names = [one["algorithm"] for one in found["verdicts"][0]["contenders"]]
    assert names == ["gamp", "zero [red]"]
    assert found["verdicts"][0]["contenders"][1]["missing"] == 1
    assert (
        code == 1
    )  # adam has not run: that an estimate from elsewhere is there makes up for no cell
    assert "zero [red]" in call(capsys, "show", suite, "--results", results)[1]
    rows = smimbench.show(suite, results=results)
    assert "zero [red]" in {r["algorithm"] for r in rows}
    assert rows._repr_html_().count("<tr>") == 1 + 2 + 1 + len(rows)
    assert re.search(r"<td[^>]*>[+-]\d+\.\d\?", rows._repr_html_()), (
        "z of two runs is not marked"
    )
    assert "zero [red]" in {
        r["algorithm"] for r in records_of(smimbench.load(results).values)
    }


def records_of(frame):
    return frame if isinstance(frame, list) else frame.to_dict("records")


def test_another_estimate_under_the_same_label_takes_the_place_of_the_first(
    tmp_path, capsys
):
    suite, results = write_suite(tmp_path, SUITE), tmp_path / "results"
    for value in (0.0, 3.0):
        scored(tmp_path, capsys, suite, "mine", *POINT, value=value)
    _, out, _ = call(capsys, "show", suite, "--results", results, "--json")
    (row,) = [r for r in json.loads(out)["rows"] if r["metric"] == "mse"]
    assert row["n"] == 1
    assert row["mean"] > 2  # of the second
    assert len(list((results / "small" / "scored" / "set-aside").glob("*.json"))) == 1


def test_scores_of_another_problem_size_or_root_seed_are_not_shown(tmp_path, capsys):
    suite, results = write_suite(tmp_path, SUITE), tmp_path / "results"
    scored(tmp_path, capsys, suite, "mine", *POINT)
    for change in ("grid.seed=7", "problem.channel.noise=0.5", "grid.dimension=31"):
        code, _, err = call(
            capsys, "show", suite, "--results", results, "--set", change
        )
        assert (code, "no results" in err) == (2, True), change
    assert (
        call(
            capsys,
            "show",
            suite,
            "--results",
            results,
            "--set",
            "problem.channel.version=9",
        )[0]
        == 2
    )


def test_a_label_of_the_suite_is_told_apart(tmp_path, capsys):
    suite, results = write_suite(tmp_path, SUITE), tmp_path / "results"
    call(
        capsys,
        "run",
        suite,
        "--results",
        results,
        "--workers",
        "1",
        "--no-figure",
        "--only",
        "algorithm=gamp",
    )
    scored(tmp_path, capsys, suite, "gamp", *POINT)
    _, out, _ = call(capsys, "show", suite, "--results", results, "--json")
    names = [one["algorithm"] for one in json.loads(out)["verdicts"][0]["contenders"]]
    assert names == ["gamp", "gamp@elsewhere"]


def test_a_score_that_was_edited_is_not_believed(tmp_path, capsys):
    suite, results = write_suite(tmp_path, SUITE), tmp_path / "results"
    scored(tmp_path, capsys, suite, "mine", *POINT)
    (path,) = (results / "small" / "scored").glob("*.json")
    path.write_text(path.read_text().replace('"samples": 30', '"samples": 31'))
    assert call(capsys, "show", suite, "--results", results)[0] == 2
    code, out, _ = call(capsys, "verify", suite, "--results", results)
    assert code == 1
    assert "digest" in out


def test_a_score_of_another_suite_of_the_same_name_is_no_business_of_theory(
    tmp_path, capsys
):
    """Without data, at rho = 0, there is nothing that an estimate could be of."""
    results = ("--results", tmp_path / "r")
    np.savez(tmp_path / "answer.npz", estimate=np.ones((1, 30, 30)))
    suite = write_suite(tmp_path, ATTENTION)
    output(capsys, "score", suite, "--estimate", tmp_path / "answer.npz", *results)
    write_suite(
        tmp_path,
        ATTENTION.replace("rho = 0.5", "rho = 0.0").partition("[[algorithms]]")[0],
    )
    out = silent(capsys, "theory", suite, "--no-thresholds", *results)
    assert "closed form" in out
    refusal(capsys, "show", suite, *results)
    err = refusal(
        capsys, "score", suite, "--estimate", tmp_path / "answer.npz", *results
    )
    assert "must be > 0 to run" in err


def test_an_estimate_of_two_components_has_a_row_for_each(
    tmp_path, capsys, monkeypatch
):
    # The theory of two layers takes minutes, and is not what is asked here.
    zero = np.zeros(2)
    point = TheoryPoint(
        0.5, np.array([0.4, 0.6]), zero, zero, np.diag([0.6, 0.4]), "unique", "made up",
        squared_cosine=[0.6, 0.4], squared_cosine_error=[0.0, 0.0],
    )  # fmt: skip
    for kind in (TheorySolver, Answers):
        monkeypatch.setattr(kind, "points", lambda *_: [[point]])
    text = SUITE.replace(
        '{ name = "linear", noise = 0.2 }', '{ name = "softmax", layers = 2 }'
    )
    path = write_suite(tmp_path, text)
    np.savez(tmp_path / "found.npz", estimate=np.zeros((2, 30)))
    out = silent(capsys, "score", path, "--estimate", tmp_path / "found.npz", "--json")
    rows = json.loads(out)["rows"]
    assert [(row["metric"], row["component"]) for row in rows] == [
        ("mse", 1), ("mse", 2), ("overlap", 1), ("overlap", 2),
    ]  # fmt: skip
    assert all(row["backend"] == "elsewhere" and row["n"] == 1 for row in rows)
    assert [row["theory"] for row in rows] == [0.4, 0.6, 0.6, 0.4]
