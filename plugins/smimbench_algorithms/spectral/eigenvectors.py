"""Estimates of a signal of low rank from the leading eigenvectors of linearized message passing: one component at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import matching, namespace, sample_chunks, to_host
from smimbench.interfaces import checked_posterior
from smimbench.numerics import with_floor
from smimbench_algorithms.spectral.limit import (
    REGULARISATION,
    Mode,
    SpectralTheory,
    label_matrices,
    second_moment_root,
    spectral_theory,
)

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Data
    from smimbench.problem import Problem
    from smimbench.theory import Host


SMALLEST_V = 1e-3
"""Floor of the predicted error, in second moments: a start must leave room for the fluctuation of the overlap."""

RIGHTMOST = 8
"""Eigenvalues of K among which a real one is looked for. More: found more often behind complex ones, with more products."""


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
    place = matching(data.inputs)
    spread = xp.asarray(root, **place)
    estimate = xp.zeros((P, D), **place)
    gram, cross = np.zeros((P, P)), np.zeros((P, P))
    eigenvalues: list[float] = []
    outliers: list[float | None] = []
    remarks: list[str] = []
    removed: list[Any] = []
    for mode in theory.modes:
        e = None if mode.direction is None else xp.asarray(mode.direction, **place)
        matrices = LinearisedMatrices(problem, data, G if e is None else _projected_on_eigenvector(xp, G, e), removed)
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
    place = matching(data.inputs)
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


class LinearisedMatrices:
    """T and K as linear operators, for one direction of the components or for all of them.

    Only the weights (n, k, C, k, C) are held; a product reads the inputs chunk by chunk.
    """

    def __init__(self, problem: Problem, data: Data, G: Array, removed: list[Array]) -> None:
        self.model, self.inputs, self.removed = problem.model, data.inputs, removed
        self.xp = namespace(data.inputs)
        self.n, self.P, self.C = G.shape[:3]
        self.D = data.dimension
        self.G = self.xp.reshape(G, (self.n, self.P * self.C, self.P * self.C))

    def _weigh(self, weights: Array, z: Array) -> Array:
        vector = self.xp.reshape(z, (z.shape[0], self.P * self.C, 1))
        return self.xp.reshape(self.xp.matmul(weights, vector), z.shape)

    def _project(self, u: Array) -> Array:
        for v in self.removed:
            u = u - self.xp.matmul(u, v[:, None]) * v[None, :]
        return u

    def _device(self, vector: Host, shape: tuple[int, ...]) -> Array:
        return self.xp.reshape(self.xp.asarray(vector, **matching(self.inputs)), shape)

    def leading_symmetric(self, regularisation: float, rng: np.random.Generator) -> tuple[float, Array]:
        """Largest eigenvalue of T and its eigenvector (k, D), by Lanczos' method."""
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

        xp, size = self.xp, self.P * self.D
        identity = xp.eye(self.P * self.C, **matching(self.G))
        weights = identity - xp.linalg.inv((1 + regularisation) * identity + self.G)
        precision = float(xp.finfo(self.inputs.dtype).eps)

        def product(vector: Host) -> Host:
            u = self._project(self._device(vector, (self.P, self.D)))
            total = xp.zeros_like(u)
            for part in sample_chunks(self.model, self.inputs, self.P):
                inputs = self.inputs[part, ...]
                total = total + self.model.adjoint(
                    inputs, self._weigh(weights[part, ...], self.model.forward(inputs, u))
                )
            return to_host(self._project(total)).astype(np.float64).reshape(-1)

        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        start = rng.standard_normal(size)
        if size <= 40:  # Lanczos' method needs a space much larger than its basis
            dense = np.stack([product(column) for column in np.eye(size)])
            values, vectors = np.linalg.eigh((dense + dense.T) / 2)
            return float(values[-1]), self._device(vectors[:, -1], (self.P, self.D))
        try:
            values, vectors = eigsh(
                operator, k=1, which="LA", v0=start, ncv=min(size, 60), tol=max(1e-6, 10 * precision), maxiter=400
            )
        except ArpackNoConvergence as error:
            raise ArithmeticError(f"Lanczos' method did not converge: {error}") from None
        return float(values[0]), self._device(vectors[:, 0], (self.P, self.D))

    def leading_asymmetric(self, rng: np.random.Generator) -> tuple[float, Array] | None:
        """Largest real eigenvalue of K and the signal (k, D) of its eigenvector, by Arnoldi's method.

        None if there is no real one above 1 among the ``RIGHTMOST`` eigenvalues.
        """
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

        G, shape = self.G, (self.n, self.P, self.C)
        size = self.n * self.P * self.C
        # Labels such as signs change no second moments: K is zero, and has no eigenvector to look for.
        if size < 2 * RIGHTMOST + 4 or not bool(self.xp.max(self.xp.abs(G)) > 1e-12):
            return None

        parts = list(sample_chunks(self.model, self.inputs, self.P))

        def signal(v: Array) -> Array:
            weighed = self._weigh(G, v)
            total = self.xp.zeros((self.P, self.D), **matching(v))
            for part in parts:
                total = total + self.model.adjoint(self.inputs[part, ...], weighed[part, ...])
            return self._project(total)

        def product(vector: Host) -> Host:
            v = self._device(vector, shape)
            u = signal(v)
            latents = self.xp.concat([self.model.forward(self.inputs[part, ...], u) for part in parts], axis=0)
            return to_host(latents - self._weigh(G, v)).astype(np.float64).reshape(-1)

        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        try:
            values, vectors = eigs(
                operator,
                k=RIGHTMOST,
                which="LR",
                v0=rng.standard_normal(size),
                ncv=min(size, 80),
                tol=1e-6,
                maxiter=200,
            )
        except ArpackNoConvergence as error:
            values, vectors = error.eigenvalues, error.eigenvectors
        real = [i for i in np.argsort(-values.real) if abs(values[i].imag) <= 1e-9 * abs(values[i])]
        # Where there is an outlier it is alpha F > 1; a smaller one belongs to the bulk.
        if not real or values[real[0]].real <= 1:
            return None
        u = signal(self._device(vectors[:, real[0]].real, shape))
        norm = self.xp.sqrt(self.xp.sum(u * u))
        return float(values[real[0]].real), u / norm
