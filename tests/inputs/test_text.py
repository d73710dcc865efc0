"""Words of a text: their embedding by hand, the half that whitens against the half that is used, shuffling, files."""

import math
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.inputs.text import Text, _learn_vectors, mutual_information

from smimbench.problem.problem import Problem, ProblemError
from smimbench.testing import check

MODEL = {"name": "sequence-multi-index", "tokens": 2}


def problem_of(inputs="text", tokens=2):
    return Problem(
        {**MODEL, "tokens": tokens},
        {"name": "linear", "noise": 0.1},
        "gaussian",
        inputs,
    )


def generated(n, seed=1, vocabulary=60, questions=False):
    """Sentences of words in which each follows from the one before."""
    rng = np.random.default_rng(seed)
    names = [
        "".join(chr(97 + int(c)) for c in rng.integers(0, 26, 5))
        for _ in range(vocabulary)
    ]
    lines = []
    for _ in range(n):
        start = int(rng.integers(vocabulary))
        words = [
            names[(start + 3 * k + int(rng.integers(3))) % vocabulary] for k in range(8)
        ]
        lines.append(
            ("HUM:ind " if questions else "") + " ".join(words).capitalize() + "?"
        )
    return "\n".join(lines)


def moments(item, D):
    """Mean square of the mean, and eigenvalues of the covariance, of all tokens of all samples."""
    vectors, samples = item.embedded(2, D)
    x = vectors[samples].reshape(-1, D)
    return np.sum(x.mean(axis=0) ** 2) / D, np.linalg.eigvalsh(np.cov(x.T, bias=True))


@pytest.mark.parametrize("window", [1, 4])
def test_mutual_information_counts_pairs(window):
    """Against two loops over all pairs of words."""
    rng = np.random.default_rng(window)
    sentences = [rng.integers(0, 12, k) for k in (0, 1, 7, 30, 3)]
    N = np.zeros((12, 12))
    for words in sentences:
        for i, v in enumerate(words):
            for j, w in enumerate(words):
                N[v, w] += i != j and abs(i - j) <= window
    with np.errstate(divide="ignore", invalid="ignore"):
        P = np.nan_to_num(
            np.maximum(np.log(N * N.sum() / np.outer(N.sum(0), N.sum(0))), 0), nan=0
        )
    assert_allclose(mutual_information(sentences, 12, window).toarray(), P, atol=1e-14)


def test_vectors_span_the_leading_singular_space(tmp_path):
    """Found again from the file: splitting by hand, a dense SVD, and least squares of its vectors by those of the item."""
    (tmp_path / "own.txt").write_text(generated(400))
    item = Text(path=str(tmp_path / "own.txt"), window=2)
    vectors, _ = item.embedded(2, 6)
    learned = [
        re.findall("[a-z]+", line.lower()) for line in generated(400).splitlines()[::2]
    ]
    flat = [word for words in learned for word in words]
    number = {
        word: i
        for i, word in enumerate(
            sorted(set(flat), key=lambda word: (-flat.count(word), word))
        )
    }
    P = mutual_information(
        [np.array([number[w] for w in words]) for words in learned], len(number), 2
    ).toarray()
    U = np.linalg.svd(P)[0][:, :6]
    basis = np.column_stack([vectors, np.ones(len(vectors))])  # less their mean
    assert_allclose(basis @ np.linalg.lstsq(basis, U, rcond=None)[0], U, atol=1e-8)
    weights = np.array([flat.count(word) for word in number]) / len(flat)
    assert_allclose(weights @ vectors, 0, atol=1e-10)
    assert_allclose(vectors.T @ (weights[:, None] * vectors), np.eye(6), atol=1e-9)


def test_what_is_used_is_nearly_white():
    """The other half of the standard library's text: near the mean 0 and the covariance 1, and not exactly there."""
    mean, values = moments(Text(), 64)
    assert 1e-6 < mean < 2e-3
    assert 0.5 < values[0] < 0.9 < 1.1 < values[-1] < 1.6
    assert abs(values.mean() - 1) < 0.05
    # Other words than those that whiten: that covariance does not carry over, which is why it is not the default.
    assert moments(Text(split="vocabulary"), 64)[1][-1] > 5


