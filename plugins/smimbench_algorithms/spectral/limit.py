r"""Spectral estimates: linearised message passing at the prior mean, and what it achieves in the limit.

Low rank
--------
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
eigenvector (P, D) of the whole matrix is taken, with the matrix-valued version of the same theory (``_joint_mode``).

Extensive rank
--------------
One step of message passing, from zero or from the prior mean, denoised by the prior.

Derived, checked by tests/theory/test_spectral.py (closed forms of arXiv:2502.00901, simulation).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from smimbench.backend import namespace, sample_chunks, to_host
from smimbench.files import canonical_json
from smimbench.numerics.linalg import spectral_function, symmetric_root, with_floor
from smimbench.numerics.qmc import normal_points
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.information import channel_information

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Data, Denoised
    from smimbench.problem import Problem

__all__ = [
    "KINDS",
    "ORIGINS",
    "REGULARISATION",
    "Mode",
    "SpectralEstimate",
    "SpectralTheory",
    "first_order",
    "first_order_theory",
    "spectral_estimate",
    "spectral_theory",
    "why_not",
]

KINDS = ("symmetric", "asymmetric")
ORIGINS = ("prior-mean", "zero")
REGULARISATION = 1e-2
"""Default epsilon: below a relative overlap loss of 1% up to alpha M = 1.2 for one softmax layer, at a hundredth of the
condition number that 1e-4 would have."""

SCRAMBLES = 8
POINTS = 2**11
COMMUTING = 1e-2
RIGHTMOST = 8

Host = np.ndarray[Any, np.dtype[np.float64]]


# -- theory, low rank -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mode:
    """One eigenvector ``U`` (P, D), of unit norm, in the limit: ``U sqrt(D) = A W + noise``.

    The components of W are those whose second moments are 1: ``M^(-1/2)`` times the signal, M its second moment.

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
    strength : float
        ``alpha F`` of this direction: above 1 there is an outlier (without regularisation).
    """

    eigenvalue: float
    direction: Host | None
    A: Host
    gram: Host
    strength: float

    @property
    def found(self) -> bool:
        """Whether the eigenvector knows anything of the signal."""
        return bool(np.isfinite(self.eigenvalue))

    @property
    def scale(self) -> float:
        """Norm per ``sqrt(D)`` that gives the estimate its smallest squared error, ``tr A``."""
        return max(float(np.trace(self.A)), 0.0)


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
    if problem.model.kappa != 1:
        raise ValueError(
            "the matrices of linearised message passing are for low rank; use first_order_theory"
        )
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if reason := why_not(problem):
        raise ValueError(reason)
    key = canonical_json({k: {n: v for n, v in s.items()} for k, s in problem.spec.items()})
    return _cached_theory(_Keyed(key, problem), float(alpha), kind, float(regularisation))


def why_not(problem: Problem) -> str | None:
    """Why the matrices of linearised message passing do not fit a low-rank problem, or None."""
    held = np.asarray(problem.prior.mean_overlap(problem.components), dtype=float)
    second = np.asarray(problem.prior.second_moment(problem.components), dtype=float)
    if np.abs(held).max() > 1e-9 * np.abs(second).max():
        return "the low-rank matrices are linearised around zero, and this prior has a mean that is not zero; use gamp"
    return None


def _root(problem: Problem) -> Host:
    """Symmetric root of the prior's second moment (P, P)."""
    found = np.asarray(
        symmetric_root(np.asarray(problem.prior.second_moment(problem.components), dtype=float))
    )
    return np.eye(len(found)) if np.allclose(found, np.eye(len(found)), rtol=0, atol=1e-12) else found


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
    G = _label_matrices(keyed)
    basis, root = _common_basis(keyed), _root(keyed.problem)
    whole = _solve(G.reshape(-1, *G.shape[2:]), basis, alpha, kind, regularisation, root)
    parts = [_solve(g, basis, alpha, kind, regularisation, root) for g in G]
    error = np.std([part.mse for part in parts], axis=0, ddof=1) / np.sqrt(len(parts))
    return replace(whole, error=error)


