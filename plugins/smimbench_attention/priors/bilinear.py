r"""Bilinear prior of attention-indexed models: signals ``S = Q K^T / sqrt(r D)`` of extensive rank, with independent query and
key matrices Q and K.

The file has the density of the singular values of such a product under Gaussian noise, the denoising map and the MMSE.

For square matrices ``S + sqrt(Delta) Z`` without symmetry, put every singular value on the line with both signs. The law of
these numbers is the free convolution of that of S with a semicircle of variance Delta. ``S = Q K^T / sqrt(r D)`` is a sum of r
matrices of rank one, each with the singular value ``a = 1/sqrt(rho)``, so its R-transform is ``rho`` times the mean of
``s / (1 - s g)`` over ``s = +-a``, that is ``g / (1 - a^2 g^2)``. With ``w = 1/g``,

.. math:: x = w + \frac{\Delta}{w} + \frac12 \Big[\frac{1}{w - a} + \frac{1}{w + a}\Big] .

For real x inside a bulk ``w = p + i v`` is complex, and the imaginary part of this equation is

.. math:: \frac{\Delta}{|w|^2} + \frac12 \Big[\frac{1}{|w - a|^2} + \frac{1}{|w + a|^2}\Big] = 1,

which has one solution v for every p. At x the density is ``v / (pi |w|^2)``, the posterior mean keeps singular vectors and has
the singular value ``xi = x - 2 Delta p / |w|^2``, with posterior variance ``Delta (1 - Delta / |w|^2)``. By the equation above
that is Delta times half the bracket, so that the MMSE is a mean of positive numbers in which nothing cancels,

.. math:: F(\Delta) = \frac\Delta2 \int \mu(dx) \Big[\frac{1}{|w - a|^2} + \frac{1}{|w + a|^2}\Big] .

References
----------
arXiv:2203.07752 (denoiser); arXiv:2410.18858 (bilinear sequence regression). The equations for square matrices are derived,
checked by tests/priors/test_bilinear.py against simulation, subordination and quadrature in x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array, Factor, Law, ParameterError
from smimbench_attention.priors.product import (
    ProductPrior,
    double_exponential,
    mmse_of_any_noise,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Host

# Where Delta is smaller or larger than these the limits are exact to all digits; twice as far changes nothing.
_SMALLEST_NOISE = 1e-30
_LARGEST_NOISE = 1e16

_SMALLEST_SQUARED_NOISE = 1e-3
"""Noise variance above which singular values may be rounded as their squares are: the denoising map, an odd function, changes on
the scale of the noise. Estimates move by 1e-13 of their standard deviation, 1e-5 in float32. Doubled: no change."""


class _SingularBulks(NamedTuple):
    """Edges of the bulks of observed singular values x > 0 in the parameter p, the real part of the subordination function: the
    density is positive in ``[0, inner]`` and ``[outer, end]``, each (n,) for n noise variances.

    They touch where the density has a dip but no gap.
    """

    inner: Host
    outer: Host
    end: Host


def _bulks(delta: Host, a: float) -> _SingularBulks:
    """Find the edges ``inner``, ``outer`` and ``end``, in p = Re w, of the bulks of singular values at noise variances delta
    (n,): they solve ``G(p) = 1`` for the sum G of ``_sum_over_poles`` over the poles 0 and ``+-a``, with ``a = rho^{-1/2}``.
    Where G is below 1 at its minimum ``p = t^(3/2)`` (``G_minimizer``) between two poles, a gap separates two bulks.

    Between two poles ``G^(-1/2)`` is concave (a power mean of distances), so Newton's method is monotone from the pole.
    """

    def edge(p: Host, p_limit: Host, delta: Host) -> Host:
        """Solve ``G(p) = 1`` by Newton's method, from p towards ``p_limit``, with G the sum over the poles."""
        shape = p.shape
        if p.size == 1:  # arrays of one number take several times as long as numbers
            p, p_limit, delta = p[0], p_limit[0], delta[0]
        for _ in range(200):
            G, dG_dp = _sum_over_poles(p, delta, a)
            newton_step = (1 - G**-0.5) / (-0.5 * dG_dp * G**-1.5)
            next_p = np.maximum(p + newton_step, np.minimum(p, p_limit))
            next_p = np.minimum(next_p, np.maximum(p, p_limit))
            if (abs(next_p - p) <= 4e-16 * p).all():
                break
            p = next_p
        return np.reshape(p, shape)

    # The dip is at the zero of G', Delta (a^2 - y)^3 = y^2 (3 a^2 + y) with y = t^3 = p^2: convex and increasing in t.
    cbrt_delta = np.cbrt(delta[0] if delta.size == 1 else delta)
    t = 0 * cbrt_delta + a ** (2 / 3)
    for _ in range(200):
        cube_root = np.cbrt(3 * a * a + t**3)
        newton_step = (t * t * cube_root + cbrt_delta * (t**3 - a * a)) / (
            2 * t * cube_root + t**4 / cube_root**2 + 3 * cbrt_delta * t * t
        )
        t = t - newton_step
        if (abs(newton_step) <= 4e-16 * t).all():
            break
    G_minimizer = np.minimum(np.reshape(t, delta.shape) ** 1.5, a * (1 - 1e-15))
    upper_end = edge(
        np.maximum(a + math.sqrt(0.5), np.sqrt(delta)),
        np.full(delta.shape, np.inf),
        delta,
    )
    inner_edge = G_minimizer.copy()
    outer_edge = G_minimizer.copy()
    has_gap = _sum_over_poles(G_minimizer, delta, a)[0] < 1
    if has_gap.any():
        delta = delta[has_gap]
        G_minimizer = G_minimizer[has_gap]
        inner_edge[has_gap] = edge(
            np.minimum(np.sqrt(delta), G_minimizer), G_minimizer, delta
        )
        outer_edge[has_gap] = edge(
            np.maximum(np.full(G_minimizer.shape, a - math.sqrt(0.5)), G_minimizer),
            G_minimizer,
            delta,
        )
    return _SingularBulks(inner_edge, outer_edge, upper_end)


