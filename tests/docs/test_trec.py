"""What tools/trec.py trains: its gradient against finite differences, masks, and made-up questions that need attention."""

import importlib.util

import numpy as np
import pytest

from tests.helpers import ROOT

spec = importlib.util.spec_from_file_location("trec", ROOT / "tools" / "trec.py")
trec = importlib.util.module_from_spec(spec)
spec.loader.exec_module(trec)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(trec, "DIMENSION", 7)
    monkeypatch.setattr(trec, "WIDTH", 3)


def some(rng):
    words = np.array(
        [[2, 3, 4, 0, 0], [5, 1, 2, 3, 6], [4, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    )
    weights = trec.Weights.drawn(rng, 8, 3)
    grown = [w + rng.standard_normal(w.shape) for w in weights]
    return trec.Weights(*grown), trec.Questions(words, np.array([0, 2, 1, 2]))


@pytest.mark.parametrize("skip", [0.0, 1.3])
@pytest.mark.parametrize("mask", trec.MASKS)
def test_the_gradient_is_that_of_finite_differences(skip, mask, small, rng):
    weights, data = some(rng)
    gradient = trec.loss_and_gradient(weights, data, skip, mask)[2]
    for name in weights._fields:
        along = rng.standard_normal(getattr(weights, name).shape)
        two = [
            trec.loss_and_gradient(
                weights._replace(**{name: getattr(weights, name) + s * 1e-5 * along}),
                data,
                skip,
                mask,
            )[0]
            for s in (1, -1)
        ]
        assert np.sum(getattr(gradient, name) * along) == pytest.approx(
            (two[0] - two[1]) / 2e-5, rel=1e-6, abs=1e-9
        ), name


@pytest.mark.parametrize("mask", trec.MASKS)
def test_attention_written_out(mask, small, rng):
    """One question, one score at a time, from the formula."""
    weights, data = some(rng)
    one = trec.Questions(data.words[:1, : 5 if mask == "none" else 3], data.classes[:1])
    X = weights.embedding[one.words[0]]
    for W, c in ((weights.first, 0.7), (weights.second, 0.0)):
        A = np.array([[np.exp((W @ x) @ (W @ y) / np.sqrt(3)) for y in X] for x in X])
        A = np.tril(A) if mask == "causal" else A
        X = A / A.sum(axis=1, keepdims=True) @ X + c * X
    scores = X.mean(axis=0) @ weights.readout + weights.bias
    loss, found, _ = trec.loss_and_gradient(weights, data, 0.7, mask)
    np.testing.assert_allclose(found[0], scores, rtol=1e-12)
    logs = found - np.log(np.sum(np.exp(found), axis=1, keepdims=True))
    assert loss == pytest.approx(-np.mean(logs[[0, 1, 2, 3], data.classes]))


def test_files(tmp_path, rng):
    file = tmp_path / "questions.label"
    file.write_bytes(
        "HUM:ind Who was Andr\xe9 ?\nLOC:city Where was Andr\xe9 's house ?\n\nLOC:city Where ?\n".encode(
            "latin-1"
        )
    )
    sentences, names = trec.read(file)
    assert sentences == [
        ["who", "was", "andr\xe9"],
        ["where", "was", "andr\xe9", "s", "house"],
        ["where"],
    ]
    assert names == ["HUM", "LOC", "LOC"]
    data, held, size = trec.split(
        [*sentences * 5, ["once", "who"]], [*names * 5, "HUM"], rng
    )
    assert (len(data.classes), len(held.classes)) == (13, 3)
    assert data.words.max() == size - 1
    lengths = np.count_nonzero(np.concatenate([data.words, held.words]), axis=1)
    assert sorted(lengths) == [1] * 5 + [2] + [3] * 5 + [5] * 5
    assert (
        np.sum(np.concatenate([data.words, held.words]) == trec.UNKNOWN) == 1
    )  # "once"
    for text, words in (
        ("HUM:ind Who ?\nwhat\n", "line 2: must be 'COARSE:fine question', got 'what'"),
        ("", "at least two classes"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=words):
            trec.read(file)


@pytest.mark.slow
def test_made_up_questions_need_attention_and_are_learned(tmp_path, monkeypatch):
    file = tmp_path / "made.label"
    file.write_text(trec.generated(1500, np.random.default_rng(1)), encoding="latin-1")
    data, held, size = trec.split(*trec.read(file), np.random.default_rng(0))
    # Counts of words tell the three topics and nothing more: linear in them, half of the questions are right.
    counts, wanted = (
        np.stack([np.bincount(row, minlength=size) for row in part.words])
        for part in (data, held)
    )
    linear = np.linalg.lstsq(counts, np.eye(6)[data.classes], rcond=None)[0]
    assert np.mean(np.argmax(wanted @ linear, axis=1) == held.classes) < 0.6
    for name, value in {"DIMENSION": 24, "WIDTH": 8, "RATE": 2e-3}.items():
        monkeypatch.setattr(trec, name, value)
    found = {
        (c, m): [trec.train(data, held, size, c, m, 8, 0)]
        for c, m in ((1.0, "padding"), (0.0, "none"))
    }
    (run,) = found[1.0, "padding"]
    assert run.accuracy[0] < 0.4
    assert run.accuracy[-1] > 0.9
    np.testing.assert_allclose(run.overlap[[0, -1]], [[0, 0], [1, 1]], atol=1e-12)
    assert np.allclose(run.loss_increase[0], 0)
    assert run.loss_increase[-1].max() > 0.3
    lines = [line.strip("|").split("|") for line in trec.table(found).splitlines()]
    assert {len(line) for line in lines} == {8}
    assert [line[0].strip() for line in lines[2:]] == ["1", "0"]
    assert lines[2][2].strip().startswith(f"{run.accuracy[-1]:.2f}")


def test_half_way():
    path = np.array([[0.0, 0.0], [0.2, 0.9], [0.7, 0.4], [1.0, 1.0]])
    np.testing.assert_allclose(trec.half_way(path), [1.6, 0.5 / 0.9])