@functools.lru_cache(maxsize=8)
def _label_matrices(keyed: _Keyed) -> Host:
    """``G = E[z z^T | y] - I`` (scrambles, points, P, C, P, C) for labels drawn at random."""
    problem = keyed.problem
    P, C, root = problem.components, problem.model.sites, _root(problem)
    found = []
    for scramble in range(SCRAMBLES):
        normal = normal_points(P * C, POINTS, "spectral limit: latents", scramble)
        z = root @ normal.reshape(POINTS, P, C)
        rng = monte_carlo_rng("spectral limit: labels", scramble)
        labels = problem.channel.forward(z, rng=rng)
        found.append(_weights(problem.channel, labels, root, C, rng=rng, like=z))
    return np.stack(found)


def _weights(
    channel: Any, labels: Array, root: Host, C: int, *, rng: np.random.Generator, like: Array | None = None
) -> Array:
    """``G`` (n, P, C, P, C) of labels, computed where the labels (or ``like``) live, for components of unit second moment."""
    like = labels if like is None else like
    xp = namespace(like)
    place = {"dtype": like.dtype, "device": array_api_compat.device(like)}
    P = len(root)
    omega = xp.zeros((labels.shape[0], P, C), **place)
    V = xp.asarray(root @ root, **place)
    moment = channel.posterior(labels, omega, V, second_moment=True, rng=rng).second_moment
    if moment is None:
        raise ValueError(f"channel {channel.name!r} gives no second moment of its posterior")
    if not np.array_equal(root, np.eye(P)):
        inverse = xp.asarray(np.kron(np.linalg.inv(root), np.eye(C)), **place)
        flat = xp.reshape(moment, (-1, P * C, P * C))
        moment = xp.reshape(xp.matmul(xp.matmul(inverse, flat), inverse), moment.shape)
    return moment - xp.reshape(xp.eye(P * C, **place), (1, P, C, P, C))


@functools.lru_cache(maxsize=8)
def _common_basis(keyed: _Keyed) -> Host | None:
    """Rows e_k that diagonalise all G in the space of components, or None if there are none."""
    G = _label_matrices(keyed)[0]
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
        modes = [_joint_mode(G, alpha, kind, regularisation)]
    else:
        modes = [_direction_mode(G, e, alpha, kind, regularisation) for e in basis]
        modes.sort(key=lambda mode: -mode.strength)
    M = sum((mode.scale * mode.A for mode in modes), np.zeros((P, P)))
    whitened = sum((mode.scale**2 * mode.gram for mode in modes), np.zeros((P, P)))
    gram, cross, second = (np.diagonal(root @ found @ root) for found in (whitened, M, np.eye(P)))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = np.where(gram > 0, cross**2 / (gram * second), 0.0)
    return SpectralTheory(tuple(modes), np.diag(cosine), second - 2 * cross + gram, np.zeros(P), root)


def _direction_mode(G: Host, e: Host, alpha: float, kind: str, regularisation: float) -> Mode:
    """The mode of one common eigenvector e: everything depends on the eigenvalues of ``e^T G e`` (C, C)."""
    block = np.einsum("p,npcqd,q->ncd", e, G, e)
    g = np.linalg.eigvalsh((block + block.swapaxes(1, 2)) / 2)

    def mean(values: Host) -> float:
        return float(values.sum() / len(g))

    F = mean(g * g)
    outer = np.outer(e, e)
    nothing = Mode(np.nan, e, np.zeros_like(outer), outer, alpha * F)
    if kind == "asymmetric":
        if alpha * F <= 1:
            return nothing
        q = (alpha - 1 / F) / (alpha + mean(g**3) / F**2)
        return Mode(alpha * F, e, np.sqrt(q) * outer, outer, alpha * F)
    t = 1 - 1 / (1 + g + regularisation)
    top = float(t.max())
    if top <= 0:
        return nothing

    def edge(chi: float) -> float:
        return alpha * chi**2 * mean((t / (1 - chi * t)) ** 2) - 1

    def outlier(chi: float) -> float:
        return alpha * chi * mean(g * t / (1 - chi * t)) - 1

    from scipy.optimize import brentq

    largest = (1 - 1e-12) / top
    end = brentq(edge, 1e-9 * largest, largest, xtol=1e-15) if edge(largest) > 0 else largest
    if outlier(end) <= 0:
        return nothing
    chi = brentq(outlier, 1e-9 * end, end, xtol=1e-15)
    J = t / (1 - chi * t)
    q = (1 / chi**2 - alpha * mean(J * J)) / (1 / chi**2 + alpha * mean(g * J * J))
    return Mode(1 / chi + alpha * mean(J), e, np.sqrt(max(q, 0.0)) * outer, outer, alpha * F)


