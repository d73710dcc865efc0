r"""Theory of the spectral estimate of low-rank signals: outliers and overlaps of linearized message passing.

With ``M_mu = E[z z^T | y_mu]`` at ``omega = 0, V = I`` and ``G_mu = M_mu - I`` (both act on components times sites),
the posterior of the signal in the Gaussian approximation that ``M`` suggests has the precision ``I - T``,

.. math:: T = \sum_\mu X_\mu^T \mathcal{T}_\mu X_\mu, \qquad \mathcal{T} = I - (I + G + \epsilon I)^{-1},

where ``X_\mu`` maps a signal to the latents of sample mu. The signal is the leading eigenvector of T
(``kind = "symmetric"``), or of ``K = (X X^T - I) G`` on the latents (``"asymmetric"``), which is message passing
linearized around the prior mean. If ``K v = \mu v`` then ``u = X^T G v`` is an eigenvector with eigenvalue 1 of the matrix
T made from ``\mathcal{T} = G (\mu I + G)^{-1}``, so that one theory covers both.

For any function ``\mathcal{T}`` of the label, with ``J = \mathcal{T} (I - \chi \mathcal{T})^{-1}``, the bulk ends where
``alpha chi^2 E tr J^2 = 1``; there is an outlier if ``alpha chi E tr (G J) = 1`` has a root chi below that, and then

.. math::

    \lambda = \frac{1}{\chi} + \alpha E \operatorname{tr} J, \qquad
    q = \frac{1/\chi^2 - \alpha E \operatorname{tr} J^2}{1/\chi^2 + \alpha E \operatorname{tr}(G J^2)},

q the squared overlap of unit vectors. Without epsilon this is ``q = 1 - chi`` and ``lambda = 1`` for the symmetric matrix;
for the asymmetric one ``\mu = alpha F`` and ``q = (alpha - 1/F) / (alpha + K_3 / F^2)``, ``F = E tr G^2``, ``K_3 = E tr G^3``.
Both have an outlier for ``alpha > 1/F`` only (the symmetric one for small epsilon).

Several components: if all ``G_mu`` have one common set of eigenvectors e_k in the space of components, each direction is a
problem of its own with ``e_k^T G e_k``; deep attention (e_k are the layers) and products of two directions (their sum and
difference) are of this kind. A direction that has been found is removed before the next one is looked for, because the
matrix of one layer may have the direction of another layer among its outliers. Where there is no such set, the one leading
eigenvector (P, D) of the whole matrix is taken, with the matrix-valued version of the same theory (``joint_eigenvector_mode``).

Derived, checked by tests/algorithms/test_spectral_limit.py (closed forms of arXiv:2502.00901, simulation).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from smimbench.backend import matching, namespace
from smimbench.interfaces import Array, Channel, Host, checked_posterior
from smimbench.numerics import (
    monte_carlo_rng,
    normal_points,
    spectral_function,
    symmetric,
    symmetric_root,
)
from smimbench.problem import Problem
from smimbench.theory import prior_moments

KINDS = ("symmetric", "asymmetric")
REGULARISATION = 1e-2
"""Default epsilon: below a relative overlap loss of 1% up to alpha M = 1.2 for one softmax layer, at a hundredth of the
condition number that 1e-4 would have."""

POINT_SETS = 8
"""Independent sets of labels; their spread is the error. Doubled: 0.7 times the error."""

POINTS = 2**11
"""Labels of a set. Doubled: about half the error, in twice the time."""


def why_not_linearized(problem: Problem) -> str | None:
    """Reason why linearized message passing does not apply to a low-rank problem, or None."""
    second_moment, mean_overlap = prior_moments(problem)
    if np.abs(mean_overlap).max() > 1e-9 * np.abs(second_moment).max():
        return "spectral linearizes around zero and needs a low-rank prior of mean zero; use gamp for this prior"
    return None


def second_moment_root(problem: Problem) -> Host:
    """Symmetric square root of the prior's second moment (P, P)."""
    moment_root = np.asarray(symmetric_root(prior_moments(problem)[0]))
    identity = np.eye(len(moment_root))
    return (
        identity
        if np.allclose(moment_root, identity, rtol=0, atol=1e-12)
        else moment_root
    )


