"""Hardmax attention: only the position of the largest entry of every row is observed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import array_api_compat
import numpy as np

from smimbench.backend import namespace, to_host
from smimbench.interfaces import Array, Capabilities, ParameterError, Posterior, Uncertain
from smimbench_channels import _hardmax_pair as pair
from smimbench_channels._checks import check_latents, check_whole
from smimbench_channels._hardmax_agreement import diagonal_wins, disagreement
from smimbench_channels._pairs import entry_sites, site_scales

__all__ = ["AttentionHardmax"]

LARGEST = 16


@dataclass(frozen=True)
class AttentionHardmax:
    r"""Row-wise argmax of the attention-indexed matrix, the limit beta -> infinity of ``softmax``.

    .. math::

        y_a = \arg\max_b h_{ab}, \qquad h_{ab} = h_{ba} = \sqrt{1 + \delta_{ab}}\, z_{ab}

    Labels are integers (n, T), the column of the largest entry of every row; ``observable`` turns them into
    the attention matrix, one-hot rows (n, T, T). There is no gradient: the label does not change with small
    changes of the latents.

    Parameters
    ----------
    tokens : int
        T, from 2 to 16; filled in from the model.

    Raises
    ------
    ParameterError
        If ``tokens`` is not an integer in that range.

    Notes
    -----
    For two tokens the posterior is that of two correlated Gaussian variables of known sign: everything
    follows from the gradient of ``log Phi2``. (The ratio of density to distribution function, which is used
    in the numerical part of arXiv:2506.01582, equals that gradient in one dimension only.)

    References
    ----------
    arXiv:2506.01582; posterior derived, checked by tests/channels/test_attention_hardmax.py.
    """

    tokens: int

    name: ClassVar[str] = "hardmax"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "arXiv:2506.01582"
    capabilities: ClassVar[Capabilities] = Capabilities(models=("attention-indexed",))
    symmetry: ClassVar[str] = "none"
    components: ClassVar[int] = 1
    beta: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens, 2)
        if self.tokens > LARGEST:
            raise ParameterError("tokens", f"must be at most {LARGEST}, got {self.tokens}")

    @property
    def sites(self) -> int:
        """Number of unordered pairs of tokens, C = T (T + 1) / 2."""
        return self.tokens * (self.tokens + 1) // 2

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Column of the largest entry of every row, integers (..., n, T), of latents ``z`` (..., n, 1, C).

        ``rng`` is not used: the channel is noiseless. ValueError if z has another shape.
        """
        check_latents(z, 1, self.sites)
        xp, T = namespace(z), self.tokens
        device = array_api_compat.device(z)
        h = z[..., 0, :] * xp.asarray(site_scales(T), dtype=z.dtype, device=device)
        entries = xp.take(h, xp.asarray(entry_sites(T), device=device), axis=-1)
        return xp.argmax(xp.reshape(entries, (*h.shape[:-1], T, T)), axis=-1)

    def observable(self, y: Array) -> Array:
        """Attention matrix with one-hot rows, (..., n, T, T), float64."""
        xp = namespace(y)
        columns = xp.arange(self.tokens, dtype=y.dtype, device=array_api_compat.device(y))
        return xp.astype(y[..., None] == columns, xp.float64)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """``log P(y | omega, V)`` (n,) with ``z ~ N(omega, V)``."""
        return pair.log_partition(y, omega, V)

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: np.random.Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V (x) I_C)`` given the positions of the row maxima.

        Parameters
        ----------
        y : integer array (n, T)
            Labels, as ``forward`` returns them.
        omega : array (n, 1, C)
            Means.
        V : array (1, 1)
            Variance, positive.
        second_moment : bool
            Also return ``E[z z^T]`` (n, 1, C, 1, C), not centred.
        rng : numpy.random.Generator, optional
            Not used with two tokens.

        Returns
        -------
        Posterior
        """
        xp = namespace(omega)
        found = pair.posterior(y, omega, V, full=second_moment)
        second = None
        if found.covariance is not None:
            outer = found.mean[:, 0, :, None] * found.mean[:, 0, None, :]
            second = xp.astype((found.covariance + outer)[:, None, :, None, :], omega.dtype)
        covariance = xp.astype(xp.astype(V, xp.float64) * (1 - found.reduction), omega.dtype)
        return Posterior(xp.astype(found.mean, omega.dtype), covariance, second, 0.0)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """``E sum_c g_c^2`` (..., 1, 1) with ``omega ~ N(0, Q)``; leading axes are a batch, inf at V = 0."""
        xp = namespace(Q, V)
        q, v = (to_host(array).astype(np.float64) for array in (Q, V))
        q, v = np.broadcast_arrays(q, v)
        value, error = pair.information(q.ravel(), v.ravel())
        place = {"dtype": Q.dtype, "device": array_api_compat.device(Q)}
        value, error = (xp.asarray(a.reshape(q.shape), **place) for a in (value, error))
        return Uncertain(value, error, "quadrature")

    def generalization_error(self, Q: Array, V: Array) -> dict[str, Uncertain]:
        """Squared-norm error of the predicted attention matrix on a new sample, summed over its entries.

        Parameters
        ----------
        Q, V : array (..., 1, 1)
            Overlap and error of the estimate; leading axes are a batch.

        Returns
        -------
        dict
            ``"bayes"``: the posterior mean of the one-hot rows; ``"plugin"``: the argmax of the estimated
            indices; ``"constant"``: the best matrix that ignores the input. Values of the batch's shape.
        """
        xp = namespace(Q, V)
        place = {"dtype": Q.dtype, "device": array_api_compat.device(Q)}
        q, v = (to_host(array).astype(np.float64)[..., 0, 0] for array in (Q, V))
        q, v = np.broadcast_arrays(q, v)
        T = self.tokens
        method = "closed form" if T == 2 else "quadrature"
        result = {}
        # The posterior mean errs as often as two posterior draws disagree; a wrong one-hot row costs 2.
        for key, replicas, cost in (("bayes", True, 1), ("plugin", False, 2)):
            value, error = disagreement(T, q.ravel(), v.ravel(), replicas=replicas)
            value, error = (xp.asarray(cost * T * a.reshape(q.shape), **place) for a in (value, error))
            result[key] = Uncertain(value, error, method)
        p = diagonal_wins(T)
        constant = np.full(q.shape, T * (1 - p**2 - (1 - p) ** 2 / (T - 1)))
        zero = np.full(q.shape, 1e-14)
        result["constant"] = Uncertain(xp.asarray(constant, **place), xp.asarray(zero, **place), method)
        return result