def _sum_over_poles(p: Host, delta: Host, a: float) -> tuple[Host, Host]:
    """Left side ``G(p)`` at ``v = 0``, and ``dG/dp``, of the equation ``sum_s w_s / ((p - s)^2 + v^2) = 1`` for the
    subordination function p + i v: the poles s are 0, of weight w_0 = delta (the noise variance), and ``+-a``, of weight 1/2.
    ``pole_term`` and ``mirror_term`` belong to a and -a.
    """
    pole_term = 0.5 / (p - a) ** 2
    mirror_term = 0.5 / (p + a) ** 2
    G_value = delta / p**2 + pole_term + mirror_term
    return G_value, -2 * (delta / p**3 + pole_term / (p - a) + mirror_term / (p + a))


def _bulk_functions(p: Host, delta: Host, a: float) -> tuple[Host, Host, Host, Host]:
    """Singular values x, ``dx/dp``, v and posterior variance over Delta, ``1 - Delta / |w|^2``, at the real parts p (n, K) of the
    subordination function ``w = p + i v`` inside the bulks, for noise variances delta (n, 1). ``t = v^2`` solves ``f = sum_s w_s
    / ((p - s)^2 + t) = 1`` over the poles s = 0, a and -a of weights w_s; A and B are ``-df/dt`` and ``-(df/dp)/2``.
    """
    half = np.full_like(delta, 0.5)
    pole_weights = np.stack([delta, half, half])
    pole_distances = p - np.reshape([0.0, a, -a], (3, 1, 1))
    squared_distances = pole_distances * pole_distances
    # 1/f of f(t) = sum w/((p - s)^2 + t), t = v^2, is increasing and concave: Newton's method goes up from any lower bound.
    t = np.maximum((pole_weights - squared_distances).max(axis=0), 0.0)
    for _ in range(100):
        inverse_squares = 1 / (squared_distances + t)
        pole_terms = pole_weights * inverse_squares
        f = pole_terms.sum(0)
        inverse_f_slope = (pole_terms * inverse_squares).sum(0) / (f * f)
        newton_step = (1 - 1 / f) / inverse_f_slope
        t = np.maximum(t + newton_step, 0.0)
        # rounding of f is a few 1e-16
        if (abs(newton_step) <= 1e-14 * t + 1e-15 / inverse_f_slope).all():
            break
    inverse_squares = 1 / (squared_distances + t)
    pole_terms = pole_weights * inverse_squares
    A = (pole_terms * inverse_squares).sum(0)
    B = (pole_terms * inverse_squares * pole_distances).sum(0)
    return (
        p + (pole_terms * pole_distances).sum(0),
        2 * t * A + 2 * B * B / A,
        np.sqrt(t),
        pole_terms[1] + pole_terms[2],
    )


