"""Functions of symmetric matrices against SciPy's, on every backend."""

import numpy as np
import scipy.linalg
from numpy.testing import assert_allclose

from smimbench.backend.arrays import to_host
from smimbench.numerics.linalg import (
    inverse_root,
    is_diagonal,
    spectral_function,
    symmetric_root,
    with_floor,
)
from tests.conftest import assert_placed


def positive(rng, *shape):
    factor = rng.standard_normal(shape)
    return factor @ np.swapaxes(factor, -1, -2)


def test_roots_of_a_batch(backend, rng):
    matrix = positive(rng, 4, 3, 3)
    root, inverse = (f(backend.asarray(matrix)) for f in (symmetric_root, inverse_root))
    assert_placed(root, backend, (4, 3, 3))
    root = to_host(root)
    inverse = to_host(inverse)
    assert_allclose(root @ root, matrix, atol=1e-12)
    assert_allclose(inverse @ root, np.broadcast_to(np.eye(3), root.shape), atol=1e-9)
    assert_allclose(root, np.swapaxes(root, 1, 2), atol=1e-13)


def test_a_function_of_a_matrix_is_scipys(rng):
    matrix = rng.standard_normal((3, 3))
    matrix = matrix + matrix.T
    assert_allclose(
        spectral_function(matrix, np.exp), scipy.linalg.expm(matrix), rtol=1e-12
    )


def test_eigenvalues_that_are_negative_or_small(backend):
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    matrix = backend.asarray(turn @ np.diag([-1e-3, 4.0]) @ turn.T)
    root = to_host(symmetric_root(matrix))
    assert_allclose(turn.T @ root @ turn, np.diag([0.0, 2.0]), atol=1e-14)
    floored = to_host(with_floor(matrix, 0.25))
    assert_allclose(turn.T @ floored @ turn, np.diag([0.25, 4.0]), atol=1e-14)
    inverse = to_host(inverse_root(matrix, 0.25))
    assert_allclose(turn.T @ inverse @ turn, np.diag([2.0, 0.5]), atol=1e-14)


def test_is_diagonal():
    assert is_diagonal(np.diag([1.0, 0.0]), np.eye(3))
    assert not is_diagonal(np.eye(2), np.array([[1.0, 1e-300], [0.0, 1.0]]))