def label_matrices(
    channel: Channel,
    labels: Array,
    moment_root: Host,
    C: int,
    rng: np.random.Generator,
    array_like: Array,
) -> Array:
    """Matrices ``G = E[z z^T | y] - I`` (n, P, C, P, C) of n labels y, from the channel's posteriors of the latents z (P
    components, C sites) for priors N(omega = 0, V), after components are scaled to unit second moment; ``moment_root`` (P, P) is
    the root of that moment, arrays are like ``array_like``.
    """
    xp = namespace(array_like)
    device_and_dtype = matching(array_like)
    P = len(moment_root)
    omega = xp.zeros((labels.shape[0], P, C), **device_and_dtype)
    V = xp.asarray(moment_root @ moment_root, **device_and_dtype)
    posterior = channel.posterior(labels, omega, V, second_moment=True, rng=rng)
    second_moment = checked_posterior(posterior, omega).second_moment
    if second_moment is None:
        raise ValueError(
            f"channel {channel.name!r} does not provide the second moment of its posterior, which spectral methods need"
        )
    if not np.array_equal(moment_root, np.eye(P)):
        inverse_moment_root = xp.asarray(
            np.kron(np.linalg.inv(moment_root), np.eye(C)), **device_and_dtype
        )
        flat_moment = xp.reshape(second_moment, (-1, P * C, P * C))
        whitened_moment = xp.matmul(
            xp.matmul(inverse_moment_root, flat_moment), inverse_moment_root
        )
        second_moment = xp.reshape(whitened_moment, second_moment.shape)
    identity = xp.eye(P * C, **device_and_dtype)
    return second_moment - xp.reshape(identity, (1, P, C, P, C))


@dataclass(frozen=True)
class Mode:
    """Leading eigenvector ``U`` (P, D) of unit norm in the limit: its eigenvalue (NaN if it is no outlier), the direction e of
    ``U = e v^T`` (None if U has all components), its overlap A with the signal, its Gram matrix, and the strength of the signal
    in it.

    ``U sqrt(D) = A W + noise``, where W is ``M^(-1/2)`` times the signal, M its second moment.

    Attributes
    ----------
    eigenvalue : float
        Outlier of the matrix; NaN where there is none (then ``A = 0``).
    direction : ndarray (P,) or None
        Unit vector e with ``U = e v^T``; None for an eigenvector that has all components at once.
    A : ndarray (P, P)
        Overlap with the signal.
    gram : ndarray (P, P)
        ``U U^T``, trace 1.
    signal_strength : float
        ``alpha F`` of this direction: above 1 there is an outlier (without regularisation).
    """

    eigenvalue: float
    direction: Host | None  # unit vector e of the components
    A: Host  # overlap with the signal
    gram: Host  # U U^T
    signal_strength: float  # alpha F

    @property
    def is_outlier(self) -> bool:
        """Whether the eigenvalue is an outlier, so that the eigenvector is correlated with the signal."""
        return bool(np.isfinite(self.eigenvalue))

    @property
    def scale(self) -> float:
        """Norm, in units of ``sqrt(D)``, to which the eigenvector is rescaled for the smallest squared error: ``tr A``."""
        return max(float(np.trace(self.A)), 0.0)


@dataclass(frozen=True)
class SpectralTheory:
    """Predicted modes (leading eigenvectors) of the matrix, strongest first, and overlaps and errors of the spectral estimate, as
    D goes to infinity.

    Attributes
    ----------
    modes : tuple of Mode
        Strongest first.
    squared_cosine : ndarray (P,)
        Of every component of the estimate with the signal.
    mse : ndarray (P,)
        Of the estimate at its best scale, the second moment for an estimate of zero.
    mse_error : ndarray (P,)
        Standard error of ``mse`` (sampling of the labels).
    self_overlap : ndarray (P, P)
        ``W_hat W_hat^T / D`` of the estimate.
    signal_overlap : ndarray (P, P)
        ``W_hat W^T / D`` with the signal.
    """

    modes: tuple[Mode, ...]
    squared_cosine: Host  # of every component (P,)
    mse: Host  # of every component (P,)
    mse_error: Host  # numerical error of the MSE (P,)
    self_overlap: Host  # estimate with estimate (P, P)
    signal_overlap: Host  # estimate with signal (P, P)