def _nodes(
    delta: Host, rho: float, breaks: Sequence[float] = ()
) -> tuple[Host, Host, Host, Host]:
    """Quadrature weights (of sum about 1), singular values x, posterior means xi (``mean``) and posterior variances over Delta at
    nodes (n, K), for noise variances delta (n,). Panels of nodes in ``p = Re w`` end at
    the edges of the bulks and at the singular values ``breaks``; w is the subordination function, ``v = Im w``, ``a =
    rho^{-1/2}``.
    """
    a = rho**-0.5
    delta_column = delta[:, None]
    bulks = _cached_bulks(float(delta[0]), rho) if delta.size == 1 else _bulks(delta, a)
    break_p = (
        _subordination(np.abs(np.asarray(breaks)), float(delta[0]), rho)[0].tolist()
        if len(breaks)
        else []
    )
    panels: list[tuple[Host, Host]] = []
    for bulk_start, bulk_end in (
        (np.zeros(delta.shape), bulks.inner),
        (bulks.outer, bulks.end),
    ):
        inner_ends = [
            p for p in sorted(set(break_p)) if bulk_start[0] < p < bulk_end[0]
        ]
        panel_ends = [bulk_start, *map(np.atleast_1d, inner_ends), bulk_end]
        panels += pairwise(panel_ends)
    unit_nodes, unit_weights = double_exponential()
    starts, stops = (np.array(ends).T[..., None] for ends in zip(*panels))
    panel_length = stops - starts
    p = (starts + panel_length * unit_nodes).reshape(len(delta), -1)
    node_weights = (2 / math.pi * panel_length * unit_weights).reshape(p.shape)
    x, dx_dp, v, relative_variance = _bulk_functions(p, delta_column, a)
    w_squared = p * p + v * v
    quadrature_weights = node_weights * dx_dp * v / w_squared
    mean = x - 2 * delta_column * p / w_squared
    return quadrature_weights, x, mean, relative_variance


def _subordination(x: Host, noise: float, rho: float) -> tuple[Host, Host]:
    r"""Real part p and squared modulus of the subordination function w of the law of ``S + sqrt(noise) Z`` at singular values
    x (n,), >= 0; ``a = rho^{-1/2}``.

    The equation of w is ``w^4 - x w^3 + (1 + Delta - a^2) w^2 + a^2 x w - a^2 Delta = 0``. For every x one root is in ``(-a, 0)``
    and one in ``(0, a)``; w and its conjugate are the other two, of which only sum and product are needed. Outside the bulks
    these two are real, and w is the one where ``dx/dw > 0``.
    """
    a = rho**-0.5
    quadratic_coefficient = 1 + noise - a * a
    quartic = (1.0, -x, quadratic_coefficient, a * a * x, -a * a * noise)
    negative_root = _newton_root(quartic, np.full(x.shape, -a))
    # the quartic divided by its linear factor
    cubic_2 = negative_root - x
    cubic_1 = quadratic_coefficient + negative_root * cubic_2
    cubic_0 = a * a * noise / negative_root
    inflection = -cubic_2 / 3
    value_there = ((inflection + cubic_2) * inflection + cubic_1) * inflection + cubic_0
    is_right_of_inflection = (inflection < a) & (value_there < 0)
    positive_root = _newton_root(
        (1.0, cubic_2, cubic_1, cubic_0), np.where(is_right_of_inflection, a, 0.0)
    )
    root_product = negative_root * positive_root
    root_sum = negative_root + positive_root
    squared_modulus = -a * a * noise / root_product
    # from the cubic term of the quartic or from its linear one: that in which nothing cancels
    p = 0.5 * np.where(
        squared_modulus < -root_product,
        -(a * a * x + squared_modulus * root_sum) / root_product,
        x - root_sum,
    )
    real_distance = np.sqrt(np.maximum(p * p - squared_modulus, 0.0))
    is_smaller_root = (positive_root < p) & (p + real_distance < a)
    w = p + np.where(is_smaller_root, -real_distance, real_distance)
    return w, np.where(real_distance > 0, w * w, squared_modulus)


