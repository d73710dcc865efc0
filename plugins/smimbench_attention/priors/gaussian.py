"""The Gaussian prior: independent standard normal directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import array_api_compat
import numpy as np

from smimbench.backend import NUMPY, namespace, send, to_host
from smimbench.interfaces import (
    Array,
    Capabilities,
    Denoised,
    Factor,
    Overlap,
    ParameterError,
    Prior,
)
from smimbench.numerics import outer_product

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True)
class Gaussian(Prior):
    r"""Signal ``W`` (P, D) with iid N(0, 1) entries.

    The posterior given ``R = W + Qhat^{-1/2} Z`` is Gaussian in every column,

    .. math::

        \hat W = (I + \hat Q)^{-1} \hat Q R, \qquad V = (I + \hat Q)^{-1}, \qquad Q = V \hat Q = I - V,

    for every positive semidefinite ``Qhat``, diagonal or not, singular or not. ``E[W W^T]/D = I`` and the
    prior mean is zero, so an estimate that knows nothing has V = I.

    References
    ----------
    arXiv:2502.00901, state evolution for Gaussian weights; derived, checked by tests/priors/test_gaussian.py.
    """

    name = "gaussian"
    version = 1
    reference = "arXiv:2502.00901"
    capabilities = Capabilities(models=("sequence-multi-index",))

    def sample(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Array:
        """Draw a signal (P, D) of P components in ``dimension`` D on the host, in float64."""
        return rng.standard_normal((components, dimension))

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean: zeros (P, D) on the host."""
        return np.zeros((components, dimension))

    def second_moment(self, components: int) -> Array:
        """Second moment of the signal, ``E[W W^T]/D = I`` (P, P), on the host."""
        return np.eye(components)

    def mean_overlap(self, components: int) -> Array:
        """Overlap of the prior mean with itself: zeros (P, P), on the host."""
        return np.zeros((components, components))

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean ``(I + Qhat)^{-1} Qhat R`` of the signal W given the observation ``R = W + Qhat^{-1/2} Z`` with
        information Qhat (P, P) and white noise Z, and its error ``V = (I + Qhat)^{-1}``. ``Q = V Qhat`` is the gain.

        ``R`` (P, D) is the signal plus Gaussian noise of covariance ``Qhat^{-1}`` between components, independent between
        columns; ``Qhat`` (P, P) symmetric, positive semidefinite, diagonal entries may be infinite (that component is known).
        ``estimate`` (P, D) and ``V`` (P, P) have the namespace, device and dtype of the inputs.
        """
        # On the host: each of the thirty operations on P x P numbers would be a launch of its own.
        Q, V = (send(matrix, R) for matrix in _gaussian_posterior(NUMPY, to_host(Qhat)))
        return Denoised(namespace(R).matmul(Q, R), V)

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map from the information Qhat (P, P) of an observation to the error ``V = (I + Qhat)^{-1}`` and
        overlap ``Q = V Qhat`` of the posterior mean, neither by subtraction from I.

        ``Qhat`` (..., P, P) as for ``denoise``, leading axes are a batch; ``Q`` and ``V`` (..., P, P), symmetric. Small
        eigenvalues of either keep their relative accuracy as far as ``Qhat`` itself carries it.
        """
        xp = namespace(Qhat)
        Q, V = _gaussian_posterior(xp, Qhat)
        return Overlap(Q, V)

    @property
    def factor(self) -> Factor:  # type: ignore[override]
        """Factorization for gradient methods, which train the signal itself. Asking for a width raises ParameterError."""
        return Factor(
            self._draw,
            lambda factor: factor,
            lambda factor, gradient: gradient,
            gaussian=True,
        )

    def _draw(
        self,
        rng: np.random.Generator,
        components: int,
        dimension: int,
        width: int | None = None,
    ) -> Array:
        """Draw a signal (P, D) of P components; ParameterError if a width is asked for."""
        if width is not None:
            raise ParameterError(
                "width", f"must not be set with the prior 'gaussian', got {width}"
            )
        return self.sample(rng, components, dimension)


def _gaussian_posterior(xp: ModuleType, Qhat: Array) -> tuple[Array, Array]:
    """Gain ``Q = V Qhat`` of the posterior mean and its error ``V = (I + Qhat)^{-1}``, for a Gaussian prior; a component with
    infinite Qhat is known exactly. ``inverse_scale`` brings the diagonal of ``I + Qhat`` to one and is 0 for known
    components, where ``safe_scale`` is 1.

    Diagonal entries of Qhat may differ by many orders of magnitude. With the diagonal of ``I + Qhat`` scaled to one,
    the matrix that is inverted is well conditioned unless the components are strongly correlated.
    """
    Qhat_diagonal = xp.linalg.diagonal(Qhat)
    is_known = xp.isinf(Qhat_diagonal)
    # A component that is known has V = 0 and estimate R, whatever its couplings.
    finite_Qhat = xp.where(
        is_known[..., :, None] | is_known[..., None, :], xp.zeros_like(Qhat), Qhat
    )
    identity = xp.eye(
        Qhat.shape[-1], dtype=Qhat.dtype, device=array_api_compat.device(Qhat)
    )
    inverse_scale = xp.where(
        is_known, xp.zeros_like(Qhat_diagonal), 1 / xp.sqrt(1 + Qhat_diagonal)
    )
    safe_scale = xp.where(is_known, xp.ones_like(Qhat_diagonal), inverse_scale)
    scaled_precision = (
        safe_scale[..., :, None] * (identity + finite_Qhat) * safe_scale[..., None, :]
    )
    scaled_V = xp.linalg.inv(scaled_precision)
    scaled_V = (scaled_V + xp.matrix_transpose(scaled_V)) / 2
    V = outer_product(inverse_scale, inverse_scale) * scaled_V
    # Q = V Qhat = I - V: each entry from the form in which nothing cancels.
    Q = xp.where(identity > 0, xp.matmul(V, finite_Qhat), -V)
    return Q + identity * xp.astype(is_known, Qhat.dtype)[..., None, :], V
