"""Solving elsewhere: an instance goes out, an estimate comes back as a row."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from smimbench import load_suite
from smimbench.theory.cache import TheoryCache
from tests.helpers import SUITE, call, write_suite

POINT = ("--only", "alpha=1.0", "--only", "seed=1")


def sent(folder, capsys, *options):
    suite, file = write_suite(folder, SUITE), folder / "instance.npz"
    code, out, _ = call(capsys, "data", suite, "--output", file, "--json", *options)
    assert code == 0
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
    code, out, _ = call(capsys, "data", suite, "--output", tmp_path / "i.npz", *POINT, "--set", "grid.seed=3")
    assert code == 0
    assert "--only alpha=1.0 --only seed=1 --set grid.seed=3" in " ".join(out.split())


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
    code, out, _ = call(capsys, "score", suite, "--estimate", answer, "--label", "ridge", "--json", *POINT)
    assert code == 0
    rows = {row["metric"]: row for row in json.loads(out)["rows"]}
    assert rows["mse"]["algorithm"] == "ridge"
    assert rows["mse"]["alpha"] == 1.0
    assert 0.4 < rows["mse"]["ratio_to_bayes"] < 2.0
    # for another instance it is worth nothing
    _, out, _ = call(capsys, "score", suite, "--estimate", answer, "--json", "--only", "alpha=1.0", "--only", "seed=0")
    other = {row["metric"]: row for row in json.loads(out)["rows"]}
    assert other["mse"]["mean"] > 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"estimate": np.zeros((1, 7))}, r"estimate: must have the shape \(1, 30\), got \(1, 7\)"),
        ({"W": np.zeros((1, 30))}, r"estimate: is missing; the file holds W"),
    ],
)
def test_a_wrong_estimate_is_one_line(tmp_path, capsys, arrays, message):
    suite, answer = write_suite(tmp_path, SUITE), tmp_path / "answer.npz"
    np.savez(answer, **arrays)
    code, _, err = call(capsys, "score", suite, "--estimate", answer)
    assert code == 2
    assert re.search(message, err)


def test_an_estimate_of_two_components_has_a_row_for_each(tmp_path, capsys, monkeypatch):
    # The theory of two layers takes minutes, and is not what is asked here.
    point = {"alpha": 0.5, "mse": [0.4, 0.6], "mse_error": [0.0, 0.0], "overlap": [[0.6, 0.0], [0.0, 0.4]]}
    point |= {"squared_cosine": [0.6, 0.4], "squared_cosine_error": [0.0, 0.0]}
    monkeypatch.setattr(TheoryCache, "points", lambda *_: [[point]])
    text = SUITE.replace('{ name = "linear", noise = 0.2 }', '{ name = "softmax", layers = 2 }')
    path = write_suite(tmp_path, text)
    np.savez(tmp_path / "found.npz", estimate=np.zeros((2, 30)))
    code, out, err = call(capsys, "score", path, "--estimate", tmp_path / "found.npz", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert [(row["metric"], row["component"]) for row in rows] == [
        ("mse", 1), ("mse", 2), ("overlap", 1), ("overlap", 2),
    ]  # fmt: skip
    assert all(row["backend"] == "elsewhere" and row["n"] == 1 for row in rows)
    assert [row["theory"] for row in rows] == [0.4, 0.6, 0.6, 0.4]


def test_an_estimate_of_nan_is_a_row_that_says_so(tmp_path, capsys):
    suite, answer = write_suite(tmp_path, SUITE), tmp_path / "answer.npz"
    np.savez(answer, estimate=np.full((1, 30), np.nan))
    code, out, _ = call(capsys, "score", suite, "--estimate", answer, "--json")
    assert code == 1
    assert json.loads(out)["rows"][0]["status_counts"] == {"diverged": 1}


def test_a_file_that_is_no_npz_is_one_line(tmp_path, capsys):
    suite, answer = write_suite(tmp_path, SUITE), tmp_path / "answer.npz"
    answer.write_text("no")
    code, _, err = call(capsys, "score", suite, "--estimate", answer)
    assert code == 2
    assert "cannot be read as .npz" in err
