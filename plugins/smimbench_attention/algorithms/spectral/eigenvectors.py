"""Spectral estimate of a low-rank signal from the leading eigenvectors of linearized message passing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from smimbench.backend import (
    asarray_like,
    matching,
    namespace,
    sample_chunks,
    to_host_floats,
)
from smimbench.interfaces import Array, Data, Host, checked_posterior
from smimbench.numerics import symmetric, with_floor
from smimbench.problem import Problem
from smimbench_attention.algorithms.spectral.limit import (
    REGULARISATION,
    Mode,
    SpectralTheory,
    label_matrices,
    project_on_direction,
    second_moment_root,
    spectral_theory,
)

SMALLEST_V = 1e-3
"""Floor of the predicted error, in second moments: a start must leave room for the fluctuation of the overlap."""

SEARCHED_EIGENVALUES = 8
"""Eigenvalues of K searched for a real one. More: real ones are found behind more complex ones, at the cost of more products."""


class SpectralEstimate(NamedTuple):
    """Spectral estimate (P, D) with its predicted error V (P, P), remarks for the user, and the outlier eigenvalues of the
    matrix, strongest first (None for a mode without a real outlier).

    ``outliers`` are those of the matrix that was asked for, None where it has no real one.
    """

    estimate: Array
    V: Array
    remarks: list[str]
    outliers: list[float | None]  # eigenvalues


def spectral_estimate(
    problem: Problem,
    data: Data,
    rng: np.random.Generator,
    kind: str = "symmetric",
    regularisation: float = REGULARISATION,
) -> SpectralEstimate:
    r"""Estimate a low-rank signal of P components from the leading eigenvectors of linearized message passing: of the matrix of
    this kind, made of label matrices ``G = E[z z^T | y] - I``, one eigenvector for every mode of its theory. V is the predicted
    error. C is the number of sites, alpha the sample ratio, ``direction`` that of a mode in the space of components,
    ``regularisation`` the epsilon added to G in the symmetric matrix.

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
    device_and_dtype = matching(data.inputs)
    P, C, D = problem.components, problem.model.sites, data.dimension
    moment_root = second_moment_root(problem)
    channel = problem.channel
    alpha = data.sample_ratio
    label_matrices_of_chunks = [
        label_matrices(
            channel, data.labels[chunk, ...], moment_root, C, rng, data.inputs
        )
        for chunk in sample_chunks(problem.model, data.inputs, P * C)
    ]
    G = xp.concat(label_matrices_of_chunks)
    spectral_limit = spectral_theory(problem, alpha, kind, regularisation)
    sign_reference = None
    if channel.symmetry in ("none", "permutations"):
        sign_reference = _sign_reference(problem, data, rng)
    root_on_device = xp.asarray(moment_root, **device_and_dtype)
    estimate = xp.zeros((P, D), **device_and_dtype)
    self_overlap = np.zeros((P, P))
    signal_overlap = np.zeros((P, P))
    outliers: list[float | None] = []
    remarks: list[str] = []
    removed_eigenvectors: list[Array] = []
    for mode in spectral_limit.modes:
        direction = None
        if mode.direction is not None:
            direction = xp.asarray(mode.direction, **device_and_dtype)
        projected_G = G if direction is None else project_on_direction(G, direction)
        linearized_matrices = LinearizedMatrices(
            problem, data, projected_G, removed_eigenvectors
        )
        eigenpair = None
        if kind == "asymmetric":
            eigenpair = linearized_matrices.leading_asymmetric(rng)
        outlier = None if eigenpair is None else eigenpair[0]
        if eigenpair is None:
            eigenpair = linearized_matrices.leading_symmetric(regularisation, rng)
            if kind == "symmetric":
                outlier = eigenpair[0]
            else:
                remarks = [
                    "the asymmetric matrix has no real outlier; the symmetric one was used"
                ]
                symmetric_theory = spectral_theory(
                    problem, alpha, "symmetric", regularisation
                )
                mode = _mode_of_same_direction(symmetric_theory, mode)
        outliers.append(outlier)
        eigenvector = eigenpair[1]
        if mode.is_outlier and direction is not None:
            removed_eigenvectors.append(eigenvector[0, :])
        signed_eigenvector = eigenvector
        if direction is not None:
            signed_eigenvector = direction[:, None] * eigenvector
        if sign_reference is not None:
            signal = xp.matmul(root_on_device, signed_eigenvector)
            if float(xp.sum(sign_reference * signal)) < 0:
                signed_eigenvector = -signed_eigenvector
        predicted_overlap = max(mode.scale**2, 1 / D)
        estimate = estimate + (predicted_overlap * D) ** 0.5 * signed_eigenvector
        self_overlap += predicted_overlap * mode.gram
        # An eigenvector of all components at once does not hold as much of each as it is long.
        if mode.is_outlier:
            signal_overlap += predicted_overlap**0.5 * mode.A
        else:
            signal_overlap += predicted_overlap * mode.gram
    whitened_V = np.eye(P) - signal_overlap - signal_overlap.T + self_overlap
    V = moment_root @ with_floor(whitened_V, SMALLEST_V) @ moment_root
    estimate = xp.matmul(root_on_device, estimate)
    return SpectralEstimate(
        estimate, xp.asarray(V, **device_and_dtype), remarks, outliers
    )


