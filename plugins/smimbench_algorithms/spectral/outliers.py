"""Outliers of the linearised matrices in the limit: their eigenvalues, and what their eigenvectors know of the signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from smimbench.numerics.linalg import spectral_function

__all__ = ["Host", "Mode", "direction_mode", "joint_mode"]

Host = np.ndarray[Any, np.dtype[np.float64]]


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


def direction_mode(G: Host, e: Host, alpha: float, kind: str, regularisation: float) -> Mode:
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


def joint_mode(G: Host, alpha: float, kind: str, regularisation: float) -> Mode:
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
