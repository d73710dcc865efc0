r"""What the eigenvectors of linearised message passing achieve as D goes to infinity, for signals of low rank.

With ``M_mu = E[z z^T | y_mu]`` at ``omega = 0, V = I`` and ``G_mu = M_mu - I`` (both act on components times sites),
the posterior of the signal in the Gaussian approximation that ``M`` suggests has the precision ``I - T``,

.. math:: T = \sum_\mu X_\mu^T \mathcal{T}_\mu X_\mu, \qquad \mathcal{T} = I - (I + G + \epsilon I)^{-1},

where ``X_\mu`` maps a signal to the latents of sample mu. The signal is the leading eigenvector of T
(``kind = "symmetric"``), or of ``K = (X X^T - I) G`` on the latents (``"asymmetric"``), which is message passing
linearised around the prior mean. If ``K v = \mu v`` then ``u = X^T G v`` is an eigenvector with eigenvalue 1 of the matrix
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
eigenvector (P, D) of the whole matrix is taken, with the matrix-valued version of the same theory (``joint_mode``).

Derived, checked by tests/algorithms/test_spectral_limit.py (closed forms of arXiv:2502.00901, simulation).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smimbench.files import canonical_json
from smimbench.numerics.qmc import normal_points
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench_algorithms.spectral.labels import label_matrices, second_moment_root, why_not
from smimbench_algorithms.spectral.outliers import Host, Mode, direction_mode, joint_mode

if TYPE_CHECKING:
    from smimbench.problem import Problem

__all__ = ["KINDS", "REGULARISATION", "SpectralTheory", "spectral_theory"]

KINDS = ("symmetric", "asymmetric")
REGULARISATION = 1e-2
"""Default epsilon: below a relative overlap loss of 1% up to alpha M = 1.2 for one softmax layer, at a hundredth of the
condition number that 1e-4 would have."""

SCRAMBLES = 8
"""Independent sets of labels that expectations are averaged over; their spread is the error. Doubled: 0.7 times the error."""

POINTS = 2**11
"""Labels of a set. Doubled: about half the error, in twice the time."""

COMMUTING = 1e-2
"""Part of the squared weights off the diagonal up to which directions count as problems of their own. Doubled: so do pairs of
components that know a little of each other."""


@dataclass(frozen=True)
class SpectralTheory:
    """What the spectral estimate achieves as D goes to infinity.

    Attributes
    ----------
    modes : tuple of Mode
        Strongest first.
    overlap : ndarray (P, P)
        Squared cosine of every component on the diagonal; zero elsewhere.
    mse : ndarray (P,)
        Of the estimate at its best scale, the second moment for an estimate of zero.
    error : ndarray (P,)
        Standard error of ``mse`` (sampling of the labels).
    root : ndarray (P, P)
        Symmetric root of the prior's second moment.
    """

    modes: tuple[Mode, ...]
    overlap: Host
    mse: Host
    error: Host
    root: Host

    @property
    def cosine_error(self) -> Host:
        """Standard error (P,) of the squared cosines: that of the errors in units of the second moment."""
        return np.asarray(self.error / np.diagonal(self.root @ self.root))

    @property
    def gram(self) -> Host:
        """``W_hat W_hat^T / D`` of the estimate (P, P)."""
        whitened = sum((mode.scale**2 * mode.gram for mode in self.modes), np.zeros_like(self.overlap))
        return np.asarray(self.root @ whitened @ self.root)


def spectral_theory(
    problem: Problem, alpha: float, kind: str = "symmetric", regularisation: float = REGULARISATION
) -> SpectralTheory:
    """Overlap, error and outliers of the spectral estimate of a low-rank problem.

    Expectations over the labels are means over scrambled Sobol points; the error is the standard error over
    ``SCRAMBLES`` independent scrambles.

    Parameters
    ----------
    alpha : float
        Sample ratio n / D.
    kind : {"symmetric", "asymmetric"}
    regularisation : float
        epsilon > 0; the symmetric matrix only.

    Raises
    ------
    ValueError
        If the signal is of extensive rank, its prior has a nonzero mean, or ``kind`` is unknown.
    """
    if problem.model.rank != "low":
        raise ValueError(
            "the matrices of linearised message passing are for low rank; use first_order_theory"
        )
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if reason := why_not(problem):
        raise ValueError(reason)
    key = canonical_json({k: {n: v for n, v in s.items()} for k, s in problem.spec.items()})
    return _cached_theory(_Keyed(key, problem), float(alpha), kind, float(regularisation))


class _Keyed:
    """A problem that is equal to another one of the same names and parameters."""

    def __init__(self, key: str, problem: Problem) -> None:
        self.key, self.problem = key, problem

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@functools.lru_cache(maxsize=256)
def _cached_theory(keyed: _Keyed, alpha: float, kind: str, regularisation: float) -> SpectralTheory:
    G = _sampled_labels(keyed)
    basis, root = _common_basis(keyed), second_moment_root(keyed.problem)
    whole = _solve(G.reshape(-1, *G.shape[2:]), basis, alpha, kind, regularisation, root)
    parts = [_solve(g, basis, alpha, kind, regularisation, root) for g in G]
    error = np.std([part.mse for part in parts], axis=0, ddof=1) / np.sqrt(len(parts))
    return replace(whole, error=error)


@functools.lru_cache(maxsize=8)
def _sampled_labels(keyed: _Keyed) -> Host:
    """``G = E[z z^T | y] - I`` (scrambles, points, P, C, P, C) for labels drawn at random."""
    problem = keyed.problem
    P, C, root = problem.components, problem.model.sites, second_moment_root(problem)
    found = []
    for scramble in range(SCRAMBLES):
        normal = normal_points(P * C, POINTS, "spectral limit: latents", scramble)
        z = root @ normal.reshape(POINTS, P, C)
        rng = monte_carlo_rng("spectral limit: labels", scramble)
        labels = problem.channel.forward(z, rng=rng)
        found.append(label_matrices(problem.channel, labels, root, C, rng=rng, like=z))
    return np.stack(found)


@functools.lru_cache(maxsize=8)
def _common_basis(keyed: _Keyed) -> Host | None:
    """Rows e_k that diagonalise all G in the space of components, or None if there are none."""
    G = _sampled_labels(keyed)[0]
    P = G.shape[1]
    if P == 1:
        return np.ones((1, 1))
    symmetric = (G + G.transpose(0, 1, 4, 3, 2)) / 2
    blocks = symmetric.transpose(0, 2, 4, 1, 3).reshape(-1, P, P)
    energy = (blocks**2).sum()
    mix = monte_carlo_rng("spectral limit: mixture of blocks").standard_normal(len(blocks))
    # A random combination has the common eigenvectors and, unless two directions are alike, distinct eigenvalues.
    candidates = [
        np.eye(P),
        np.linalg.eigh(np.einsum("n,npq->pq", mix / np.sqrt(1 + (blocks**2).sum((1, 2))), blocks))[1].T,
    ]
    for basis in candidates:
        turned = basis @ blocks @ basis.T
        off = (turned**2).sum() - (np.diagonal(turned, axis1=1, axis2=2) ** 2).sum()
        if off <= COMMUTING * energy:
            return np.asarray(basis)
    return None


def _solve(
    G: Host, basis: Host | None, alpha: float, kind: str, regularisation: float, root: Host
) -> SpectralTheory:
    P = G.shape[1]
    if basis is None:
        modes = [joint_mode(G, alpha, kind, regularisation)]
    else:
        modes = [direction_mode(G, e, alpha, kind, regularisation) for e in basis]
        modes.sort(key=lambda mode: -mode.strength)
    M = sum((mode.scale * mode.A for mode in modes), np.zeros((P, P)))
    whitened = sum((mode.scale**2 * mode.gram for mode in modes), np.zeros((P, P)))
    gram, cross, second = (np.diagonal(root @ found @ root) for found in (whitened, M, np.eye(P)))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = np.where(gram > 0, cross**2 / (gram * second), 0.0)
    return SpectralTheory(tuple(modes), np.diag(cosine), second - 2 * cross + gram, np.zeros(P), root)
