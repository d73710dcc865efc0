"""Linearised message passing as matrices T and K of a data set, and the weights ``G = E[z z^T | y] - I`` of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import beside, namespace, sample_chunks, to_host
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import symmetric_root
from smimbench.theory.information import prior_moments

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Data
    from smimbench.problem import Problem
    from smimbench.theory.types import Host

__all__ = ["LinearisedMatrices", "label_matrices", "second_moment_root", "why_not"]

RIGHTMOST = 8
"""Eigenvalues of K among which a real one is looked for. Doubled: found more often behind complex ones, at twice the products."""

NOTHING = 1e-12
"""Weights of labels that are rounding; doubled, nothing changes."""
DENSE = 40
"""Size up to which T is made and decomposed: Lanczos' method wants a space that is much larger than its basis. Doubled: the
same numbers, a little slower."""


def why_not(problem: Problem) -> str | None:
    """Why the matrices of linearised message passing do not fit a low-rank problem, or None."""
    second, known = prior_moments(problem)
    if np.abs(known).max() > 1e-9 * np.abs(second).max():
        return "the low-rank matrices are linearised around zero, and this prior has a mean that is not zero; use gamp"
    return None


def second_moment_root(problem: Problem) -> Host:
    """Symmetric root of the prior's second moment (P, P)."""
    found = np.asarray(symmetric_root(prior_moments(problem)[0]))
    return np.eye(len(found)) if np.allclose(found, np.eye(len(found)), rtol=0, atol=1e-12) else found


def label_matrices(
    channel: Any, labels: Array, root: Host, C: int, *, rng: np.random.Generator, like: Array | None = None
) -> Array:
    """``G`` (n, P, C, P, C) of labels, computed where the labels (or ``like``) live, for components of unit second moment."""
    like = labels if like is None else like
    xp = namespace(like)
    place = beside(like)
    P = len(root)
    omega = xp.zeros((labels.shape[0], P, C), **place)
    V = xp.asarray(root @ root, **place)
    found = channel.posterior(labels, omega, V, second_moment=True, rng=rng)
    moment = checked_posterior(found, omega).second_moment
    if moment is None:
        raise ValueError(f"channel {channel.name!r} gives no second moment of its posterior")
    if not np.array_equal(root, np.eye(P)):
        inverse = xp.asarray(np.kron(np.linalg.inv(root), np.eye(C)), **place)
        flat = xp.reshape(moment, (-1, P * C, P * C))
        moment = xp.reshape(xp.matmul(xp.matmul(inverse, flat), inverse), moment.shape)
    return moment - xp.reshape(xp.eye(P * C, **place), (1, P, C, P, C))


class LinearisedMatrices:
    """T and K as linear operators, for one direction of the components or for all of them.

    Only the weights (n, k, C, k, C) are held; a product reads the inputs chunk by chunk.
    """

    def __init__(self, problem: Problem, data: Data, G: Array) -> None:
        self.model, self.inputs, self.G = problem.model, data.inputs, G
        self.xp = namespace(data.inputs)
        self.n, self.P, self.C = G.shape[:3]
        self.D = data.dimension
        self.removed: list[Array] = []

    @property
    def labels_say_anything(self) -> bool:
        """Whether any label changes second moments. Signs do not, for one: K is zero then, and has no eigenvector to look for."""
        return bool(self.xp.max(self.xp.abs(self.G)) > NOTHING)

    def weights(self, regularisation: float) -> Array:
        """``I - (I + G + epsilon I)^{-1}`` (n, kC, kC)."""
        xp = self.xp
        flat = self._flat()
        identity = xp.eye(self.P * self.C, **beside(flat))
        return identity - xp.linalg.inv((1 + regularisation) * identity + flat)

    def _flat(self) -> Array:
        return self.xp.reshape(self.G, (self.n, self.P * self.C, self.P * self.C))

    def _weigh(self, weights: Array, z: Array) -> Array:
        vector = self.xp.reshape(z, (z.shape[0], self.P * self.C, 1))
        return self.xp.reshape(self.xp.matmul(weights, vector), z.shape)

    def _project(self, u: Array) -> Array:
        for v in self.removed:
            u = u - self.xp.matmul(u, v[:, None]) * v[None, :]
        return u

    def _device(self, vector: Host, shape: tuple[int, ...]) -> Array:
        return self.xp.reshape(self.xp.asarray(vector, **beside(self.inputs)), shape)

    def leading_symmetric(self, regularisation: float, rng: np.random.Generator) -> tuple[float, Array]:
        """Largest eigenvalue of T and its eigenvector (k, D), by Lanczos' method."""
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

        weights = self.weights(regularisation)
        size = self.P * self.D
        precision = float(self.xp.finfo(self.inputs.dtype).eps)

        def product(vector: Host) -> Host:
            u = self._project(self._device(vector, (self.P, self.D)))
            total = self.xp.zeros_like(u)
            for part in sample_chunks(self.model, self.inputs, self.P):
                inputs = self.inputs[part, ...]
                total = total + self.model.adjoint(
                    inputs, self._weigh(weights[part, ...], self.model.forward(inputs, u))
                )
            return to_host(self._project(total)).astype(np.float64).reshape(-1)

        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        start = rng.standard_normal(size)
        if size <= DENSE:
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

        G = self._flat()
        shape = (self.n, self.P, self.C)
        size = self.n * self.P * self.C
        if size < 2 * RIGHTMOST + 4 or not self.labels_say_anything:
            return None

        parts = list(sample_chunks(self.model, self.inputs, self.P))

        def signal(v: Array) -> Array:
            weighed = self._weigh(G, v)
            total = self.xp.zeros((self.P, self.D), **beside(v))
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
