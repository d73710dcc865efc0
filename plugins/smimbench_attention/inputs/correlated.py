"""Gaussian tokens that are correlated with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import asarray_like, namespace
from smimbench.interfaces import Capabilities, Inputs, ParameterError, require

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Host


@dataclass(frozen=True)
class CorrelatedTokens(Inputs):
    r"""Gaussian tokens with a covariance C between tokens, the same and independent for every feature.
    C is ``covariance``, or ``decay^|s - t|`` between tokens s and t.

    .. math:: E[x_{sk} x_{tl}] = C_{st} \delta_{kl}, \qquad C_{st} = c^{|s - t|}

    The second formula is an autoregressive process along the tokens. Theory is exact, for the channel of the whitened latents.
    Of extensive rank, latents are less their means: ``h_ab = (x_a^T S x_b - C_ab tr S) / sqrt(D)``.

    Parameters
    ----------
    decay : float
        c, between -1 and 1 (both excluded).
    covariance : list of list of float, optional
        C (T, T) instead of the power: symmetric, positive definite, of mean 1 along the diagonal.

    References
    ----------
    Derived, checked by tests/inputs/test_correlated.py.
    """

    decay: float = 0.5
    covariance: list[list[float]] | None = None

    name = "correlated-tokens"
    version = 1
    reference = "derived, checked by tests/inputs/test_correlated.py"
    capabilities = Capabilities()
    gaussian = True  # inputs are Gaussian

    def __post_init__(self) -> None:
        """Check that the decay is between -1 and 1, and that a given covariance C between tokens is symmetric, positive
        definite and of mean 1 along its diagonal.
        """
        if not -1 < self.decay < 1:
            raise ParameterError("decay", f"must be between -1 and 1, got {self.decay}")
        if self.covariance is None:
            return
        require(
            self, "decay", self.decay == 0.5, "left out where a covariance is given"
        )
        if not self.covariance or {len(self.covariance)} != set(
            map(len, self.covariance)
        ):
            raise ParameterError(
                "covariance", f"must be a square matrix, got {self.covariance}"
            )
        C_matrix = np.array(self.covariance, dtype=float)
        if not (
            np.allclose(C_matrix, C_matrix.T, rtol=0, atol=1e-12)
            and np.linalg.eigvalsh(C_matrix)[0] > 1e-9
        ):
            raise ParameterError(
                "covariance",
                f"must be symmetric and positive definite, got {self.covariance}",
            )
        if abs(np.trace(C_matrix) - len(C_matrix)) > 1e-9 * len(C_matrix):
            raise ParameterError(
                "covariance",
                f"must have mean 1 along its diagonal, got {np.trace(C_matrix) / len(C_matrix):g}",
            )

    @property
    def shape(self) -> tuple[int | None, None]:  # type: ignore[override]
        """Number of tokens, if a covariance matrix is set, and None for any dimension."""
        return None if self.covariance is None else len(self.covariance), None

    def token_covariance(self, tokens: int) -> Host:
        """Covariance C (T, T) between the tokens of a sample."""
        positions = np.arange(tokens)
        exponential_decay = float(self.decay) ** np.abs(positions[:, None] - positions)
        return np.asarray(
            exponential_decay if self.covariance is None else self.covariance,
            dtype=float,
        )

    def transform(self, z: Array) -> Array:
        """Turn iid normal numbers ``z`` (n, T, D) into correlated tokens ``L z``, with ``L L^T = C``, the covariance
        between tokens.
        """
        xp = namespace(z)
        L = np.linalg.cholesky(self.token_covariance(z.shape[1]))
        return xp.matmul(asarray_like(L, z), z)
