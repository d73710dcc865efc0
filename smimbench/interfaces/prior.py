"""The contract of a prior: the distribution of the signal, its denoiser, and its state-evolution map."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from smimbench.interfaces.item import DERIVED, Array, Item, Uncertain


class Overlap(NamedTuple):
    """Order parameters of a posterior mean: overlap ``Q`` with the signal and error ``V``, the prior's second moment minus Q,
    both (..., P, P).

    ``V`` is given apart because the difference would lose all digits when ``Q`` is close to the second moment.
    """

    Q: Array
    V: Array


class Denoised(NamedTuple):
    """Denoised estimate: posterior mean of the signal, and its error ``V`` (P, P) according to the prior."""

    estimate: Array
    V: Array


class Factor(NamedTuple):
    """Parametrization of the signal by the factor that gradient methods optimize.
    ``draw`` makes a random factor, ``compose`` the signal from it, ``pullback`` the gradient by the factor from that by the
    signal; ``gram_scale`` turns ``F F^T`` into the signal, ``gaussian`` says whether iid N(0, 1) factors give a signal of
    the prior.

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
        Without symmetry, what turns ``Q K^T`` into it, F being Q (D, width) above K.
    gaussian : bool
        Whether a factor of independent N(0, 1) entries, as ``draw`` gives it, stands for a signal that the prior draws.
    """

    draw: Callable[..., Array]
    compose: Callable[[Array], Array]
    pullback: Callable[[Array, Array], Array]
    gram_scale: Callable[[Array], float] | None = None
    gaussian: bool = False


class Law(NamedTuple):
    """Distribution of a single entry w (low rank), by ``log_density``, or a single eigenvalue (extensive rank) of the
    signal, by ``quantile`` or samples (``eigenvalues``). ``fluctuation(D)`` is the relative standard deviation of a signal's
    overlap with itself, ``spectral_means`` are means over eigenvalues of the noisy signal, ``eigenvalue_map`` denoises
    eigenvalues within an iteration.

    One of the first three is enough for a prior. Laws are scaled to unit variance unless the prior has a ``sample`` too.

    Attributes
    ----------
    log_density : callable or None
        ``log_density(w)``: logarithm of the density of an entry, elementwise, not necessarily normalized.
    quantile : callable or None
        ``quantile(u)``: inverse distribution function of an eigenvalue, u in (0, 1).
    eigenvalues : array or None
        Samples of an eigenvalue; fewer than 64 are the law itself, each an atom of equal weight.
    spectral_means : callable or None
        ``spectral_means(function, noise, breaks)``: means over the eigenvalues of ``S + sqrt(noise) Z``; None: no theory for
        ``nuclear``.
    eigenvalue_map : callable or None
        ``eigenvalue_map(values, noise)``: what ``denoise`` within an iteration makes of the eigenvalues of an observation; None:
        no theory for ``gamp`` that assumes this prior.
    fluctuation : callable or None
        ``fluctuation(dimension)``: relative standard deviation of a self-overlap; None: ``sqrt(2 / D)``.
    """

    log_density: Callable[[Array], Array] | None = None
    quantile: Callable[[Array], Array] | None = None
    eigenvalues: Array | None = None
    spectral_means: Callable[..., Uncertain] | None = None
    fluctuation: Callable[[int], float] | None = None
    eigenvalue_map: Callable[[Array, float], Array] | None = None


class Prior(Item):
    """Prior distribution of the signal, with its denoiser and state-evolution map. ``law`` is the distribution of an entry
    or eigenvalue, ``mean_overlap`` the part of the second moment that the prior mean holds, ``factor`` the parametrization
    of the signal that gradient methods optimize.

    A complete prior has ``sample``, ``mean``, ``second_moment``, ``mean_overlap``, ``denoise`` and ``overlap``. Less is enough:
    ``sample`` and ``denoise``, or the ``law`` of one number, from which ``smimbench.derive.prior`` makes the rest.
    """

    _alternative_members = (("sample", "denoise"), ("law",))

    def sample(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Array:
        """Draw a signal of P ``components`` in this dimension with ``rng`` on the host.

        Derived: from the law, scaled to unit variance.
        """
        raise NotImplementedError

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Denoise a signal S observed as ``R = S + Qhat^{-1/2} Z``, with standard normal Z (noise of precision ``Qhat``, (P,
        P)): posterior mean and its error V.

        With an argument ``continued``: the same in the limit, with no slope above 1 at finite size. Derived: from the law.
        """
        raise NotImplementedError

    law: Law = Law()
    """``Law(log_density, quantile, eigenvalues, spectral_means, fluctuation, eigenvalue_map)``: the law of an entry (low rank) or
    of an eigenvalue (extensive rank), in place of ``sample`` and ``denoise``. Without it: the two are needed; no theory for
    `nuclear`.
    """

    mean: Callable[[int, int], Array] = DERIVED
    """``mean(components, dimension)``: prior mean, signal-shaped, on the host. Derived: from the law, or from `denoise`."""

    second_moment: Callable[[int], Array] = DERIVED
    """``second_moment(components)``: ``E[S S^T] / D``, (P, P), on the host. Derived: from the law, or simulated."""

    mean_overlap: Callable[[int], Array] = DERIVED
    """``mean_overlap(components)``: the part of ``second_moment`` that the prior mean holds (0, or rho), (P, P), on the host.
    Derived: as `second_moment`."""

    overlap: Callable[[Array], Overlap] = DERIVED
    """``overlap(Qhat)``: the state-evolution map of ``denoise``; ``Qhat`` (..., P, P). Derived: from the law, or simulated."""

    factor: Factor | None = None
    """``Factor(draw, compose, pullback, gram_scale, gaussian)``: what gradient methods move in. Derived: the signal itself."""