def _newton_root(coefficients: tuple[Any, ...], w: Host) -> Host:
    """Root of polynomials, given by ``coefficients`` (n,) from the highest power down, by Newton's method from points w (n,)
    from which it is monotone.
    """
    for _ in range(200):
        value, derivative = coefficients[0], 0.0
        for coefficient in coefficients[1:]:
            derivative = derivative * w + value
            value = value * w + coefficient
        newton_step = value / derivative
        w = w - newton_step
        if not (abs(newton_step) > 1e-14 * abs(w)).any():
            break
    return w


def observed_law(
    noise: float, rho: float, breaks: Sequence[float] = ()
) -> tuple[Host, Host, Host, Host]:
    """Nodes of a quadrature rule for the singular values x of ``S + sqrt(noise) Z``, each with both signs, at the width ratio
    rho: weights, x, and posterior mean and variance of the signal's singular value there. ``breaks`` are singular values at
    which panels of nodes end.

    ``noise`` is Delta > 0; ``rho`` > 0 the width over the dimension. Returns weights (K,), which sum to one, then the singular
    value, and mean and variance of the posterior of S in the direction of its singular vectors. Functions with kinks or jumps at
    ``breaks`` are integrated as well as smooth ones.
    """
    quadrature_weights, x, mean, relative_variance = (
        nodes[0] for nodes in _nodes(np.array([float(noise)]), rho, breaks)
    )
    quadrature_weights = quadrature_weights / quadrature_weights.sum() / 2
    with_both_signs = (
        (quadrature_weights, quadrature_weights),
        (x, -x),
        (mean, -mean),
        (noise * relative_variance, noise * relative_variance),
    )
    quadrature_weights, x, mean, variance = (
        np.concatenate(both_signs) for both_signs in with_both_signs
    )
    return quadrature_weights, x, mean, variance


def mmse(noise: Host | float, rho: float) -> Host:
    """Minimum mean square error ``F(Delta)`` at the noise variance Delta and width ratio rho: the limit of
    ``E|S - S_hat|_F^2 / D`` for the posterior mean S_hat of the signal S.

    ``noise`` is Delta, of any shape: 0 and infinity are allowed, negative numbers and NaN give NaN; ``rho`` > 0 the width over
    the dimension. The relative error is below 1e-9. For small Delta ``F ~ (2 rho - rho^2) Delta`` (rho < 1) or ``~ Delta``
    (rho >= 1), for large Delta ``F -> 1``. Derived, checked by tests/priors/test_bilinear.py.
    """

    def error(delta: Host) -> Array:
        """MMSE (n,) at noise variances delta (n,): the mean over singular values of the posterior variance."""
        quadrature_weights, _, _, relative_variance = _nodes(delta, rho)
        return (
            delta
            * (quadrature_weights * relative_variance).sum(-1)
            / quadrature_weights.sum(-1)
        )

    return mmse_of_any_noise(error, noise, _SMALLEST_NOISE, _LARGEST_NOISE)


def singular_map(
    singular_values: Host, noise: float, rho: float, *, continued: bool = False
) -> Host:
    r"""Singular values ``xi`` of the posterior mean where the observation ``S + sqrt(noise) Z`` has singular values x, from
    the subordination function ``p + i v``; ``continued`` extends the map by straight lines outside the bulks. ``rho`` is the
    width over the dimension.

    .. math:: \xi = x - 2 \Delta\, \mathrm{Re}\, g(x), \qquad g = 1 / w

    Outside the bulks, where finite matrices may have singular values, w is real. ``singular_values`` (n,), >= 0, belong to
    ``S + sqrt(Delta) Z``; ``noise`` is Delta >= 0 (0 returns the values, infinity 0), ``rho`` > 0 the width over the dimension.

    With ``continued`` the map goes on outside the bulks by straight lines: across the gap between two, and beyond the last one
    with the slope that it has inside, at most 1. In the limit nothing is there. At finite D the fluctuations of noise are,
    which the map itself, of infinite slope just beyond an end, takes for spikes of the signal; an iteration with a slope above
    1 has no stable fixed point.
    """
    singular_values = np.array(singular_values, dtype=np.float64)
    if not noise >= 0:
        return singular_values * math.nan
    if noise < 1e-16:  # below the rounding of the values
        return singular_values
    if noise > _LARGEST_NOISE:
        return singular_values / (1 + noise)
    values_in_bulks = singular_values
    if continued:
        edge_x, edge_xi, end_slope = _edges(noise, rho)
        values_in_bulks = np.minimum(singular_values, edge_x[2])
    p, squared_modulus = _subordination(values_in_bulks, noise, rho)
    denoised = np.asarray(values_in_bulks - 2 * noise * p / squared_modulus)
    if not continued:
        return denoised
    (x_inner, x_outer, _), (xi_inner, xi_outer, xi_end) = edge_x, edge_xi
    if x_outer > x_inner:
        denoised = np.where(
            (values_in_bulks > x_inner) & (values_in_bulks < x_outer),
            xi_inner
            + (xi_outer - xi_inner) / (x_outer - x_inner) * (values_in_bulks - x_inner),
            denoised,
        )
    return np.asarray(
        np.where(
            singular_values > values_in_bulks,
            xi_end + end_slope * (singular_values - values_in_bulks),
            denoised,
        )
    )