def _mode_of_same_direction(theory: SpectralTheory, mode: Mode) -> Mode:
    """Mode of a spectral theory whose direction in the space of components is closest to that of a given mode of another
    theory.
    """
    if mode.direction is None:
        return theory.modes[0]

    def alignment(candidate_mode: Mode) -> float:
        """Absolute cosine between the direction of a candidate mode and that of the given one; 0 without a direction."""
        if candidate_mode.direction is None or mode.direction is None:
            return 0.0
        return abs(float(candidate_mode.direction @ mode.direction))

    return max(theory.modes, key=alignment)


def _sign_reference(problem: Problem, data: Data, rng: np.random.Generator) -> Array:
    """Vector ``adjoint(E[z | y])`` (P, D) of posterior means of the latents z given labels y, for priors N(omega = 0, V),
    which gives the signs of components where labels depend on them.
    """
    xp = namespace(data.inputs)
    device_and_dtype = matching(data.inputs)
    P = problem.components
    sign_reference = xp.zeros((P, data.dimension), **device_and_dtype)
    V = xp.asarray(problem.prior.second_moment(P), **device_and_dtype)
    for chunk in sample_chunks(problem.model, data.inputs, P):
        inputs = data.inputs[chunk, ...]
        labels = data.labels[chunk, ...]
        omega = xp.zeros((inputs.shape[0], P, problem.model.sites), **device_and_dtype)
        posterior = problem.channel.posterior(labels, omega, V, rng=rng)
        # The gradient V^{-1} E[z | y], seen through V again.
        posterior_mean = checked_posterior(posterior, omega).mean
        sign_reference = sign_reference + problem.model.adjoint(inputs, posterior_mean)
    return sign_reference