def _joint_mode(G: Host, alpha: float, kind: str, regularisation: float) -> Mode:
    r"""The leading eigenvector of all components together.

    Matrix-valued version of the equations above, ``X`` (P, P) in place of chi and ``A`` the overlap with the signal:

    .. math::

        X^{-1} = \lambda I - \alpha E \sum_m J_{mm}, \qquad
        X^{-1} A = \alpha E \sum_{mm'} J_{mm'} A G_{m'm}, \qquad J = \mathcal{T} (I - X \mathcal{T})^{-1}.

    The noise of the eigenvector has the Gram matrix ``N = X (S + alpha E sum J N J) X`` with
    ``S = alpha E sum J A (I + G) A^T J``, and ``tr (A A^T + N) = 1`` normalises A.
    """
    n, P, C = G.shape[:3]
    size = P * C
    flat = G.reshape(n, size, size)
    identity = np.eye(size)
    kernel = _Pairing(n, P, C)
    strength = alpha * float(np.linalg.eigvalsh(kernel.map(flat, flat))[-1])
    nothing = Mode(np.nan, None, np.zeros((P, P)), np.eye(P) / P, strength)
    if strength <= 1:
        return nothing
    if kind == "asymmetric":
        X, J, eigenvalue = np.eye(P), flat / strength, strength
    else:
        T = identity - np.linalg.inv(identity + flat + regularisation * identity)

        def resolvent(X: Host) -> Host:
            return np.asarray(np.linalg.solve(identity - T @ np.kron(X, np.eye(C)), T))

        found = _joint_outlier(flat, alpha, kernel, resolvent)
        if found is None:
            return nothing
        X, eigenvalue = found
        J = resolvent(X)
    mapped = np.kron(np.linalg.inv(X), np.eye(P)) - alpha * kernel.map(J, flat)
    A = np.linalg.eigh((mapped + mapped.T) / 2)[1][:, 0].reshape(P, P)
    A = A * np.sign(np.trace(A) or 1.0)
    spread = alpha * kernel.trace(J @ np.kron(A, np.eye(C)) @ (identity + flat) @ np.kron(A.T, np.eye(C)) @ J)
    both = np.kron(X, X)
    noise = np.linalg.solve(
        np.eye(P * P) - alpha * both @ kernel.map(J, J), both @ spread.reshape(-1)
    ).reshape(P, P)
    gram = A @ A.T + noise
    norm = float(np.trace(gram))
    if np.linalg.eigvalsh((noise + noise.T) / 2)[0] < 0:  # a solution inside the bulk
        return nothing
    return Mode(float(eigenvalue), None, A / np.sqrt(norm), gram / norm, strength)


