"""SequenceMultiIndex against einsum, its transpose, and symmetries against a search of the group."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.models.sequence_multi_index import SequenceMultiIndex

from smimbench.backend.arrays import to_host
from tests.conftest import assert_placed


@pytest.mark.parametrize(
    ("tokens", "components", "n", "D"),
    [(2, 2, 7, 5), (1, 1, 4, 6), (5, 3, 800, 90), (3, 1, 1, 1)],
)
def test_forward_and_adjoint_are_the_definition(backend, rng, tokens, components, n, D):
    model = SequenceMultiIndex(tokens)
    x = rng.standard_normal((n, tokens, D))
    W = rng.standard_normal((components, D))
    g = rng.standard_normal((n, components, tokens))
    z = model.forward(backend.asarray(x), backend.asarray(W))
    back = model.adjoint(backend.asarray(x), backend.asarray(g))
    assert_placed(z, backend, (n, components, tokens))
    assert_placed(back, backend, (components, D))
    assert_allclose(
        to_host(z), np.einsum("pd,nmd->npm", W, x) / math.sqrt(D), atol=1e-12
    )
    assert_allclose(
        to_host(back), np.einsum("npm,nmd->pd", g, x) / math.sqrt(D), atol=1e-11
    )
    transpose = model.adjoint_scale(D) * np.sum(g * to_host(z))
    assert np.sum(to_host(back) * W) == pytest.approx(transpose, rel=1e-10)


def orbit(symmetry, P):
    """Every element of a finite group as a P x P matrix."""
    signs = [(1,) * P]
    if symmetry.endswith("common-sign"):
        signs.append((-1,) * P)
    elif "sign" in symmetry:
        signs = list(itertools.product([1, -1], repeat=P))
    orders = (
        list(itertools.permutations(range(P)))
        if "permutations" in symmetry
        else [tuple(range(P))]
    )
    for order in orders:
        for sign in signs:
            yield np.diag(sign) @ np.eye(P)[list(order)]


@pytest.mark.parametrize(
    "symmetry",
    [
        "none",
        "signs",
        "common-sign",
        "permutations",
        "permutations-common-sign",
        "signed-permutations",
    ],
)
def test_align_is_the_best_of_the_whole_group(backend, rng, symmetry):
    model = SequenceMultiIndex(1)
    for _ in range(5):
        W = rng.standard_normal((3, 4))
        guess = rng.standard_normal((3, 4))
        aligned = model.align(backend.asarray(W), backend.asarray(guess), symmetry)
        assert_placed(aligned, backend, (3, 4))
        best = min(np.sum((W - R @ guess) ** 2) for R in orbit(symmetry, 3))
        assert np.sum((W - to_host(aligned)) ** 2) == pytest.approx(best, rel=1e-12)


def test_rotations_are_undone(backend, rng):
    model = SequenceMultiIndex(1)
    W = rng.standard_normal((3, 40))
    R = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    aligned = model.align(backend.asarray(W), backend.asarray(R @ W), "rotations")
    assert_placed(aligned, backend, (3, 40))
    assert_allclose(to_host(aligned), W, atol=1e-12)
    noisy = R @ W + rng.standard_normal((3, 40))
    error = np.sum((W - model.align(W, noisy, "rotations")) ** 2)
    for _ in range(200):
        other = np.linalg.qr(rng.standard_normal((3, 3)))[0]
        assert error <= np.sum((W - other @ noisy) ** 2)


def test_aligning_an_orthogonal_estimate_keeps_it():
    W = np.array([[1.0, 0.0]])
    guess = np.array([[0.0, 2.0]])
    assert_array_equal(SequenceMultiIndex(1).align(W, guess, "signs"), guess)


def test_overlap_is_a_squared_cosine(backend, rng):
    model = SequenceMultiIndex(1)
    A = rng.standard_normal((2, 9))
    B = rng.standard_normal((2, 9))
    a = backend.asarray(A)
    b = backend.asarray(B)
    cosine = np.diag(A @ B.T) / np.linalg.norm(A, axis=1) / np.linalg.norm(B, axis=1)
    assert_placed(model.overlap(a, b), backend, (2,))
    assert_allclose(to_host(model.overlap(a, b)), cosine**2, rtol=1e-12)
    assert_array_equal(to_host(model.overlap(a, b * 0)), [0, 0])


def test_no_dimension_has_no_scale():
    with pytest.raises(ValueError, match="dimension must be >= 1"):
        SequenceMultiIndex(2).adjoint_scale(0)
