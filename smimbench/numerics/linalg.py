"""Symmetric matrices on any array namespace: roots and other matrix functions, and lower limits on eigenvalues.

A symmetric matrix ``A = U diag(a) U^T`` is made of its eigenvalues: ``f(A) = U diag(f(a)) U^T``. Leading axes are a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smimbench.backend.arrays import clip, namespace
from smimbench.interfaces import Array, Host


def symmetric(matrix: Array) -> Array:
    """Symmetric part ``(A + A^T) / 2`` of square matrices A (..., P, P)."""
    return (matrix + namespace(matrix).matrix_transpose(matrix)) / 2


def outer_product(left: Array, right: Array) -> Array:
    """Products (..., P, R) of all entries of vectors ``left`` (..., P) with all entries of ``right`` (..., R)."""
    return left[..., :, None] * right[..., None, :]


def spectral_function(matrix: Array, function: Callable[[Array], Array]) -> Array:
    """Apply a function f to symmetric matrices (..., P, P) through their eigenvalues a and eigenvectors U: ``U diag(f(a)) U^T``.

    Parameters
    ----------
    matrix : array (..., P, P)
        Its symmetric part is used: rounding makes a product of matrices slightly asymmetric.
    function : callable
        From eigenvalues (..., P), ascending, to numbers of the same shape and namespace.

    Returns
    -------
    array (..., P, P)
    """
    xp = namespace(matrix)
    eigenvalues, eigenvectors = xp.linalg.eigh(symmetric(matrix))
    return xp.matmul(
        eigenvectors * function(eigenvalues)[..., None, :],
        xp.matrix_transpose(eigenvectors),
    )


def symmetric_root(matrix: Array) -> Array:
    """Symmetric square root (..., P, P) of symmetric matrices; negative eigenvalues count as 0."""
    xp = namespace(matrix)
    return spectral_function(
        matrix, lambda eigenvalues: xp.sqrt(clip(eigenvalues, 0.0, None))
    )


def symmetric_logarithm(matrix: Host) -> Host:
    """Logarithm (P, P) of one symmetric matrix on the host, through its eigenvalues; those below 1e-12 of the largest are
    raised to that value first.
    """
    return np.asarray(
        spectral_function(
            matrix,
            lambda eigenvalues: np.log(
                np.maximum(eigenvalues, 1e-12 * max(eigenvalues.max(), 1e-300))
            ),
        )
    )


def inverse_root(matrix: Array, smallest: float = 0.0) -> Array:
    """Inverse square root ``A^{-1/2}`` (..., P, P), symmetric; eigenvalues below ``smallest`` count as ``smallest``."""
    xp = namespace(matrix)
    return spectral_function(
        matrix, lambda eigenvalues: 1 / xp.sqrt(clip(eigenvalues, smallest, None))
    )


def with_floor(matrix: Array, smallest: float) -> Array:
    """Symmetric matrices (..., P, P) with eigenvalues below ``smallest`` raised to it; eigenvectors are kept.

    Sampling noise can make them negative.
    """
    if matrix.shape[-1] == 1:
        return clip(matrix, smallest, None)
    return spectral_function(
        matrix, lambda eigenvalues: clip(eigenvalues, smallest, None)
    )


def is_diagonal(*matrices: np.ndarray) -> bool:
    """Whether all given host matrices (P, P) are diagonal."""
    return all(
        np.array_equal(matrix, np.diag(np.diagonal(matrix))) for matrix in matrices
    )