def test_the_halves_of_the_vocabulary_have_no_word_in_common(tmp_path):
    (tmp_path / "own.txt").write_text(generated(400))
    path = str(tmp_path / "own.txt")
    vectors, samples = Text(path=path, split="vocabulary").embedded(2, 6)
    used = np.unique(samples)
    assert set(used % 4) == {1, 2}
    weights = np.zeros(len(vectors))  # occurrences of the others, in the whole text
    flat = re.findall("[a-z]+", generated(400).lower())
    ranked = sorted(set(flat), key=lambda word: (-flat.count(word), word))
    for i, word in enumerate(ranked):
        weights[i] = flat.count(word) * (i % 4 in (0, 3))
    weights /= weights.sum()
    assert_allclose(vectors.T @ (weights[:, None] * vectors), np.eye(6), atol=1e-9)


def test_samples_are_consecutive_words_of_the_other_sentences(tmp_path):
    text = generated(60, vocabulary=20)
    (tmp_path / "own.txt").write_text(text)
    vectors, samples = Text(path=str(tmp_path / "own.txt")).embedded(3, 5)
    lines = [re.findall("[a-z]+", line.lower()) for line in text.splitlines()]
    flat = [word for words in lines[::2] for word in words]
    names = sorted(set(flat), key=lambda word: (-flat.count(word), word))
    wanted = []
    for words in lines[1::2]:
        known = [word for word in words if word in names]
        wanted += [known[i : i + 3] for i in range(0, len(known) - 2, 3)]
    assert [[names[i] for i in sample] for sample in samples] == wanted
    drawn = Text(path=str(tmp_path / "own.txt")).draw(
        np.random.default_rng(1), len(samples), 3, 5
    )
    rows = (x.reshape(len(samples), -1) for x in (vectors[samples], drawn))
    assert_array_equal(*(x[np.lexsort(x.T)] for x in rows))  # each of them once


@pytest.mark.parametrize("normalized", [False, True])
def test_shuffling_keeps_the_words_and_ends_their_correlation(normalized):
    texts = [
        Text(normalized=normalized, shuffled=shuffled) for shuffled in (False, True)
    ]
    n = len(texts[0].embedded(2, 32)[1])
    D = 32
    plain, shuffled = (text.draw(np.random.default_rng(3), n, 2, D) for text in texts)
    for feature in (0, 31):
        assert_array_equal(
            np.sort(plain[:, :, feature].ravel()),
            np.sort(shuffled[:, :, feature].ravel()),
        )
    if normalized:
        assert_allclose(np.sum(plain**2, axis=-1), D, rtol=1e-12)
    centre = plain.mean(axis=(0, 1))
    products = [
        np.sum((x[:, 0] - centre) * (x[:, 1] - centre), axis=-1) / D
        for x in (plain, shuffled)
    ]
    z = [p.mean() / (p.std() / math.sqrt(n)) for p in products]
    assert z[0] > 20
    assert abs(z[1]) < 4
    C = texts[0].covariance(2, D)
    assert C[0, 1] / math.sqrt(C[0, 0] * C[1, 1]) == pytest.approx(
        products[0].mean() / np.mean(np.sum((plain - centre) ** 2, axis=-1) / D),
        rel=0.02,
    )
    assert_array_equal(texts[1].covariance(2, D), np.eye(2))


def test_its_covariance_is_one_of_correlated_tokens():
    C = Text().covariance(3, 24)
    problem = problem_of(
        {"name": "correlated-tokens", "covariance": C.tolist()}, tokens=3
    )
    assert problem.no_theory is None
    assert 0.02 < C[0, 2] < C[0, 1] < 0.5


