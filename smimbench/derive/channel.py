"""Completes channels: derives predictions and gradients from ``forward``, and integrates posteriors from a likelihood."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import array_api_compat
import numpy as np
from numpy.random import Generator

from smimbench.backend.arrays import clip, matching, namespace
from smimbench.derive.integrate import integrate
from smimbench.derive.labels import (
    few_labels,
    is_exact,
    is_noisy,
    is_smooth,
    observable,
    probe,
    symmetry_of_labels,
)
from smimbench.derive.likelihood_information import LikelihoodInformation
from smimbench.derive.samples import PosteriorAccuracy, PosteriorMoments
from smimbench.interfaces import (
    Array,
    Channel,
    Host,
    Model,
    ParameterError,
    Posterior,
    Uncertain,
)
from smimbench.interfaces.item import gives, with_defaults
from smimbench.numerics.linalg import symmetric, symmetric_root
from smimbench.numerics.seeds import monte_carlo_rng


class DerivedChannel:
    """A channel with the members it lacks derived from its ``forward``; members that it implements are kept."""

    def __init__(self, channel: Any, sites: int) -> None:
        self.channel = channel
        self.sites = int(sites)
        self.components = int(channel.components)

    def __getattr__(self, name: str) -> Any:
        if name in ("channel", "sites") or (
            name.startswith("__") and name.endswith("__")
        ):
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
        """Whether the noiseless label has a useful derivative."""
        return is_smooth(self._predict, probe(self.channel, self.sites, 64))

    @cached_property
    def _symmetry(self) -> str:
        return symmetry_of_labels(self.channel, self.sites)

    def _predict(self, z: Array) -> Array:
        direct = self.channel.predict
        if direct is not None:
            return direct(z)
        return (
            self._predict_noiseless(z)
            if self.noisy
            else observable(self.channel, self.channel.forward(z))
        )

    @property
    def draws_predictions(self) -> bool:
        """Whether a prediction averages random draws of the noise, so that its square is biased by its variance."""
        return self.channel.predict is None and self.noisy

    def predict_twice(self, z: Array, *index: int) -> tuple[Array, Array]:
        """Two predictions from independent draws of the noise; their product is an unbiased estimate of the square.

        Equal ``index`` takes equal draws, others independent ones.
        """
        # A product of two means needs no small noise, only many latents.
        return self._mean_of_draws(z, 8, 0, *index), self._mean_of_draws(
            z, 8, 1, *index
        )

    def _predict_noiseless(self, z: Array) -> Array:
        """``E[y | z]`` as a mean over 64 fixed draws of the noise; a channel with its own ``predict`` is exact."""
        return self._mean_of_draws(z, 64)

    def _mean_of_draws(self, z: Array, count: int, *index: int) -> Array:
        total: Any = 0.0
        for seed in range(count):
            rng = monte_carlo_rng("prediction: labels", *index, seed)
            total = total + namespace(z).astype(
                observable(self.channel, self.channel.forward(z, rng=rng)), z.dtype
            )
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
                shift = xp.asarray(unit, **matching(z, xp.float64))
                total = xp.zeros((n,), **matching(z, xp.float64))
                for factor, coefficient in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
                    y = xp.reshape(
                        xp.astype(self._predict(wide + factor * shift), xp.float64),
                        (n, -1),
                    )
                    total = total + coefficient * xp.sum(weight * y, axis=1)
                columns.append(total / (12 * step))
        return xp.astype(xp.reshape(xp.stack(columns, axis=1), z.shape), z.dtype)


LARGEST_DIMENSION = 12
"""Largest latent dimension in which a likelihood is integrated; at twice this, hardly any point would be effective."""
ACCURACY = 1e-2
"""Default error allowed in the posterior mean; if doubled, hard samples cost up to four times less."""


class IntegratedChannel(DerivedChannel):
    """A channel given by ``forward`` and ``log_likelihood(y, z)``: posterior, log-partition and information by integration.

    Everything else (name, version, symmetry, parameters, any optional method) is the channel's own. ``vjp`` is there if
    the noiseless label is smooth, by finite differences; ``predict`` of a noisy channel is a mean over draws of the noise.

    Parameters
    ----------
    channel : object
        With ``forward(z, rng=...)``, ``log_likelihood(y, z) -> (n,)`` (up to a constant that may depend on y; ``-inf`` for
        impossible latents) and ``components``. An attribute ``accuracy`` (1e-2 unless set) is the
        error of the posterior mean to aim at: root mean square over samples, relative to ``sqrt(diag V)``. More than four
        times the usual work is not spent on it; what was reached is reported in ``Posterior.error``.
    sites : int
        C.

    Raises
    ------
    ParameterError
        If there are more than 12 latent dimensions.

    Notes
    -----
    A label that is a continuous noiseless function of the latents has no likelihood that can be integrated: such a
    channel needs a ``posterior`` of its own.

    References
    ----------
    Derived, checked by tests/derive/test_likelihood_channel.py.
    """

    def __init__(self, channel: Any, sites: int) -> None:
        super().__init__(channel, sites)
        self.dimension = self.components * self.sites
        if self.dimension > LARGEST_DIMENSION:
            raise ParameterError(
                "name",
                f"channel {getattr(channel, 'name', '?')!r} gives a log_likelihood only, which can be integrated in up to "
                f"{LARGEST_DIMENSION} latent dimensions; {self.components} components * {self.sites} sites need a posterior",
            )
        self.accuracy = ACCURACY

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V (x) I_C)`` given the label; V may be singular, and points are fixed: no rng is used.

        Where no point was compatible with the label, the prior is returned and counted as an error of one width.
        """
        whitened = self._integrate(y, omega, V)
        xp = namespace(omega)
        n, P, C = omega.shape
        root = symmetric_root(xp.astype(V, xp.float64))
        # V^{1/2} (x) I_C takes whitened latents (P C,) to z - omega.
        eye = xp.eye(C, **matching(root))
        lift = xp.reshape(
            root[:, None, :, None] * eye[None, :, None, :], (P * C, P * C)
        )
        mean = omega + xp.astype(
            xp.reshape(xp.matmul(whitened.mean, lift), (n, P, C)), omega.dtype
        )
        square = whitened.square - whitened.mean[:, :, None] * whitened.mean[:, None, :]
        blocks = xp.reshape(
            xp.matmul(xp.matmul(lift, xp.mean(square, axis=0)), lift), (P, C, P, C)
        )
        covariance = symmetric(
            xp.sum(xp.stack([blocks[:, c, :, c] for c in range(C)]), axis=0) / C
        )
        moment = None
        if second_moment:
            wide = xp.astype(xp.reshape(mean, (n, P * C)), xp.float64)
            full = (
                xp.matmul(xp.matmul(lift, square), lift)
                + wide[:, :, None] * wide[:, None, :]
            )
            moment = xp.astype(xp.reshape(full, (n, P, C, P, C)), omega.dtype)
        error = float(xp.sqrt(xp.mean(clip(whitened.error, 0.0, 1.0) ** 2)))
        return Posterior(mean, xp.astype(covariance, omega.dtype), moment, error)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """``log int N(z; omega, V (x) I_C) exp(log_likelihood(y, z)) dz`` (n,)."""
        return namespace(omega).astype(
            self._integrate(y, omega, V).log_norm, omega.dtype
        )

    def information(self, Q: Array, V: Array) -> Uncertain:
        """``E sum_c g_c g_c^T`` (..., P, P), by the channel's own method or from its likelihood; leading axes are a batch."""
        if self.channel.information is not None:
            return cast("Uncertain", self.channel.information(Q, V))
        return self._information(Q, V)

    @property
    def susceptibility(self) -> Any:
        """The channel's ``susceptibility``, or the information's slope for one component with sign-blind labels, or None."""
        susceptibility = self.channel.susceptibility
        information = self._information
        if (
            susceptibility is not None
            or not information.blind_to_signs
            or information.is_exact
        ):
            return susceptibility

        def slope(Q: Array, V: Array) -> Uncertain:
            value = information.susceptibility(float(V[0, 0]))
            return value._replace(
                value=np.array([[value.value]]), error=np.array([[value.error]])
            )

        return slope

    @cached_property
    def _information(self) -> LikelihoodInformation:
        P = self.components
        blind = P == 1 and self.symmetry not in ("none", "permutations")
        return LikelihoodInformation(
            self.channel, P, self.sites, self.labels, blind, self.accuracy
        )

    @cached_property
    def labels(self) -> Host | None:
        """List of all possible labels if there are few and their probabilities add up to one, otherwise None."""
        return few_labels(self.channel, self.sites)

    def check(self) -> None:
        """Raise ParameterError if ``forward`` and ``log_likelihood`` do not describe the same channel."""

        def refused(why: str) -> ParameterError:
            who = getattr(self.channel, "name", type(self.channel).__name__)
            return ParameterError("name", f"channel {who!r}: {why}")

        z = probe(self.channel, self.sites, 16)
        y = np.asarray(
            self.channel.forward(z, rng=monte_carlo_rng("likelihood: few labels"))
        )
        if y.ndim < 1 or len(y) != len(z):
            raise refused(
                f"forward must return one label per sample, shape (16, ...), got {y.shape}"
            )
        with np.errstate(all="ignore"):
            log_likelihood = np.asarray(self.channel.log_likelihood(y, z), dtype=float)
        if is_exact(self.channel, self.sites):
            raise refused(
                "the label is a continuous function of the latents without noise, so its likelihood is a delta "
                "function that cannot be integrated; give a posterior in place of log_likelihood, or add noise to forward"
            )
        if log_likelihood.shape != (len(z),):
            raise refused(
                f"log_likelihood must return one number per sample, shape (16,), got {log_likelihood.shape}"
            )
        if not np.isfinite(log_likelihood).all():
            raise refused(
                "log_likelihood must be finite for labels that forward has drawn from the same latents, "
                f"got {log_likelihood[~np.isfinite(log_likelihood)][0]}"
            )

    @property
    def draws_predictions(self) -> bool:
        """Whether predictions are means over random draws; not if a label has few values, which are summed exactly."""
        return self.labels is None and super().draws_predictions

    def _predict_noiseless(self, z: Array) -> Array:
        """``E[y | z]``: exact where a label has few values, otherwise a mean over fixed draws of the noise."""
        labels = self.labels
        if labels is None:
            return super()._predict_noiseless(z)
        xp = namespace(z)
        total: Any = 0.0
        norm: Any = 0.0
        for value in labels:
            label = xp.asarray(value, device=array_api_compat.device(z))
            y = xp.broadcast_to(label, (z.shape[0], *label.shape))
            observed = xp.astype(observable(self.channel, y), z.dtype)
            with np.errstate(all="ignore"):
                chance = xp.astype(xp.exp(self.channel.log_likelihood(y, z)), z.dtype)
            norm = norm + chance
            total = total + observed * xp.reshape(
                chance, (-1, *([1] * (observed.ndim - 1)))
            )
        return total / xp.reshape(norm, (-1, *([1] * (total.ndim - 1))))

    def _integrate(self, y: Array, omega: Array, V: Array) -> PosteriorMoments:
        if omega.ndim != 3 or tuple(omega.shape[1:]) != (self.components, self.sites):
            raise ValueError(
                f"omega must have shape (n, {self.components}, {self.sites}), got {tuple(omega.shape)}"
            )
        return integrate(self.channel, y, omega, V, PosteriorAccuracy(self.accuracy))


def complete_channel(channel: Any, model: Model) -> Any:
    """Return the channel with all derivable members added: posterior, derivative and prediction.

    Parameters
    ----------
    channel : Channel
        As registered.
    model : Model
        Says how many sites there are.

    Returns
    -------
    Channel
        The same object where nothing is missing or can be added.

    Raises
    ------
    ParameterError
        If it gives a likelihood only, in more latent dimensions than can be integrated; or one that does not fit the labels
        of ``forward``; or if the label is a noiseless continuous function of the latents, which has no likelihood.
    """
    with_defaults(Channel, type(channel))
    if not gives(Channel, type(channel), "posterior"):
        integrated = IntegratedChannel(channel, model.sites)
        integrated.check()
        return integrated
    derived = DerivedChannel(channel, model.sites)
    if channel.symmetry is None:
        return derived
    adds_prediction = channel.predict is None and derived.noisy
    adds_derivative = channel.vjp is None and derived.smooth
    return derived if adds_prediction or adds_derivative else channel