def _joint_outlier(flat: Host, alpha: float, kernel: _Pairing, resolvent: Any) -> tuple[Host, float] | None:
    """``X`` and the outlier, by Newton's method from the known solution without epsilon, or None.

    Without epsilon ``lambda = 1`` and ``X = I - Q``, where ``Q (I - Q)^{-1} = alpha E sum_mm' J_mm' Q G_m'm`` with
    ``J = G (I + Q G)^{-1}`` is iterated from above.
    """
    from scipy.optimize import root

    P, C = kernel.P, kernel.C
    Q = 0.9 * np.eye(P)
    for _ in range(1000):
        J = flat @ np.linalg.inv(np.eye(P * C) + np.kron(Q, np.eye(C)) @ flat)
        Qhat = (alpha * kernel.map(J, flat) @ Q.reshape(-1)).reshape(P, P)
        new = spectral_function(
            Qhat, lambda values: np.clip(values, 0, None) / (1 + np.clip(values, 0, None))
        )
        step, Q = np.abs(new - Q).max(), new
        if step < 1e-7:
            break
    if np.trace(Q) < 1e-4 * P:
        return None
    upper = np.triu_indices(P)

    def unpack(unknown: Host) -> tuple[Host, float]:
        X = np.zeros((P, P))
        X[upper] = unknown[:-1]
        return X + np.triu(X, 1).T, float(unknown[-1])

    def residual(unknown: Host) -> Host:
        X, eigenvalue = unpack(unknown)
        J = resolvent(X)
        inverse = np.linalg.inv(X)
        first = inverse - eigenvalue * np.eye(P) + alpha * kernel.trace(J)
        mapped = np.kron(inverse, np.eye(P)) - alpha * kernel.map(J, flat)
        return np.append(first[upper], np.linalg.eigvalsh((mapped + mapped.T) / 2)[0])

    found = root(residual, np.append((np.eye(P) - Q)[upper], 1.0), tol=1e-9)
    X, eigenvalue = unpack(found.x)
    if np.abs(found.fun).max() > 1e-6 or np.linalg.eigvalsh(X)[0] <= 0:
        return None
    return X, eigenvalue


class _Pairing:
    """Sums over sites of products of matrices on components times sites."""

    def __init__(self, n: int, P: int, C: int) -> None:
        self.n, self.P, self.C = n, P, C

    def trace(self, J: Host) -> Host:
        """``E sum_m J_mm`` (P, P)."""
        found: Host = np.einsum("npmqm->pq", J.reshape(self.n, self.P, self.C, self.P, self.C)) / self.n
        return found

    def map(self, J: Host, K: Host) -> Host:
        """Matrix (P^2, P^2) of ``A -> E sum_mm' J_mm' A K_m'm``."""
        P, C = self.P, self.C
        shape = (self.n, P, C, P, C)
        left = J.reshape(shape).transpose(1, 3, 0, 2, 4).reshape(P * P, -1)
        right = K.reshape(shape).transpose(1, 3, 0, 4, 2).reshape(P * P, -1)
        product = (left @ right.T / self.n).reshape(P, P, P, P)  # p r s q
        return product.transpose(0, 3, 1, 2).reshape(P * P, P * P)


# -- estimates, low rank ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpectralEstimate:
    """Estimate (P, D), the error V (P, P) that theory claims for it, the eigenvalues found, and remarks.

    ``eigenvalues`` are those of the eigenvectors used; ``outliers`` those of the matrix that was asked for, None where it
    has no real one.
    """

    estimate: Array
    V: Array
    eigenvalues: tuple[float, ...]
    remarks: tuple[str, ...]
    outliers: tuple[float | None, ...]


