"""A channel with what can be derived from its ``forward``: a prediction, a derivative, a symmetry."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import beside, namespace
from smimbench.derive.labels import is_noisy, is_smooth, observable, probe, symmetry_of_labels
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["DerivedChannel"]


class DerivedChannel:
    """A channel with what can be derived from its ``forward``; everything else is the channel's own."""

    def __init__(self, channel: Any, sites: int) -> None:
        self.channel = channel
        self.sites = int(sites)
        self.components = int(channel.components)

    def __getattr__(self, name: str) -> Any:
        if name in ("channel", "sites") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        if getattr(self.channel, name, None) is None:
            if name == "predict" and self.noisy:
                return self._predict_noiseless
            if name == "vjp" and self.smooth:
                return self._vjp
            if name == "symmetry":
                return self._symmetry
        return getattr(self.channel, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channel!r}, sites={self.sites})"

    @cached_property
    def noisy(self) -> bool:
        """Whether ``forward`` draws random numbers."""
        return is_noisy(self.channel, probe(self.channel, self.sites, 8))

    @cached_property
    def smooth(self) -> bool:
        """Whether the noiseless label has a derivative that says something."""
        return is_smooth(self._predict, probe(self.channel, self.sites, 64))

    @cached_property
    def _symmetry(self) -> str:
        return symmetry_of_labels(self.channel, self.sites)

    def _predict(self, z: Array) -> Array:
        direct = self.channel.predict
        if direct is not None:
            return direct(z)
        return self._predict_noiseless(z) if self.noisy else observable(self.channel, self.channel.forward(z))

    @property
    def draws_predictions(self) -> bool:
        """Whether a prediction is a mean of draws of the noise, whose square is biased by its variance."""
        return self.channel.predict is None and self.noisy

    def predict_twice(self, z: Array, *index: int) -> tuple[Array, Array]:
        """Two predictions with independent draws of the noise: their product is unbiased.

        Equal ``index`` takes equal draws, others independent ones.
        """
        # A product of two means needs no small noise, only many latents.
        return self._mean_of_draws(z, 8, 0, *index), self._mean_of_draws(z, 8, 1, *index)

    def _predict_noiseless(self, z: Array) -> Array:
        """``E[y | z]`` as a mean over 64 fixed draws of the noise; give the channel a ``predict`` for the exact one."""
        return self._mean_of_draws(z, 64)

    def _mean_of_draws(self, z: Array, count: int, *index: int) -> Array:
        total: Any = 0.0
        for seed in range(count):
            rng = monte_carlo_rng("prediction: labels", *index, seed)
            total = total + namespace(z).astype(observable(self.channel, self.channel.forward(z, rng=rng)), z.dtype)
        return total / count

    def _vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * predict(z))`` (n, P, C) by differences of fourth order, in float64."""
        xp = namespace(z, cotangent)
        n = z.shape[0]
        wide = xp.astype(z, xp.float64)
        weight = xp.reshape(xp.astype(cotangent, xp.float64), (n, -1))
        step = 1e-3
        columns = []
        for p in range(self.components):
            for c in range(self.sites):
                unit = np.zeros((1, self.components, self.sites))
                unit[0, p, c] = step
                shift = xp.asarray(unit, **beside(z, xp.float64))
                total = xp.zeros((n,), **beside(z, xp.float64))
                for factor, coefficient in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
                    y = xp.reshape(xp.astype(self._predict(wide + factor * shift), xp.float64), (n, -1))
                    total = total + coefficient * xp.sum(weight * y, axis=1)
                columns.append(total / (12 * step))
        return xp.astype(xp.reshape(xp.stack(columns, axis=1), z.shape), z.dtype)