def test_the_same_text_gives_the_same_bits_and_another_is_refused(tmp_path):
    file = tmp_path / "own.txt"
    file.write_text(generated(300))
    table = {"name": "text", "path": str(file)}
    one, two = (problem_of(table).instance(10.0, 8, 1) for _ in range(2))
    _learn_vectors.cache_clear()
    again = problem_of(table).instance(10.0, 8, 1)
    for other in (two, again):
        assert_array_equal(one.inputs, other.inputs)
        assert_array_equal(one.labels, other.labels)
    spec = problem_of(table).spec["inputs"]
    assert len(spec["digest"]) == 16
    file.write_text(generated(300, seed=2))
    with pytest.raises(
        ProblemError,
        match=f"inputs.digest: must be .*, the digest of the text, got {spec['digest']}",
    ):
        problem_of({key: value for key, value in spec.items() if key != "version"})
    assert problem_of(table).spec["inputs"]["digest"] != spec["digest"]


def test_questions_are_read_without_their_classes(tmp_path):
    plain = tmp_path / "plain.txt"
    questions = tmp_path / "questions.txt"
    plain.write_text(generated(300).replace("\n", "\n\n"))
    questions.write_text(generated(300, questions=True))
    found = [Text(path=str(path)) for path in (plain, questions)]
    assert found[0].digest == found[1].digest
    questions.write_bytes(
        (generated(300, questions=True) + "\nHUM:ind Who was Andr\xe9 ?").encode(
            "latin-1"
        )
    )
    vectors, samples = Text(path=str(questions)).embedded(2, 8)
    assert np.isfinite(vectors).all()
    assert len(samples) > 300


def test_too_much_asked_is_one_line(tmp_path):
    (tmp_path / "own.txt").write_text(generated(20, vocabulary=30))
    table = {"name": "text", "path": str(tmp_path / "own.txt")}
    with pytest.raises(
        ValueError,
        match=r"path: must have 80 samples of 2 consecutive words, but has 40",
    ):
        problem_of(table).instance(10.0, 8)
    with pytest.raises(
        ValueError,
        match=r"path: must have more than 30 different words to learn from, but has \d+",
    ):
        problem_of(table).instance(1.0, 30)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(
        ValueError,
        match=r"must have more than 8 different words to learn from, but has 0",
    ):
        problem_of({"name": "text", "path": str(tmp_path / "empty.txt")}).instance(
            1.0, 8
        )
    few = "path: must be a longer text: the co-occurrence matrix of its words has a rank below 8"
    words = ["".join((a, b)) for a in "abcdefgh" for b in "stuvwxyz"]
    for name, text in (
        ("alone.txt", "\n\n".join(words)),
        ("same.txt", "\n\n".join(f"{word} the end" for word in words * 2)),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=few):
            Text(path=str(tmp_path / name)).embedded(2, 8)
    for wrong, key in ((str(tmp_path / "none.txt"), "path"), (str(tmp_path), "path")):
        with pytest.raises(ProblemError, match=rf"inputs\.{key}: must be a text file"):
            problem_of({"name": "text", "path": wrong})
    for wrong in ({"window": 0}, {"split": "half"}):
        with pytest.raises(
            ProblemError, match=rf"inputs\.{next(iter(wrong))}: must be"
        ):
            problem_of({**table, **wrong})


def test_no_theory_is_claimed_and_the_checks_pass():
    assert "none is claimed" in problem_of().no_theory
    assert {one.status for one in check(Text())} == {"passed", "skipped"}


def test_mutual_information_by_hand():
    """Sentences "a b a" and "b c": at a distance of one N_ab = N_ba = 2, N_bc = N_cb = 1, and a never meets c."""
    P = mutual_information([np.array([0, 1, 0]), np.array([1, 2])], 3, 1).toarray()
    # N = 6, N_a = 2, N_b = 3, N_c = 1
    assert_allclose(
        P, math.log(2) * np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]), atol=1e-15
    )
    # At two, "a b a" adds N_aa = 2: N = 8, N_a = 4, and log(2 * 8 / 4^2) = 0 as well.
    P = mutual_information([np.array([0, 1, 0]), np.array([1, 2])], 3, 2).toarray()
    wanted = np.zeros((3, 3))
    wanted[0, 1] = wanted[1, 0] = math.log(2 * 8 / (4 * 3))
    wanted[1, 2] = wanted[2, 1] = math.log(1 * 8 / (3 * 1))
    assert_allclose(P, wanted, atol=1e-15)