@lru_cache(maxsize=32)
def _cached_bulks(noise: float, rho: float) -> _SingularBulks:
    """Edges of the bulks of singular values at one noise variance, for the width ratio rho, cached."""
    return _bulks(np.array([noise]), rho**-0.5)


def _edges(noise: float, rho: float) -> tuple[Host, Host, float]:
    """Observed singular values x and denoised values xi at the edges ``inner``, ``outer`` and ``end`` of the bulks, and the slope
    of xi (at most 1) at the last, for a noise variance and the width ratio rho; A and B are ``sum_s w_s / (p - s)^k`` for k = 4
    and 3, over the poles s of weights w_s.
    """
    a = rho**-0.5
    poles = ((0.0, noise), (a, 0.5), (-a, 0.5))
    edges = np.concatenate(_cached_bulks(noise, rho))
    x = edges + sum(w / (edges - s) for s, w in poles)
    p = float(edges[2])
    A, B = (sum(w / (p - s) ** k for s, w in poles) for k in (4, 3))
    # Inside, |w|^2 = p^2 + t and x change with p by 2 p - 2 B / A and 2 B^2 / A.
    slope = 1 - noise * (2 * B - p * A) / (p * B) ** 2 / p
    return x, x - 2 * noise / edges, min(max(slope, 0.0), 1.0)


__all__ = ["Bilinear", "mmse", "observed_law", "singular_map"]


