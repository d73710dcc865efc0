"""Spectral estimate of a low-rank signal from the leading eigenvectors of linearized message passing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from smimbench.backend import matching, namespace, sample_chunks, to_host
from smimbench.interfaces import Array, Data, Host, checked_posterior
from smimbench.numerics import symmetric, with_floor
from smimbench.problem import Problem
from smimbench_attention.algorithms.spectral.limit import (
    REGULARISATION,
    Mode,
    SpectralTheory,
    along_direction,
    label_matrices,
    second_moment_root,
    spectral_theory,
)

SMALLEST_V = 1e-3
"""Floor of the predicted error, in second moments: a start must leave room for the fluctuation of the overlap."""

RIGHTMOST = 8
"""Eigenvalues of K searched for a real one. More: real ones are found behind more complex ones, at the cost of more products."""


class SpectralEstimate(NamedTuple):
    """Spectral estimate (P, D) with its predicted error V (P, P), outlier eigenvalues and remarks.

    ``outliers`` are those of the matrix that was asked for, None where it has no real one.
    """

    estimate: Array
    V: Array
    remarks: list[str]
    outliers: list[float | None]


def spectral_estimate(
    problem: Problem,
    data: Data,
    rng: np.random.Generator,
    kind: str = "symmetric",
    regularisation: float = REGULARISATION,
) -> SpectralEstimate:
    r"""Estimate a low-rank signal from the leading eigenvectors of linearized message passing.

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
    xp, device_and_dtype = namespace(data.inputs), matching(data.inputs)
    P, C, D = problem.components, problem.model.sites, data.dimension
    root = second_moment_root(problem)
    channel, alpha = problem.channel, data.sample_ratio
    matrices = [
        label_matrices(channel, data.labels[chunk, ...], root, C, rng, data.inputs)
        for chunk in sample_chunks(problem.model, data.inputs, P * C)
    ]
    G = xp.concat(matrices)
    theory = spectral_theory(problem, alpha, kind, regularisation)
    sign_hints = None
    if channel.symmetry in ("none", "permutations"):
        sign_hints = _sign_hints(problem, data, rng)
    unwhiten = xp.asarray(root, **device_and_dtype)
    estimate = xp.zeros((P, D), **device_and_dtype)
    gram, cross = np.zeros((P, P)), np.zeros((P, P))
    outliers: list[float | None] = []
    remarks: list[str] = []
    removed: list[Array] = []
    for mode in theory.modes:
        e = (
            None
            if mode.direction is None
            else xp.asarray(mode.direction, **device_and_dtype)
        )
        along = G if e is None else along_direction(G, e)
        linearized = LinearizedMatrices(problem, data, along, removed)
        leading = None
        if kind == "asymmetric":
            leading = linearized.leading_asymmetric(rng)
        outlier = None if leading is None else leading[0]
        if leading is None:
            leading = linearized.leading_symmetric(regularisation, rng)
            if kind == "symmetric":
                outlier = leading[0]
            else:
                remarks = [
                    "the asymmetric matrix has no real outlier; the symmetric one was used"
                ]
                symmetric_theory = spectral_theory(
                    problem, alpha, "symmetric", regularisation
                )
                mode = _same_direction(symmetric_theory, mode)
        outliers.append(outlier)
        u = leading[1]
        if mode.is_outlier and e is not None:
            removed.append(u[0, :])
        U = u if e is None else e[:, None] * u
        if sign_hints is not None:
            agreement = xp.sum(sign_hints * xp.matmul(unwhiten, U))
            U = -U if float(agreement) < 0 else U
        scale = max(mode.scale**2, 1 / D)
        estimate = estimate + (scale * D) ** 0.5 * U
        gram += scale * mode.gram
        # An eigenvector of all components at once does not hold as much of each as it is long.
        cross += scale**0.5 * mode.A if mode.is_outlier else scale * mode.gram
    V = root @ with_floor(np.eye(P) - cross - cross.T + gram, SMALLEST_V) @ root
    estimate = xp.matmul(unwhiten, estimate)
    return SpectralEstimate(
        estimate, xp.asarray(V, **device_and_dtype), remarks, outliers
    )


def _same_direction(theory: SpectralTheory, mode: Mode) -> Mode:
    """Find the mode of another spectral theory whose direction is closest to that of a given mode."""
    if mode.direction is None:
        return theory.modes[0]

    def alignment(candidate: Mode) -> float:
        if candidate.direction is None or mode.direction is None:
            return 0.0
        return abs(float(candidate.direction @ mode.direction))

    return max(theory.modes, key=alignment)


def _sign_hints(problem: Problem, data: Data, rng: np.random.Generator) -> Array:
    """Vector ``adjoint(E[z | y])`` at the prior mean, which gives the signs of components where labels depend on them."""
    xp, device_and_dtype, P = (
        namespace(data.inputs),
        matching(data.inputs),
        problem.components,
    )
    hints = xp.zeros((P, data.dimension), **device_and_dtype)
    V = xp.asarray(problem.prior.second_moment(P), **device_and_dtype)
    for chunk in sample_chunks(problem.model, data.inputs, P):
        inputs, labels = data.inputs[chunk, ...], data.labels[chunk, ...]
        omega = xp.zeros((inputs.shape[0], P, problem.model.sites), **device_and_dtype)
        posterior = problem.channel.posterior(labels, omega, V, rng=rng)
        # The gradient V^{-1} E[z | y], seen through V again.
        mean = checked_posterior(posterior, omega).mean
        hints = hints + problem.model.adjoint(inputs, mean)
    return hints