@functools.lru_cache(maxsize=256)
def spectral_theory(
    problem: Problem,
    alpha: float,
    kind: str = "symmetric",
    regularisation: float = REGULARISATION,
) -> SpectralTheory:
    """Predict overlap, error and outliers of the spectral estimate for a low-rank problem at sample ratio alpha, from sampled
    label matrices ``G = E[z z^T | y] - I``, for the matrix of this kind; ``regularisation`` is epsilon in ``I - (I + G + epsilon
    I)^{-1}``, of which the symmetric one is made.

    Expectations over the labels are means over scrambled Sobol points; the error is the standard error over
    ``POINT_SETS`` independent scrambles.

    Parameters
    ----------
    alpha : float
        Sample ratio n / D.
    kind : {"symmetric", "asymmetric"}
    regularisation : float
        epsilon > 0; the symmetric matrix only.
    """
    G = _sampled_labels(problem)
    eigenbasis = _common_eigenbasis(problem)
    moment_root = second_moment_root(problem)
    pooled_theory = _solve_modes(
        G.reshape(-1, *G.shape[2:]),
        eigenbasis,
        alpha,
        kind,
        regularisation,
        moment_root,
    )
    mse_of_sets = [
        _solve_modes(G_of_set, eigenbasis, alpha, kind, regularisation, moment_root).mse
        for G_of_set in G
    ]
    standard_deviation = np.std(mse_of_sets, axis=0, ddof=1)
    return replace(
        pooled_theory, mse_error=standard_deviation / np.sqrt(len(mse_of_sets))
    )


@functools.lru_cache(maxsize=8)
def _sampled_labels(problem: Problem) -> Host:
    """Label matrices ``G = E[z z^T | y] - I`` (sets, points, P, C, P, C) of labels y of randomly drawn latents z (P
    components, C sites).
    """
    P, C = problem.components, problem.model.sites
    moment_root = second_moment_root(problem)
    matrices_of_sets = []
    for point_set in range(POINT_SETS):
        normal_latents = normal_points(
            P * C, POINTS, "spectral limit: latents", point_set
        )
        z = moment_root @ normal_latents.reshape(POINTS, P, C)
        rng = monte_carlo_rng("spectral limit: labels", point_set)
        labels = problem.channel.forward(z, rng=rng)
        matrices_of_sets.append(
            label_matrices(problem.channel, labels, moment_root, C, rng, z)
        )
    return np.stack(matrices_of_sets)


@functools.lru_cache(maxsize=8)
def _common_eigenbasis(problem: Problem) -> Host | None:
    """Basis (rows e_k) of the space of P components in which all label matrices G (of ``problem``) are diagonal up to 1%, or None
    if there is none.
    """
    G = _sampled_labels(problem)[0]
    P = G.shape[1]
    if P == 1:
        return np.ones((1, 1))
    symmetric_parts = (G + G.transpose(0, 1, 4, 3, 2)) / 2
    component_blocks = symmetric_parts.transpose(0, 2, 4, 1, 3).reshape(-1, P, P)
    total_square_of_blocks = (component_blocks**2).sum()
    rng = monte_carlo_rng("spectral limit: mixture of blocks")
    # A random combination has the common eigenvectors and, unless two directions are alike, distinct eigenvalues.
    random_weights = rng.standard_normal(len(component_blocks)) / np.sqrt(
        1 + (component_blocks**2).sum((1, 2))
    )
    random_combination = np.einsum("n,npq->pq", random_weights, component_blocks)
    for candidate_basis in (np.eye(P), np.linalg.eigh(random_combination)[1].T):
        rotated_blocks = candidate_basis @ component_blocks @ candidate_basis.T
        diagonal_square = (np.diagonal(rotated_blocks, axis1=1, axis2=2) ** 2).sum()
        if (rotated_blocks**2).sum() - diagonal_square <= 1e-2 * total_square_of_blocks:
            return np.asarray(candidate_basis)
    return None