@dataclass(frozen=True)
class Bilinear(ProductPrior):
    r"""Signal of P independent matrices ``S = Q K^T / sqrt(r D)``, Q and K (D, r) with iid N(0, 1) entries.

    ``r = round(rho D)``, at least 1. In the limit of large D: ``E[S_p S_q^T]/D = 1 if p = q else 0``; the prior mean is 0.

    Parameters
    ----------
    rho : float
        Width over dimension, r / D >= 0. Zero stands for the limit of small width with ``Qhat`` counted per
        unit of width, ``t = 1/Qhat = rho Delta``: only ``overlap`` and the moments make sense there.
    symmetric : bool
        Filled in from the model; must be false.

    Raises
    ------
    ParameterError
        If ``rho`` is negative or not finite, or the model's matrices are symmetric.

    Notes
    -----
    Where the dimension is known, the ratio r / D of the matrices really drawn is used in place of ``rho``. Several components
    are estimated one by one, each from ``R_p`` alone, as by the prior ``wishart``; see its notes.

    References
    ----------
    arXiv:2203.07752 (denoiser), arXiv:2410.18858 (bilinear sequence regression); equations for square matrices derived, checked
    by tests/priors/test_bilinear.py.
    """

    rho: float  # width r over D
    symmetric: bool = False  # must agree with the model's

    name = "bilinear"
    version = 1
    reference = "arXiv:2203.07752, arXiv:2410.18858"
    _spectrum = "singular values"
    _factors = 2  # Q and K
    _law_error = 1e-9  # relative numerical error of means over the spectrum
    _mmse = staticmethod(mmse)  # (noise, rho) to the MMSE
    _denoise_spectrum = staticmethod(singular_map)

    def __post_init__(self) -> None:
        """Refuse ``symmetric = true``, besides the checks of every product prior."""
        super().__post_init__()
        if self.symmetric:
            raise ParameterError(
                "name",
                "'bilinear' is for matrices without symmetry: give the model symmetric = false",
            )

    @property
    def law(self) -> Law:  # type: ignore[override]
        """Law of the singular values: means over the noisy spectrum, with both signs, and the relative size of overlap
        fluctuations at finite dimension.
        """
        return Law(spectral_means=self._spectral_means, fluctuation=self._fluctuation)

    def _fluctuation(self, dimension: int) -> float:
        """Relative standard deviation of ``|S|_F^2 / D`` of a signal S of width r at finite ``dimension`` D,
        ``sqrt(2 (r + 2 D + 1) / r) / D``, exact.

        Derived from the moments of Q given K and of ``K^T K``, checked by tests/priors/test_bilinear.py.
        """
        r = self._width(dimension)
        return math.sqrt(2 * (r + 2 * dimension + 1) / r) / dimension

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean 0 (P, D, D), on the host; ParameterError if ``rho`` is 0."""
        self._width(dimension)
        return np.zeros((components, dimension, dimension))

    def mean_overlap(self, components: int) -> Array:
        """Overlap of the prior mean with itself: 0 (P, P), on the host."""
        return np.zeros((components, components))

    def _decompose(self, matrix: Array, noise: float) -> tuple[Array, Array, Array]:
        """Left singular vectors (columns), singular values, and right singular vectors (rows) of a matrix (D, D).

        They follow from eigenvectors of ``R^T R``, in half the time, where ``noise`` is well above the rounding of squares.
        """
        xp = namespace(matrix)
        if noise > _SMALLEST_SQUARED_NOISE:
            squares, vectors = xp.linalg.eigh(matrix.T @ matrix)
            singular_values = xp.sqrt(clip(squares, 1e-30))
            return matrix @ vectors / singular_values, singular_values, vectors.T
        left_vectors, singular_values, right_vectors = xp.linalg.svd(matrix)
        return left_vectors, singular_values, right_vectors

    def _observed_law(
        self, noise: float, breaks: Sequence[float]
    ) -> tuple[Host, float, list[Host]]:
        """Quadrature over singular values, with both signs, of ``S + sqrt(noise) Z``, with panels of nodes that end at
        ``breaks``: weights (K,), their sum 1, and ``law``, arrays at the K nodes (singular value, posterior mean and variance).
        """
        quadrature_weights, *law = observed_law(noise, self.rho, breaks)
        return quadrature_weights, 1.0, law

    @property
    def factor(self) -> Factor:  # type: ignore[override]
        """Factor for gradient methods: Q above K (..., 2 D, width) of ``S = Q K^T / sqrt(width D)``; the width defaults to r."""
        return Factor(
            self._draw_factor,
            _compose,
            _pullback,
            lambda factor: 1 / _split_factor(factor)[2],
            gaussian=True,
        )


def _split_factor(factor: Array) -> tuple[Array, Array, float]:
    """Split a factor (..., 2 D, width) into Q and K (..., D, width), and return the normalization ``sqrt(width D)`` of their
    product.
    """
    dimension = factor.shape[-2] // 2
    normalization = math.sqrt(factor.shape[-1] * dimension)
    return factor[..., :dimension, :], factor[..., dimension:, :], normalization


def _compose(factor: Array) -> Array:
    """Signal ``S = Q K^T / sqrt(width D)`` (..., D, D) of a factor (..., 2 D, width), Q above K."""
    xp = namespace(factor)
    Q, K, normalization = _split_factor(factor)
    return xp.matmul(Q, xp.matrix_transpose(K)) / normalization


def _pullback(factor: Array, gradient: Array) -> Array:
    """Gradient of a loss L by the factor ``[Q; K]``, Q above K: ``[G K; G^T Q] / sqrt(width D)``, for its ``gradient``
    ``G = dL/dS`` (..., D, D) by the signal S.
    """
    xp = namespace(factor, gradient)
    Q, K, normalization = _split_factor(factor)
    gradient_of_Q = xp.matmul(gradient, K)
    gradient_of_K = xp.matmul(xp.matrix_transpose(gradient), Q)
    return xp.concat([gradient_of_Q, gradient_of_K], axis=-2) / normalization