class LinearizedMatrices:
    """The matrices T and K of linearized message passing as linear operators, for one direction or all components.

    Only the weights (n, k, C, k, C) and latents (n, k, C) are held; a product reads the inputs chunk by chunk.
    """

    def __init__(
        self, problem: Problem, data: Data, G: Array, removed: list[Array]
    ) -> None:
        self.model, self.inputs, self.removed = problem.model, data.inputs, removed
        self.xp = namespace(data.inputs)
        self.n, self.P, self.C = G.shape[:3]
        self.D = data.dimension
        self.G = self.xp.reshape(G, (self.n, self.P * self.C, self.P * self.C))
        self.chunks = list(sample_chunks(self.model, self.inputs, self.P))

    def _weigh(self, weights: Array, z: Array) -> Array:
        """Multiply the latents of every sample by the weight matrix of that sample."""
        xp = self.xp
        flat = xp.reshape(z, (self.n, self.P * self.C, 1))
        return xp.reshape(xp.matmul(weights, flat), (self.n, self.P, self.C))

    def _project(self, u: Array) -> Array:
        """Project out the eigenvectors that have been found so far."""
        for v in self.removed:
            u = u - self.xp.matmul(u, v[:, None]) * v[None, :]
        return u

    def _latents(self, u: Array) -> Array:
        """Latents of all samples for a signal vector u."""
        latents = [
            self.model.forward(self.inputs[chunk, ...], u) for chunk in self.chunks
        ]
        return self.xp.concat(latents)

    def _signal(self, z: Array) -> Array:
        """Map latents back to a signal (adjoint), without the eigenvectors found so far."""
        signal = sum(
            self.model.adjoint(self.inputs[chunk, ...], z[chunk, ...])
            for chunk in self.chunks
        )
        return self._project(signal)

    def _device(self, vector: Host, shape: tuple[int, ...]) -> Array:
        return self.xp.reshape(self.xp.asarray(vector, **matching(self.inputs)), shape)

    def _host(self, product: Array) -> Host:
        return to_host(product).astype(np.float64).reshape(-1)

    def leading_symmetric(
        self, regularisation: float, rng: np.random.Generator
    ) -> tuple[float, Array]:
        """Largest eigenvalue of T and its eigenvector (k, D), by Lanczos' method."""
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

        shape, size = (self.P, self.D), self.P * self.D
        identity = self.xp.eye(self.P * self.C, **matching(self.G))
        regularised = (1 + regularisation) * identity + self.G
        weights = identity - self.xp.linalg.inv(regularised)

        def product(vector: Host) -> Host:
            u = self._project(self._device(vector, shape))
            return self._host(self._signal(self._weigh(weights, self._latents(u))))

        start = rng.standard_normal(size)
        if size <= 40:  # Lanczos' method needs a space much larger than its basis
            dense = np.stack([product(column) for column in np.eye(size)])
            values, vectors = np.linalg.eigh(symmetric(dense))
            return float(values[-1]), self._device(vectors[:, -1], shape)
        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        options = {"v0": start, "ncv": min(size, 60), "tol": 1e-6, "maxiter": 400}
        try:
            values, vectors = eigsh(operator, k=1, which="LA", **options)
        except ArpackNoConvergence as error:
            raise ArithmeticError(
                f"Lanczos' method for the leading eigenvector of the symmetric matrix did not converge: {error}"
            ) from None
        return float(values[0]), self._device(vectors[:, 0], shape)

    def leading_asymmetric(
        self, rng: np.random.Generator
    ) -> tuple[float, Array] | None:
        """Largest real eigenvalue of K and the signal (k, D) of its eigenvector, by Arnoldi's method.

        None if there is no real one above 1 among the ``RIGHTMOST`` eigenvalues.
        """
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

        xp, size = self.xp, self.n * self.P * self.C
        if size < 2 * RIGHTMOST + 4:
            return None
        # Labels such as signs change no second moments: K is zero, and has no eigenvector to look for.
        if not bool(xp.max(xp.abs(self.G)) > 1e-12):
            return None

        def weighed(vector: Host) -> Array:
            return self._weigh(self.G, self._device(vector, (-1,)))

        def product(vector: Host) -> Host:
            z = weighed(vector)
            return self._host(self._latents(self._signal(z)) - z)

        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        start = rng.standard_normal(size)
        options = {"v0": start, "ncv": min(size, 80), "tol": 1e-6, "maxiter": 200}
        try:
            values, vectors = eigs(operator, k=RIGHTMOST, which="LR", **options)
        except ArpackNoConvergence as error:
            values, vectors = error.eigenvalues, error.eigenvectors
        is_real = np.abs(values.imag) <= 1e-9 * np.abs(values)
        if not is_real.any():
            return None
        leading = int(np.argmax(np.where(is_real, values.real, -np.inf)))
        eigenvalue = float(values[leading].real)
        # Where there is an outlier it is alpha F > 1; a smaller one belongs to the bulk.
        if eigenvalue <= 1:
            return None
        u = self._signal(weighed(vectors[:, leading].real))
        return eigenvalue, u / xp.sqrt(xp.sum(u * u))