class _Matrices:
    """T and K as linear operators, for one direction of the components or for all of them.

    Only the weights (n, k, C, k, C) are held; a product reads the inputs chunk by chunk.
    """

    def __init__(self, problem: Problem, data: Data, G: Array) -> None:
        self.model, self.inputs, self.G = problem.model, data.inputs, G
        self.xp = namespace(data.inputs)
        self.n, self.P, self.C = G.shape[:3]
        self.D = data.dimension
        self.removed: list[Array] = []

    def weights(self, regularisation: float) -> Array:
        """``I - (I + G + epsilon I)^{-1}`` (n, kC, kC)."""
        xp = self.xp
        flat = self._flat()
        identity = xp.eye(self.P * self.C, dtype=flat.dtype, device=array_api_compat.device(flat))
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
        array = self.xp.asarray(vector, dtype=self.inputs.dtype, device=array_api_compat.device(self.inputs))
        return self.xp.reshape(array, shape)

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
        if size <= 40:  # ARPACK wants a space that is much larger than its basis
            dense = np.stack([product(column) for column in np.eye(size)])
            values, vectors = np.linalg.eigh((dense + dense.T) / 2)
            return float(values[-1]), self._device(vectors[:, -1], (self.P, self.D))
        try:
            values, vectors = eigsh(
                operator,
                k=1,
                which="LA",
                v0=start,
                ncv=min(size, 60),
                tol=max(1e-6, 10 * precision),
                maxiter=400,
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
        if size < 2 * RIGHTMOST + 4:
            return None

        parts = list(sample_chunks(self.model, self.inputs, self.P))

        def signal(v: Array) -> Array:
            weighed = self._weigh(G, v)
            total = self.xp.zeros((self.P, self.D), dtype=v.dtype, device=array_api_compat.device(v))
            for part in parts:
                total = total + self.model.adjoint(self.inputs[part, ...], weighed[part, ...])
            return self._project(total)

        def product(vector: Host) -> Host:
            v = self._device(vector, shape)
            u = signal(v)
            latents = self.xp.concat(
                [self.model.forward(self.inputs[part, ...], u) for part in parts], axis=0
            )
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
    root = _root(problem)
    pieces = [
        _weights(problem.channel, data.labels[part, ...], root, C, rng=rng, like=data.inputs)
        for part in sample_chunks(problem.model, data.inputs, P * C)
    ]
    G = pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=0)
    theory = spectral_theory(problem, data.sample_ratio, kind, regularisation)
    hints = (
        _first_direction(problem, data, rng) if problem.channel.symmetry in ("none", "permutations") else None
    )
    place = {"dtype": data.inputs.dtype, "device": array_api_compat.device(data.inputs)}
    spread = xp.asarray(root, **place)
    estimate = xp.zeros((P, D), **place)
    gram, cross = np.zeros((P, P)), np.zeros((P, P))
    eigenvalues: list[float] = []
    outliers: list[float | None] = []
    remarks: list[str] = []
    removed: list[Any] = []
    for mode in theory.modes:
        e = None if mode.direction is None else xp.asarray(mode.direction, **place)
        matrices = _Matrices(problem, data, G if e is None else _along(xp, G, e))
        matrices.removed = removed
        found = matrices.leading_asymmetric(rng) if kind == "asymmetric" else None
        used = mode
        if found is None:
            if kind == "asymmetric":
                remarks.append("the asymmetric matrix has no real outlier; the symmetric one was used")
                used = _same_direction(
                    spectral_theory(problem, data.sample_ratio, "symmetric", regularisation), mode
                )
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
    V = root @ with_floor(V, 1e-3) @ root
    estimate = xp.matmul(spread, estimate)
    return SpectralEstimate(
        estimate, xp.asarray(V, **place), tuple(eigenvalues), tuple(dict.fromkeys(remarks)), tuple(outliers)
    )


def _along(xp: Any, G: Array, e: Array) -> Array:
    """``e^T G e`` (n, 1, C, 1, C)."""
    left = xp.sum(G * e[None, :, None, None, None], axis=1, keepdims=True)
    return xp.sum(left * e[None, None, None, :, None], axis=3, keepdims=True)


def _same_direction(theory: SpectralTheory, mode: Mode) -> Mode:
    if mode.direction is None:
        return theory.modes[0]
    return max(theory.modes, key=lambda other: abs(float(other.direction @ mode.direction)))  # type: ignore[operator]


def _first_direction(problem: Problem, data: Data, rng: np.random.Generator) -> Array:
    """``adjoint(E[z | y])`` at the prior mean: knows signs where the labels do."""
    xp = namespace(data.inputs)
    P, C, D = problem.components, problem.model.sites, data.dimension
    place = {"dtype": data.inputs.dtype, "device": array_api_compat.device(data.inputs)}
    total = xp.zeros((P, D), **place)
    for part in sample_chunks(problem.model, data.inputs, P):
        inputs = data.inputs[part, ...]
        omega = xp.zeros((inputs.shape[0], P, C), **place)
        V = xp.asarray(problem.prior.second_moment(P), **place)
        mean = problem.channel.posterior(data.labels[part, ...], omega, V, rng=rng).mean
        # the gradient V^{-1} E[z | y], seen through V again
        total = total + problem.model.adjoint(inputs, mean)
    return total


