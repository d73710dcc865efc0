"""The contract of a prior: the law of the signal, its denoiser, and its map of state evolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from smimbench.interfaces.basics import Array, Uncertain
from smimbench.interfaces.item import DERIVED, Item

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

__all__ = ["Denoised", "Factor", "Overlap", "Prior"]


class Overlap(NamedTuple):
    """Order parameters: ``Q`` and ``V = second_moment - Q``, both ``(..., P, P)``.

    ``V`` is given apart because the difference would lose all digits when ``Q`` is close to the second moment.
    """

    Q: Array
    V: Array


class Denoised(NamedTuple):
    """Posterior mean of the signal and its error ``V`` (P, P), as claimed by the prior's own theory."""

    estimate: Array
    V: Array


class Factor(NamedTuple):
    """What gradient methods move in, and how it makes the signal.

    Attributes
    ----------
    draw : callable
        ``draw(rng, components, dimension, width=None)``: a random point, on the host.
    compose : callable
        ``compose(factor)``: the signal.
    pullback : callable
        ``pullback(factor, gradient)``: gradient with respect to the factor from that with respect to the signal.
    gram_scale : callable or None
        ``gram_scale(factor)``: what turns ``F F^T`` into the signal, where it is such a product: latents can then be made from F.
    """

    draw: Callable[..., Array]
    compose: Callable[[Array], Array]
    pullback: Callable[[Array, Array], Array]
    gram_scale: Callable[[Array], float] | None = None


class Prior(Item):
    """The law of the signal.

    A complete prior has ``sample``, ``mean``, ``second_moment``, ``mean_overlap``, ``denoise`` and ``overlap``. Less is enough:
    ``sample`` and ``denoise``, or the law of one number: ``log_density`` of iid entries for low rank,
    ``quantile`` or ``eigenvalues`` of a rotationally invariant matrix for extensive rank. Laws are scaled to unit variance
    unless there is a ``sample`` too. See ``smimbench.derive.prior``.
    """

    _alternatives = (
        ("sample", "mean", "second_moment", "mean_overlap", "denoise", "overlap"),
        ("sample", "denoise"),
        ("log_density",),
        ("quantile",),
        ("eigenvalues",),
    )

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Array:
        """Draw a signal on the host. Derived: drawn from the density or the spectrum, scaled to unit variance."""
        raise NotImplementedError

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean of the signal given ``R = S + Qhat^{-1/2} Z``, and its error V. Derived: integrated from the density,
        or free convolution of the spectrum.
        """
        raise NotImplementedError

    log_density: Callable[[Array], Array] | None = None
    """``log_density(w)``: logarithm of the density of an entry, elementwise, not necessarily normalized (low rank). Without it:
    not needed where there are `sample` and `denoise`."""

    quantile: Callable[[Array], Array] | None = None
    """``quantile(u)``: inverse distribution function of an eigenvalue, u in (0, 1) (extensive rank). Without it: not needed
    where there are `sample` and `denoise`."""

    eigenvalues: Any = None
    """Samples of an eigenvalue (extensive rank). Without it: not needed where there are `sample` and `denoise`."""

    mean: Callable[[int, int], Array] = DERIVED
    """``mean(components, dimension)``: prior mean, signal-shaped, on the host. Derived: from the law, or what `denoise` makes of
    nothing."""

    second_moment: Callable[[int], Array] = DERIVED
    """``second_moment(components)``: ``E[S S^T] / D``, (P, P), on the host. Derived: from the law, or simulated."""

    mean_overlap: Callable[[int], Array] = DERIVED
    """``mean_overlap(components)``: the part of ``second_moment`` that the prior mean holds (0, or rho), (P, P), on the host.
    Derived: from the law, or simulated."""

    overlap: Callable[[Array], Overlap] = DERIVED
    """``overlap(Qhat)``: the state-evolution map of ``denoise``; ``Qhat`` (..., P, P), leading axes are a batch. Derived:
    integrated from the same, or simulated with `sample` and `denoise`."""

    denoise_continued: Callable[[Array, Array], Denoised] | None = None
    """``denoise_continued(R, Qhat)``: the same as ``denoise`` in the limit, with no slope above 1 at finite size. Without it: an
    iteration at finite size applies `denoise`."""

    factor: Factor | None = None
    """What gradient methods move in, see ``smimbench.interfaces.Factor``. Derived: the signal itself."""

    spectral_means: Callable[..., Uncertain] | None = None
    """``spectral_means(function, noise, breaks)``: means over the eigenvalues of ``S + sqrt(noise) Z``. Without it: no theory for
    `nuclear`."""

    fluctuation: Callable[[int], float] | None = None
    """``fluctuation(dimension)``: relative standard deviation of a self-overlap. Without it: self-overlaps are taken to
    fluctuate by sqrt(2 / D)."""