class LinearizedMatrices:
    """Matrices ``T = sum_mu X_mu^T [I - (I + G_mu + epsilon I)^{-1}] X_mu`` and ``K = (X X^T - I) G`` of linearized message
    passing as linear operators, for one direction or all components; ``X_mu`` maps a signal to the latents of sample mu, G are
    the label matrices.

    Only the weights (n, k, C, k, C) and latents (n, k, C) are held; a product reads the inputs chunk by chunk.
    """

    def __init__(
        self, problem: Problem, data: Data, G: Array, removed_eigenvectors: list[Array]
    ) -> None:
        """Store the inputs, the label matrices G (n, k, C, k, C) of n samples, k components (P of all, or one direction) and C
        sites, and the ``removed_eigenvectors`` to project out.
        """
        self.model = problem.model
        self.inputs = data.inputs
        self.removed_eigenvectors = removed_eigenvectors
        self.xp = namespace(data.inputs)
        self.n, self.P, self.C = G.shape[:3]
        self.D = data.dimension
        self.G = self.xp.reshape(G, (self.n, self.P * self.C, self.P * self.C))
        self.chunks = list(sample_chunks(self.model, self.inputs, self.P))

    def _multiply_by_sample(self, weights: Array, z: Array) -> Array:
        """Multiply the latents z (n, k, C) of every sample by the weight matrix of that sample, ``weights`` (n, k C, k C)."""
        xp = self.xp
        flat_latents = xp.reshape(z, (self.n, self.P * self.C, 1))
        return xp.reshape(xp.matmul(weights, flat_latents), (self.n, self.P, self.C))

    def _project_out(self, signal: Array) -> Array:
        """Project out of a signal (k, D) the eigenvectors computed so far."""
        for eigenvector in self.removed_eigenvectors:
            coefficients = self.xp.matmul(signal, eigenvector[:, None])
            signal = signal - coefficients * eigenvector[None, :]
        return signal

    def _forward(self, signal: Array) -> Array:
        """Latents of all samples for a signal (k, D)."""
        latents = [
            self.model.forward(self.inputs[chunk, ...], signal) for chunk in self.chunks
        ]
        return self.xp.concat(latents)

    def _adjoint(self, z: Array) -> Array:
        """Map latents z (n, k, C) back to a signal (k, D) with the adjoint, with the eigenvectors computed so far projected
        out.
        """
        signal = sum(
            self.model.adjoint(self.inputs[chunk, ...], z[chunk, ...])
            for chunk in self.chunks
        )
        return self._project_out(signal)

    def _to_device(self, vector: Host, shape: tuple[int, ...]) -> Array:
        """Move a flat vector to the device of the inputs, in the given shape."""
        return self.xp.reshape(asarray_like(vector, self.inputs), shape)

    def _to_host(self, array: Array) -> Host:
        """Move an ``array`` to the host, as a flat vector in double precision."""
        return to_host_floats(array).reshape(-1)

    def leading_symmetric(
        self, regularisation: float, rng: np.random.Generator
    ) -> tuple[float, Array]:
        """Largest eigenvalue of the symmetric matrix T with this regularisation epsilon (added to the label matrices), and its
        eigenvector (k, D), by Lanczos' method from a random vector.
        """
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

        signal_shape = (self.P, self.D)
        signal_size = self.P * self.D
        identity = self.xp.eye(self.P * self.C, **matching(self.G))
        regularized_G = (1 + regularisation) * identity + self.G
        sample_weights = identity - self.xp.linalg.inv(regularized_G)

        def multiply_by_T(vector: Host) -> Host:
            """Product of the symmetric matrix T of linearized message passing with a flat signal vector, on the host, through the
            latents z of the signal.
            """
            signal = self._project_out(self._to_device(vector, signal_shape))
            z = self._multiply_by_sample(sample_weights, self._forward(signal))
            return self._to_host(self._adjoint(z))

        initial_vector = rng.standard_normal(signal_size)
        # Lanczos' method needs a space much larger than its basis.
        if signal_size <= 40:
            columns_of_T = [
                multiply_by_T(unit_vector) for unit_vector in np.eye(signal_size)
            ]
            dense_matrix = np.stack(columns_of_T)
            eigenvalues, eigenvectors = np.linalg.eigh(symmetric(dense_matrix))
            return float(eigenvalues[-1]), self._to_device(
                eigenvectors[:, -1], signal_shape
            )
        T_operator = LinearOperator(
            (signal_size, signal_size), matvec=multiply_by_T, dtype=np.float64
        )
        eigensolver_options = {
            "v0": initial_vector,
            "ncv": min(signal_size, 60),
            "tol": 1e-6,
            "maxiter": 400,
        }
        try:
            eigenvalues, eigenvectors = eigsh(
                T_operator, k=1, which="LA", **eigensolver_options
            )
        except ArpackNoConvergence as error:
            raise ArithmeticError(
                f"Lanczos' method for the leading eigenvector of the symmetric matrix did not converge: {error}"
            ) from None
        return float(eigenvalues[0]), self._to_device(eigenvectors[:, 0], signal_shape)

    def leading_asymmetric(
        self, rng: np.random.Generator
    ) -> tuple[float, Array] | None:
        """Largest real eigenvalue of the asymmetric matrix K, and the signal (k, D) of its eigenvector, by Arnoldi's method;
        None if there is no real one above 1 among those searched.
        """
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

        xp, latent_size = self.xp, self.n * self.P * self.C
        if latent_size < 2 * SEARCHED_EIGENVALUES + 4:
            return None
        # Labels such as signs change no second moments: K is zero, and has no eigenvector to look for.
        if not bool(xp.max(xp.abs(self.G)) > 1e-12):
            return None

        def weighted_latents(vector: Host) -> Array:
            """Latents of all samples, from a flat vector on the host, multiplied sample by sample by the label matrices G."""
            return self._multiply_by_sample(self.G, self._to_device(vector, (-1,)))

        def multiply_by_K(vector: Host) -> Host:
            """Product of the asymmetric matrix K of linearized message passing with a flat vector of latents, on the host; z are
            these latents times the label matrices G.
            """
            z = weighted_latents(vector)
            return self._to_host(self._forward(self._adjoint(z)) - z)

        K_operator = LinearOperator(
            (latent_size, latent_size), matvec=multiply_by_K, dtype=np.float64
        )
        initial_vector = rng.standard_normal(latent_size)
        eigensolver_options = {
            "v0": initial_vector,
            "ncv": min(latent_size, 80),
            "tol": 1e-6,
            "maxiter": 200,
        }
        try:
            eigenvalues, eigenvectors = eigs(
                K_operator, k=SEARCHED_EIGENVALUES, which="LR", **eigensolver_options
            )
        except ArpackNoConvergence as error:
            eigenvalues, eigenvectors = error.eigenvalues, error.eigenvectors
        eigenvalue_is_real = np.abs(eigenvalues.imag) <= 1e-9 * np.abs(eigenvalues)
        if not eigenvalue_is_real.any():
            return None
        leading_index = int(
            np.argmax(np.where(eigenvalue_is_real, eigenvalues.real, -np.inf))
        )
        eigenvalue = float(eigenvalues[leading_index].real)
        # Where there is an outlier it is alpha F > 1; a smaller one belongs to the bulk.
        if eigenvalue <= 1:
            return None
        signal = self._adjoint(weighted_latents(eigenvectors[:, leading_index].real))
        return eigenvalue, signal / xp.sqrt(xp.sum(signal * signal))