# -- extensive rank ---------------------------------------------------------------------------------------------------


def _origin(problem: Problem, origin: str) -> tuple[Host, Host]:
    """Overlap Q and error V of the point that the step starts from."""
    if origin not in ORIGINS:
        raise ValueError(f"origin must be one of {', '.join(ORIGINS)}, got {origin!r}")
    second = np.asarray(problem.prior.second_moment(problem.components), dtype=float)
    held = np.asarray(problem.prior.mean_overlap(problem.components), dtype=float)
    return (held, second - held) if origin == "prior-mean" else (np.zeros_like(second), second)


def first_order(
    problem: Problem, data: Data, origin: str = "prior-mean", rng: np.random.Generator | None = None
) -> Denoised:
    r"""One step of message passing, denoised by the prior: ``denoise(S_0 + Qhat^{-1} adjoint(g), Qhat)``.

    Parameters
    ----------
    origin : {"prior-mean", "zero"}
        ``S_0``: the prior mean with its error, or zero with the whole second moment as its error.
    rng : numpy.random.Generator, optional
        For channels that integrate by sampling.

    Returns
    -------
    Denoised
        The estimate, signal-shaped, and the error that the prior claims for it.

    References
    ----------
    arXiv:2506.01582; checked against ``first_order_theory`` by tests/theory/test_spectral.py.
    """
    model, channel = problem.model, problem.channel
    xp = namespace(data.inputs)
    place = {"dtype": data.inputs.dtype, "device": array_api_compat.device(data.inputs)}
    n, D, P = data.inputs.shape[0], data.dimension, problem.components
    V = xp.asarray(_origin(problem, origin)[1], **place)
    base = xp.asarray(problem.prior.mean(P, D), **place)
    if origin == "zero":
        base = xp.zeros_like(base)
    inverse = xp.linalg.inv(V)
    total, covariance = xp.zeros_like(base), xp.zeros_like(V)
    for part in sample_chunks(model, data.inputs, P):
        inputs = data.inputs[part, ...]
        omega = model.forward(inputs, base)
        found = channel.posterior(data.labels[part, ...], omega, V, rng=rng)
        total = total + model.adjoint(inputs, xp.matmul(inverse, found.mean - omega))
        covariance = covariance + found.covariance * inputs.shape[0]
    information = inverse - xp.matmul(inverse, xp.matmul(covariance / n, inverse))
    Qhat = (
        model.kappa * data.sample_ratio * model.sites * (information + xp.matrix_transpose(information)) / 2
    )
    step = xp.reshape(xp.linalg.solve(Qhat, xp.reshape(total, (P, -1))), total.shape)
    return problem.prior.denoise(base + step, Qhat)


def first_order_theory(
    problem: Problem, alpha: float, origin: str = "prior-mean"
) -> tuple[Host, Host, Host, str]:
    """Overlap Q (P, P), error V (P, P), numerical error of diag V (P,), and method of ``first_order`` in the limit."""
    Q, V = _origin(problem, origin)
    found = channel_information(problem.channel, problem.model, Q, V)
    Qhat = problem.model.kappa * alpha * np.asarray(found.value)
    overlap = problem.prior.overlap(Qhat)
    error = np.broadcast_to(np.asarray(found.error, dtype=float), Qhat.shape)
    shifted = problem.prior.overlap(Qhat + problem.model.kappa * alpha * np.diag(np.diagonal(error)))
    numerical = np.abs(np.diagonal(np.asarray(shifted.V) - np.asarray(overlap.V)))
    return np.asarray(overlap.Q), np.asarray(overlap.V), numerical, found.method
