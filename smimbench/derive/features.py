r"""Models and priors over features of different variances ``lambda_k``, for signals of low rank.

Whitened inputs ``u_k = x_k / sqrt(lambda_k)`` and the signal ``S_k = sqrt(lambda_k) W_k`` have the same latents, so that

.. math::

    Q = \frac1D \sum_k \lambda_k \hat W_k \hat W_k^T, \qquad
    R_k = W_k + (\lambda_k \hat Q)^{-1/2} Z_k, \qquad
    V = \frac1D \sum_k \lambda_k\, \mathrm{Cov}(W_k | R_k):

all that is new are weights in products of signals and a denoiser for each feature. Arrays stay in the coordinates of W and x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smimbench.backend.arrays import matching, namespace, send, to_host
from smimbench.interfaces import Array, Denoised, Host, Inputs, Overlap


class _Wrapper:
    """An item with some of its members replaced."""

    _of: str

    def __init__(self, item: Any, variances: Callable[[int], Host]) -> None:
        self.__dict__[self._of] = item
        self.variances = variances

    def __getattr__(self, name: str) -> Any:
        if name == self._of or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.__dict__[self._of], name)

    def __repr__(self) -> str:
        return repr(self.__dict__[self._of])


class WeightedModel(_Wrapper):
    """A low-rank model with products of signals in the metric of the latents; ``model`` is the one without weights."""

    _of = "model"
    model: Any

    def weighted(self, signal: Array) -> Array:
        """Whitened signal: every feature (last axis) times the root of its variance."""
        return signal * self._roots(signal)

    def inner(self, first: Array, second: Array) -> Array:
        """Overlaps ``sum_k lambda_k A_k B_k^T / D``."""
        return self.model.inner(self.weighted(first), self.weighted(second))

    def squared_error(self, signal: Array, estimate: Array) -> Array:
        """Squared error of each component, weighted."""
        return self.model.squared_error(self.weighted(signal), self.weighted(estimate))

    def overlap(self, signal: Array, estimate: Array) -> Array:
        """Squared cosine of each component, weighted."""
        return self.model.overlap(self.weighted(signal), self.weighted(estimate))

    def align(self, signal: Array, estimate: Array, symmetry: str) -> Array:
        """Estimate moved as close to the signal as the symmetry allows, in this metric."""
        moved = self.model.align(
            self.weighted(signal), self.weighted(estimate), symmetry
        )
        return estimate if symmetry == "none" else moved / self._roots(estimate)

    def draw_noise(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Host:
        """Noise of ``R = W + Qhat^(-1/2) Z``, of variance ``1 / lambda_k``."""
        return np.asarray(
            self.model.draw_noise(rng, components, dimension)
            / np.sqrt(self.variances(dimension))
        )

    def _roots(self, signal: Array) -> Array:
        return namespace(signal).asarray(
            np.sqrt(self.variances(signal.shape[-1])), **matching(signal)
        )


class WeightedPrior(_Wrapper):
    """A Gaussian prior, denoised feature by feature; ``prior`` is the one for features of variance 1.

    Parameters
    ----------
    features : int or None
        D of the state-evolution map ``overlap``, which is a mean over the spectrum.
    """

    _of = "prior"
    prior: Any

    def __init__(
        self, prior: Any, variances: Callable[[int], Host], features: int | None
    ) -> None:
        super().__init__(prior, variances)
        self.features = features
        # The few leading features of a steep spectrum hold most of a product, which varies as much.
        self.law = prior.law._replace(
            fluctuation=lambda D: float(np.sqrt(2 * np.mean(variances(D) ** 2) / D))
        )

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D), feature by feature, and its weighted error V (P, P)."""
        values = self.variances(R.shape[-1])
        Q, V = self._posterior(values, np.asarray(to_host(Qhat)))
        gains = send(Q, R)
        xp = namespace(R)
        estimate = xp.matrix_transpose(
            xp.sum(gains * xp.matrix_transpose(R)[:, None, :], axis=-1)
        )
        return Denoised(estimate, send(np.mean(values[:, None, None] * V, axis=0), R))

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map: means over the spectrum, ``Qhat`` (..., P, P)."""
        assert self.features is not None
        values, shares = np.unique(self.variances(self.features), return_counts=True)
        weights = (values * shares)[:, None, None] / self.features
        Qhat = np.asarray(to_host(Qhat))
        # One by one: a spectrum of many features for many Qhat would fill the memory.
        means = []
        for matrix in Qhat.reshape(-1, *Qhat.shape[-2:]):
            gain, covariance = self._posterior(values, matrix)
            means.append(
                [np.sum(weights * gain, axis=0), np.sum(weights * covariance, axis=0)]
            )
        return Overlap(*np.reshape(np.swapaxes(means, 0, 1), (2, *Qhat.shape)))

    def _posterior(self, values: Host, Qhat: Host) -> tuple[Host, Host]:
        """Gain and covariance (D, P, P) of every feature; the overlap of a Gaussian signal of variance 1 is its gain."""
        overlap = self.prior.overlap(values[:, None, None] * Qhat)
        return np.asarray(overlap.Q), np.asarray(overlap.V)


def weighted(model: Any, prior: Any, inputs: Inputs) -> tuple[Any, Any]:
    """Model and prior over the features of these inputs. A prior that is not Gaussian stays as it is, and has no theory.

    Entries that are independent N(0, 1) have a posterior mean that is linear, and no others do.
    """
    R = np.array([[-2.0, -0.7, 0.1, 1.0, 3.0]])
    Qhat = np.array([[0.8]])
    variances: Any = inputs.feature_variances
    if np.allclose(prior.denoise(R, Qhat).estimate, R * 0.8 / 1.8, atol=1e-9):
        prior = WeightedPrior(prior, variances, inputs.shape[1])
    return WeightedModel(model, variances), prior