def _solve_modes(
    G: Host,
    eigenbasis: Host | None,
    alpha: float,
    kind: str,
    regularisation: float,
    moment_root: Host,
) -> SpectralTheory:
    """Predict all modes of the matrix of this kind at sample ratio alpha, and the estimate's overlaps, from label matrices G (n,
    P, C, P, C): direction by direction of ``eigenbasis``, or jointly if it is None. Q, M, T are self-overlap, overlap with the
    signal, and its second moment, of root ``moment_root``. ``regularisation`` is epsilon in ``I - (I + G + epsilon I)^{-1}``, of
    which the symmetric matrix is made.
    """
    P = G.shape[1]
    if eigenbasis is None:
        modes = [joint_eigenvector_mode(G, alpha, kind, regularisation)]
    else:
        modes = [
            direction_mode(G, direction, alpha, kind, regularisation)
            for direction in eigenbasis
        ]
        modes.sort(key=lambda mode: -mode.signal_strength)
    zero_matrix = np.zeros((P, P))
    whitened_cross = sum((mode.scale * mode.A for mode in modes), zero_matrix)
    whitened_gram = sum((mode.scale**2 * mode.gram for mode in modes), zero_matrix)
    self_overlap = moment_root @ whitened_gram @ moment_root
    signal_overlap = moment_root @ whitened_cross @ moment_root
    Q, M, T = (
        np.diagonal(overlap_matrix)
        for overlap_matrix in (self_overlap, signal_overlap, moment_root @ moment_root)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        squared_cosine = np.where(Q > 0, M**2 / (Q * T), 0.0)
    mse = T - 2 * M + Q
    return SpectralTheory(
        tuple(modes), squared_cosine, mse, np.zeros(P), self_overlap, signal_overlap
    )


def direction_mode(
    G: Host, e: Host, alpha: float, kind: str, regularisation: float
) -> Mode:
    """Predict the mode of the matrix of this kind (symmetric or asymmetric) at sample ratio alpha along a common eigenvector e of
    all label matrices G, from the eigenvalues of ``e^T G e`` (C, C), their mean square F, and resolvents J at the susceptibility
    chi; q is the squared overlap with the signal. ``regularisation`` is epsilon of the symmetric matrix, whose eigenvalues are
    preprocessed to ``1 - 1/(1 + eigenvalue + epsilon)``.
    """
    projected_G = project_on_direction(G, e)[:, 0, :, 0]
    eigenvalues = np.linalg.eigvalsh(symmetric(projected_G))

    def mean_over_labels(eigenvalue_function: Host) -> float:
        """Mean over the labels of ``eigenvalue_function`` (labels, C), a function of the eigenvalues, summed over those of a
        label.
        """
        return float(eigenvalue_function.sum() / len(eigenvalues))

    F = mean_over_labels(eigenvalues * eigenvalues)
    projector = np.outer(e, e)

    def mode(eigenvalue: float, q: float) -> Mode:
        """Mode along the direction e of the components with this eigenvalue and the squared overlap q with the signal."""
        return Mode(eigenvalue, e, np.sqrt(q) * projector, projector, alpha * F)

    mode_without_outlier = mode(np.nan, 0.0)
    if kind == "asymmetric":
        if alpha * F <= 1:
            return mode_without_outlier
        q = (alpha - 1 / F) / (alpha + mean_over_labels(eigenvalues**3) / F**2)
        return mode(alpha * F, q)
    preprocessed_eigenvalues = 1 - 1 / (1 + eigenvalues + regularisation)
    largest_preprocessed = float(preprocessed_eigenvalues.max())
    if largest_preprocessed <= 0:
        return mode_without_outlier

    def edge_equation(chi: float) -> float:
        """Function of the susceptibility chi whose root gives the edge of the bulk of eigenvalues, from the resolvents J of the
        labels.
        """
        J = preprocessed_eigenvalues / (1 - chi * preprocessed_eigenvalues)
        return alpha * chi**2 * mean_over_labels(J**2) - 1

    def outlier_equation(chi: float) -> float:
        """Function of the susceptibility chi whose root gives the outlier eigenvalue."""
        resolvent_products = (
            eigenvalues
            * preprocessed_eigenvalues
            / (1 - chi * preprocessed_eigenvalues)
        )
        return alpha * chi * mean_over_labels(resolvent_products) - 1

    from scipy.optimize import brentq

    chi_edge = (1 - 1e-12) / largest_preprocessed
    if edge_equation(chi_edge) > 0:
        chi_edge = brentq(edge_equation, 1e-9 * chi_edge, chi_edge, xtol=1e-15)
    if outlier_equation(chi_edge) <= 0:
        return mode_without_outlier
    chi = brentq(outlier_equation, 1e-9 * chi_edge, chi_edge, xtol=1e-15)
    J = preprocessed_eigenvalues / (1 - chi * preprocessed_eigenvalues)
    mean_JJ = mean_over_labels(J * J)
    mean_GJJ = mean_over_labels(eigenvalues * J * J)
    q = (1 / chi**2 - alpha * mean_JJ) / (1 / chi**2 + alpha * mean_GJJ)
    return mode(1 / chi + alpha * mean_over_labels(J), max(q, 0.0))


def project_on_direction(G: Array, direction: Array) -> Array:
    """Label matrices G (n, P, C, P, C) along one direction e (P,) of the components: ``e^T G e`` (n, 1, C, 1, C)."""
    xp = namespace(G)
    contracted_rows = xp.sum(
        G * direction[None, :, None, None, None], axis=1, keepdims=True
    )
    return xp.sum(
        contracted_rows * direction[None, None, None, :, None], axis=3, keepdims=True
    )


def joint_eigenvector_mode(
    G: Host, alpha: float, kind: str, regularisation: float
) -> Mode:
    r"""Predict the mode of the leading eigenvector of all P components together, of the matrix of this kind at sample ratio
    alpha, from label matrices G (n, P, C, P, C), the susceptibility matrix X (P, P), resolvents J of the labels and the overlap A
    with the signal. ``regularisation`` is epsilon in ``I - (I + G + epsilon I)^{-1}``, of which the symmetric matrix is made;
    components and sites share one axis in ``flat_G``. ``signal_strength`` is ``alpha F``, with F the mean square of G, above 1
    where there is an outlier without epsilon.

    Matrix-valued version of the equations above, ``X`` (P, P) in place of chi and ``A`` the overlap with the signal:

    .. math::

        X^{-1} = \lambda I - \alpha E \sum_m J_{mm}, \qquad
        X^{-1} A = \alpha E \sum_{mm'} J_{mm'} A G_{m'm}, \qquad J = \mathcal{T} (I - X \mathcal{T})^{-1}.

    The noise of the eigenvector has the Gram matrix ``N = X (S + alpha E sum J N J) X`` with
    ``S = alpha E sum J A (I + G) A^T J``, and ``tr (A A^T + N) = 1`` normalizes A.
    """
    label_count, P, C = G.shape[:3]
    latent_count = P * C
    flat_G = G.reshape(label_count, latent_count, latent_count)
    identity = np.eye(latent_count)
    signal_strength = alpha * float(
        np.linalg.eigvalsh(_matrix_of_site_sum(flat_G, flat_G, P))[-1]
    )
    mode_without_outlier = Mode(
        np.nan, None, np.zeros((P, P)), np.eye(P) / P, signal_strength
    )
    if signal_strength <= 1:
        return mode_without_outlier
    if kind == "asymmetric":
        X = np.eye(P)
        J = flat_G / signal_strength
        eigenvalue = signal_strength
    else:
        preprocessed_matrices = identity - np.linalg.inv(
            identity + flat_G + regularisation * identity
        )

        def resolvent(X: Host) -> Host:
            """Resolvents ``J = T (I - X T)^{-1}`` of all labels at the susceptibility X (P, P), with T the label matrices after
            preprocessing.
            """
            matrix_to_invert = identity - preprocessed_matrices @ np.kron(X, np.eye(C))
            return np.asarray(np.linalg.solve(matrix_to_invert, preprocessed_matrices))

        joint_outlier = _joint_outlier(flat_G, alpha, P, resolvent)
        if joint_outlier is None:
            return mode_without_outlier
        X, eigenvalue = joint_outlier
        J = resolvent(X)
    overlap_equation = np.kron(np.linalg.inv(X), np.eye(P))
    overlap_equation = overlap_equation - alpha * _matrix_of_site_sum(J, flat_G, P)
    A = np.linalg.eigh(symmetric(overlap_equation))[1][:, 0].reshape(P, P)
    A = A * np.sign(np.trace(A) or 1.0)
    A_left = np.kron(A, np.eye(C))
    A_right = np.kron(A.T, np.eye(C))
    signal_term = J @ A_left @ (identity + flat_G) @ A_right @ J
    signal_covariance = alpha * _sum_over_sites(signal_term, P)
    X_squared = np.kron(X, X)
    noise_equation = np.eye(P * P) - alpha * X_squared @ _matrix_of_site_sum(J, J, P)
    noise_gram = np.linalg.solve(
        noise_equation, X_squared @ signal_covariance.reshape(-1)
    ).reshape(P, P)
    gram_matrix = A @ A.T + noise_gram
    squared_norm = float(np.trace(gram_matrix))
    if np.linalg.eigvalsh(symmetric(noise_gram))[0] < 0:  # a solution inside the bulk
        return mode_without_outlier
    return Mode(
        float(eigenvalue),
        None,
        A / np.sqrt(squared_norm),
        gram_matrix / squared_norm,
        signal_strength,
    )


def _joint_outlier(
    flat_G: Host, alpha: float, P: int, resolvent: Callable[[Host], Host]
) -> tuple[Host, float] | None:
    """Solve for the susceptibility matrix ``X`` (P, P) and the outlier eigenvalue by Newton's method, from label matrices G
    (``flat_G``, components and sites on one axis) of P components and C sites at sample ratio alpha; ``resolvent`` gives the
    resolvents J at X. It starts from the solution without regularisation (epsilon = 0): eigenvalue 1 and ``X = I - Q``, with Q
    the overlap and Qhat the information of message passing at its fixed point. None if there is no outlier.

    It starts from the known solution without epsilon.

    Without epsilon ``lambda = 1`` and ``X = I - Q``, where ``Q (I - Q)^{-1} = alpha E sum_mm' J_mm' Q G_m'm`` with
    ``J = G (I + Q G)^{-1}`` is iterated from above.
    """
    from scipy.optimize import root

    C = flat_G.shape[-1] // P
    Q = 0.9 * np.eye(P)
    for _ in range(1000):
        J = flat_G @ np.linalg.inv(np.eye(P * C) + np.kron(Q, np.eye(C)) @ flat_G)
        Qhat = (alpha * _matrix_of_site_sum(J, flat_G, P) @ Q.reshape(-1)).reshape(P, P)
        next_Q = spectral_function(Qhat, _gaussian_overlap)
        largest_change_of_Q = np.abs(next_Q - Q).max()
        Q = next_Q
        if largest_change_of_Q < 1e-7:
            break
    if np.trace(Q) < 1e-4 * P:
        return None
    upper_triangle = np.triu_indices(P)

    def X_and_eigenvalue(unknowns: Host) -> tuple[Host, float]:
        """Symmetric matrix X (P, P) and eigenvalue from the vector of unknowns, the upper triangle of X and then the
        eigenvalue.
        """
        X = np.zeros((P, P))
        X[upper_triangle] = unknowns[:-1]
        return X + np.triu(X, 1).T, float(unknowns[-1])

    def residuals(unknowns: Host) -> Host:
        """Residuals, at these unknowns, of the equation of X with its resolvents J, and the smallest eigenvalue of the linear
        equation for the overlap A, which is zero at the outlier.
        """
        X, eigenvalue = X_and_eigenvalue(unknowns)
        J = resolvent(X)
        X_inverse = np.linalg.inv(X)
        equation_of_X = (
            X_inverse - eigenvalue * np.eye(P) + alpha * _sum_over_sites(J, P)
        )
        site_sum = alpha * _matrix_of_site_sum(J, flat_G, P)
        overlap_equation = symmetric(np.kron(X_inverse, np.eye(P)) - site_sum)
        smallest_eigenvalue = np.linalg.eigvalsh(overlap_equation)[0]
        return np.append(equation_of_X[upper_triangle], smallest_eigenvalue)

    root_solution = root(
        residuals, np.append((np.eye(P) - Q)[upper_triangle], 1.0), tol=1e-9
    )
    X, eigenvalue = X_and_eigenvalue(root_solution.x)
    if np.abs(root_solution.fun).max() > 1e-6 or np.linalg.eigvalsh(X)[0] <= 0:
        return None
    return X, eigenvalue


def _gaussian_overlap(information: Host) -> Host:
    """Overlap ``Qhat / (1 + Qhat)`` of the posterior mean of a Gaussian signal with the signal, at the eigenvalues
    ``information`` Qhat, elementwise; 0 where that is negative.
    """
    positive_information = np.clip(information, 0, None)
    return np.asarray(positive_information / (1 + positive_information))


def _sum_over_sites(J: Host, P: int) -> Host:
    """Trace over sites m, ``E sum_m J_mm`` (P, P), of matrices J on P components times C sites; E is the mean over labels,
    the first axis of J.
    """
    C = J.shape[-1] // P
    return np.asarray(np.einsum("npmqm->pq", J.reshape(-1, P, C, P, C)) / len(J))


def _matrix_of_site_sum(J: Host, K: Host, P: int) -> Host:
    """Matrix (P^2, P^2) of the linear map ``A -> E sum_mm' J_mm' A K_m'm`` of matrices A (P, P), for J and K on P components
    times C sites m; E is the mean over labels, the first axis of J and K.
    """
    C = J.shape[-1] // P
    J_rows = J.reshape(-1, P, C, P, C).transpose(1, 3, 0, 2, 4).reshape(P * P, -1)
    K_columns = K.reshape(-1, P, C, P, C).transpose(1, 3, 0, 4, 2).reshape(P * P, -1)
    site_products = (J_rows @ K_columns.T / len(J)).reshape(P, P, P, P)  # p r s q
    return site_products.transpose(0, 3, 1, 2).reshape(P * P, P * P)
