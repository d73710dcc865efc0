"""Estimates of a signal of low rank from the leading eigenvectors of a data set: component after component, with signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import beside, namespace, sample_chunks
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import with_floor
from smimbench_algorithms.spectral.limit import REGULARISATION, Mode, SpectralTheory, spectral_theory
from smimbench_algorithms.spectral.matrices import LinearisedMatrices, label_matrices, second_moment_root

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Data
    from smimbench.problem import Problem

__all__ = ["SpectralEstimate", "spectral_estimate"]


SMALLEST_V = 1e-3
"""Floor of the predicted error, in second moments: as a start it must leave room for the fluctuation of the overlap. Doubled: a
more cautious start."""


@dataclass(frozen=True)
class SpectralEstimate:
    """Estimate (P, D), the error V (P, P) that theory predicts for it, the eigenvalues found, and remarks.

    ``eigenvalues`` are those of the eigenvectors used; ``outliers`` those of the matrix that was asked for, None where it
    has no real one.
    """

    estimate: Array
    V: Array
    eigenvalues: tuple[float, ...]
    remarks: tuple[str, ...]
    outliers: tuple[float | None, ...]


def spectral_estimate(
    problem: Problem,
    data: Data,
    rng: np.random.Generator,
    kind: str = "symmetric",
    regularisation: float = REGULARISATION,
) -> SpectralEstimate:
    r"""Estimate of a low-rank signal from the leading eigenvectors.

    An eigenvector has no scale. It is given the one at which its squared error is smallest, ``sqrt(q D)`` with q the
    overlap that theory predicts, so that the estimate has the size of a posterior mean and ``1 - q`` is its error; where
    theory sees no outlier, ``q = 1/D``, the squared cosine of two random vectors. Its sign is free where no label can see
    it; otherwise it is the one that agrees with ``adjoint(E[z | y])``.

    Parameters
    ----------
    rng : numpy.random.Generator
        First vectors of Lanczos' and Arnoldi's methods.
    kind : {"symmetric", "asymmetric"}
        The asymmetric matrix may have no real eigenvalue among its rightmost ones; then a remark says so and the
        symmetric one is used.
    regularisation : float
        epsilon > 0, for the symmetric matrix.

    Raises
    ------
    ArithmeticError
        If Lanczos' method does not converge.
    """
    xp = namespace(data.inputs)
    P, C, D = problem.components, problem.model.sites, data.dimension
    root = second_moment_root(problem)
    pieces = [
        label_matrices(problem.channel, data.labels[part, ...], root, C, rng=rng, like=data.inputs)
        for part in sample_chunks(problem.model, data.inputs, P * C)
    ]
    G = pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=0)
    theory = spectral_theory(problem, data.sample_ratio, kind, regularisation)
    hints = (
        _sign_hints_of_eigenvectors(problem, data, rng)
        if problem.channel.symmetry in ("none", "permutations")
        else None
    )
    place = beside(data.inputs)
    spread = xp.asarray(root, **place)
    estimate = xp.zeros((P, D), **place)
    gram, cross = np.zeros((P, P)), np.zeros((P, P))
    eigenvalues: list[float] = []
    outliers: list[float | None] = []
    remarks: list[str] = []
    removed: list[Any] = []
    for mode in theory.modes:
        e = None if mode.direction is None else xp.asarray(mode.direction, **place)
        matrices = LinearisedMatrices(problem, data, G if e is None else _projected_on_eigenvector(xp, G, e))
        matrices.removed = removed
        found = matrices.leading_asymmetric(rng) if kind == "asymmetric" else None
        used = mode
        if found is None:
            if kind == "asymmetric":
                remarks.append("the asymmetric matrix has no real outlier; the symmetric one was used")
                used = _same_direction(spectral_theory(problem, data.sample_ratio, "symmetric", regularisation), mode)
            found = matrices.leading_symmetric(regularisation, rng)
            outliers.append(None if kind == "asymmetric" else found[0])
        else:
            outliers.append(found[0])
        eigenvalue, u = found
        if used.found and e is not None:
            removed.append(u[0, :])
        U = u if e is None else e[:, None] * u
        if hints is not None and float(xp.sum(hints * xp.matmul(spread, U))) < 0:
            U = -U
        scale = max(used.scale**2, 1 / D)
        estimate = estimate + (scale * D) ** 0.5 * U
        gram += scale * used.gram
        # an eigenvector of all components at once does not hold as much of each as it is long
        cross += scale**0.5 * used.A if used.found else scale * used.gram
        eigenvalues.append(eigenvalue)
    V = np.eye(P) - cross - cross.T + gram
    V = root @ with_floor(V, SMALLEST_V) @ root
    estimate = xp.matmul(spread, estimate)
    return SpectralEstimate(
        estimate, xp.asarray(V, **place), tuple(eigenvalues), tuple(dict.fromkeys(remarks)), tuple(outliers)
    )


def _projected_on_eigenvector(xp: Any, G: Array, e: Array) -> Array:
    """``e^T G e`` (n, 1, C, 1, C)."""
    left = xp.sum(G * e[None, :, None, None, None], axis=1, keepdims=True)
    return xp.sum(left * e[None, None, None, :, None], axis=3, keepdims=True)


def _same_direction(theory: SpectralTheory, mode: Mode) -> Mode:
    if mode.direction is None:
        return theory.modes[0]
    return max(theory.modes, key=lambda other: abs(float(other.direction @ mode.direction)))  # type: ignore[operator]


def _sign_hints_of_eigenvectors(problem: Problem, data: Data, rng: np.random.Generator) -> Array:
    """``adjoint(E[z | y])`` at the prior mean: knows signs where the labels do."""
    xp = namespace(data.inputs)
    P, C, D = problem.components, problem.model.sites, data.dimension
    place = beside(data.inputs)
    total = xp.zeros((P, D), **place)
    for part in sample_chunks(problem.model, data.inputs, P):
        inputs = data.inputs[part, ...]
        omega = xp.zeros((inputs.shape[0], P, C), **place)
        V = xp.asarray(problem.prior.second_moment(P), **place)
        found = problem.channel.posterior(data.labels[part, ...], omega, V, rng=rng)
        mean = checked_posterior(found, omega).mean
        # the gradient V^{-1} E[z | y], seen through V again
        total = total + problem.model.adjoint(inputs, mean)
    return total
