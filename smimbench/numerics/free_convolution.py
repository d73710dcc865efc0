r"""Denoising of a symmetric matrix with a known spectrum, by free convolution with a semicircle: means and MMSE.

The observation is ``R = S + sqrt(Delta) Z`` with S rotationally invariant of spectrum ``mu_S``, and Z a GOE
matrix of semicircle variance 1 (variance 1/D off the diagonal). For every real u let ``v(u) >= 0`` solve

.. math:: \int \frac{\mu_S(ds)}{(u - s)^2 + v^2} = \frac{1}{\Delta}

(``v = 0`` where the left side is smaller already at v = 0). Then
``x = u + Delta int mu_S(ds) (u - s)/((u - s)^2 + v^2)`` increases with u, and at x the law of the eigenvalues
of R has the density ``v / (pi Delta)``. An eigenvector of R there overlaps with those of S according to the
weights ``q(ds) = Delta mu_S(ds) / ((u - s)^2 + v^2)``: the posterior mean has the eigenvalue
``xi = sum_q s = 2u - x``, and its error is the mean of the variance of q,

.. math:: F(\Delta) = \int \mu_\Delta(dx)\, \mathrm{Var}_{q(x)}(s) .

References
----------
P. Biane, On the free convolution with a semi-circular distribution (1997); arXiv:2506.01582 for its use in
attention-indexed models. F as a mean of variances is derived, checked by
tests/numerics/test_free_convolution.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from smimbench.backend.arrays import clip, matching, namespace
from smimbench.interfaces import Array, Host, Uncertain
from smimbench.numerics.quadrature import gauss_kronrod


class FreeConvolution:
    r"""Free convolution of the spectrum of a symmetric signal S, given by atoms (eigenvalues) with weights, with semicircular
    noise: the law of the eigenvalues of S + noise, for noise of any variance.

    Parameters
    ----------
    atoms : array_like (K,)
        Eigenvalues of S.
    weights : array_like (K,) or None
        Their probabilities, positive; normalized here. None: all equal.
    law : {"exact", "quantiles"}
        What the atoms stand for, which decides what error ``mmse`` reports.

        ``"exact"``
            The law has these atoms, or they are nodes of a rule as good as exact: the error of the
            integration only.
        ``"quantiles"``
            A discretization of a continuous law: also the change when neighbors are merged in pairs.

    Notes
    -----
    Work grows as K times the number of nodes; where ``sqrt(Delta)`` is below the distance of neighbors there
    is one bulk per atom and it grows as K^2. A discretized law is not resolved there: F is still good to a
    part in K, as its error says, but ``rie`` shows the atoms.

    Examples
    --------
    >>> projector = FreeConvolution([0.0, 1.0])
    >>> F = projector.mmse(0.01)
    >>> bool(0.0049 < F.value < 0.005), bool(F.error < 1e-11)
    (True, True)
    """

    def __init__(
        self,
        atoms: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        law: Literal["exact", "quantiles"] = "exact",
    ) -> None:
        """Store the atoms (eigenvalues) of the spectrum and their weights; equal atoms are merged. ``law`` says whether the
        atoms are the law itself or quantiles of it.
        """
        atoms = np.asarray(atoms, dtype=np.float64)
        weights = (
            np.ones_like(atoms)
            if weights is None
            else np.asarray(weights, dtype=np.float64)
        )
        self.law = law
        self.atoms, merged_indices = np.unique(atoms, return_inverse=True)
        self.weights = np.bincount(merged_indices, weights) / weights.sum()

    def rie(self, x: Array, noise: float) -> Array:
        """Rotation-invariant estimator: maps an eigenvalue x of the observed matrix to that of the posterior mean, ``x - 2
        noise Re g(x)``, with g the Stieltjes transform of the observed spectrum. ``noise`` is the variance of the noise.

        Parameters
        ----------
        x : array (n,)
            On any namespace and device, anywhere on the line; computed in float64 and returned like x.
        noise : float
            Delta > 0.
        """
        xp = namespace(x)
        return xp.astype(self._invert(x, noise).shrunk * math.sqrt(noise), x.dtype)

    def subordination(self, x: Array, noise: float) -> tuple[Array, Array]:
        """Real and imaginary part (n,) of the subordination function ``w = x - noise G(x)`` at observed eigenvalues x (n,),
        with G the Stieltjes transform of the observed spectrum and ``noise`` the variance of the noise.

        G is the Stieltjes transform of the observed law, and the resolvent of S is taken at w; computed in float64, on any
        namespace and device.
        """
        subordinated = self._invert(x, noise)
        noise_root = math.sqrt(noise)
        return (
            subordinated.x - subordinated.drift
        ) * noise_root, subordinated.v * noise_root

    def _invert(self, x: Array, noise: float) -> _Subordinated:
        """Solve for the subordination points u at which the observed eigenvalue ``x(u)`` is ``x``, by Newton's method, and
        return the values there. All are in units of ``sqrt(noise)``, the standard deviation of the noise; ``target`` is x in
        these units, and each root stays between ``lower_u`` and ``upper_u``.

        The solution lies within ``|x - u| <= 1``.
        """
        xp = namespace(x)
        noise_root = math.sqrt(noise)
        float64_like_x = matching(x, xp.float64)
        atoms = xp.asarray(self.atoms / noise_root, **float64_like_x)
        weights = xp.asarray(self.weights, **float64_like_x)
        target = xp.astype(x, xp.float64) / noise_root
        lower_u = target - 1
        upper_u = target + 1
        tolerance = 2e-16 * (xp.abs(target) + 1)
        u = target
        point = _subordinated(xp, u, atoms, weights)
        for _ in range(100):
            x_residual = target - point.x
            lower_u = xp.where(x_residual > 0, u, lower_u)
            upper_u = xp.where(x_residual < 0, u, upper_u)
            next_u = u + x_residual / point.stretch
            next_u = xp.where(
                (next_u > lower_u) & (next_u < upper_u), next_u, (lower_u + upper_u) / 2
            )
            converged = (
                (xp.abs(next_u - u) <= tolerance)
                | (xp.abs(x_residual) <= tolerance)
                | xp.isnan(target)
            )
            if xp.all(converged):
                break
            u = xp.where(converged, u, next_u)
            point = _subordinated(xp, u, atoms, weights)
        return point

    def means(
        self,
        function: Callable[[Host, Host, Host], Host],
        noise: float,
        breaks: Sequence[float] = (),
        *,
        rtol: float = 1e-8,
    ) -> Uncertain:
        """Means of functions over the eigenvalues of the observed matrix S + noise, to the relative tolerance ``rtol``; ``noise``
        is the variance of the noise. The functions take the observed eigenvalue and the posterior mean and variance of the
        signal's eigenvalue given it; ``breaks`` are eigenvalues at which a function has a kink or a jump.

        Parameters
        ----------
        function : callable
            ``function(x, mean, variance)`` of eigenvalues (n,) and of mean and variance of the posterior of S in the direction
            of each, to (k, n).
        breaks : sequence of float
            Eigenvalues at which the function may have a kink or a jump.

        Returns
        -------
        Uncertain
            ``value`` (k,) and its error: of the integration, and for a discretized law the change when neighbors are merged
            in pairs, three times.

        Raises
        ------
        ValueError
            If the noise is too small compared with the atoms for floating-point numbers.
        """
        noise_root = math.sqrt(noise)

        def at_points(p: _Subordinated) -> Host:
            """The caller's functions at subordinated points ``p`` (eigenvalue, posterior mean and variance for noise of
            variance 1), converted to the noise variance at hand.
            """
            return function(p.x * noise_root, p.shrunk * noise_root, p.variance * noise)

        return self._with_atom_error(
            lambda law: law._integrate(noise, at_points, rtol, breaks)
        )

    def mmse(self, noise: float, *, rtol: float = 1e-10) -> Uncertain:
        """Minimum mean square error ``F(noise)`` of a signal S of this spectrum: the limit of ``E|S - S_hat|_F^2 / D`` for its
        posterior mean S_hat. ``noise`` is the variance of the noise, ``rtol`` the relative tolerance of the integral.

        Parameters
        ----------
        noise : float
            Delta >= 0; 0 gives 0, infinity the variance of the spectrum.
        rtol : float
            Relative accuracy asked of the integration.

        Returns
        -------
        Uncertain
            The error covers integration, rounding and what ``law`` adds.
        """
        return self._with_atom_error(lambda law: law._mmse(noise, rtol))

    def _mmse(self, noise: float, rtol: float) -> Uncertain:
        """Minimum mean square error of the signal at the noise variance ``noise``, for the atoms (eigenvalues) as they are; by
        closed forms if the noise is infinite or far smaller than the gaps between atoms. ``rtol`` is the relative tolerance of
        the integral.
        """
        if math.isinf(noise):
            variance = float(
                self.weights @ (self.atoms - self.weights @ self.atoms) ** 2
            )
            return Uncertain(variance, 1e-15 * variance, "quadrature")
        smallest_gap = np.diff(self.atoms).min(initial=np.inf)
        separated_mmse = noise * (1 - float((self.weights**2).sum()))
        if noise <= 1e-10 * smallest_gap * smallest_gap:
            # A semicircle of variance noise p for each atom, shifted and stretched by the others.
            return Uncertain(
                separated_mmse,
                4 * noise * (noise / smallest_gap) / smallest_gap
                + 1e-15 * separated_mmse,
                "quadrature",
            )
        if self._resolution(noise) > 0.01:
            return Uncertain(separated_mmse, noise, "quadrature")
        integral = self._integrate(
            noise, lambda points: points.variance[None, :] * noise, rtol
        )
        return Uncertain(
            float(integral.value[0]), float(integral.error[0]), integral.method
        )

    def _with_atom_error(
        self, compute: Callable[[FreeConvolution], Uncertain]
    ) -> Uncertain:
        """Compute a mean over the law of the signal's eigenvalues by the function ``compute``. If the law is known only through
        atoms at its quantiles, compute it again with neighboring atoms merged in pairs, and add three times the change to the
        error.
        """
        result = compute(self)
        if self.law == "exact":
            return result
        pair_starts = np.arange(0, self.atoms.size, 2)
        pair_weights = np.add.reduceat(self.weights, pair_starts)
        result_of_merged_pairs = compute(
            FreeConvolution(
                np.add.reduceat(self.weights * self.atoms, pair_starts) / pair_weights,
                pair_weights,
            )
        )
        # Three times the change from halving the atoms, because the ends of a law can converge more slowly than 1/K.
        error = result.error + 3 * np.abs(result_of_merged_pairs.value - result.value)
        return Uncertain(result.value, error, "quadrature over quantiles")

    def _resolution(self, noise: float) -> float:
        """Rounding error of the largest atom, divided by the width of the narrowest bulk (interval of the spectrum) at the
        variance ``noise``.
        """
        narrowest_width = math.sqrt(noise) * math.sqrt(float(self.weights.min()))
        return 2e-16 * float(np.abs(self.atoms).max()) / narrowest_width

    def _integrate(
        self,
        noise: float,
        function: Callable[[_Subordinated], Host],
        rtol: float,
        breaks: Sequence[float] = (),
    ) -> Uncertain:
        """Integrate a vector-valued ``function`` over the eigenvalues of S + noise by adaptive Gauss-Kronrod quadrature, to the
        relative tolerance ``rtol``. The variable u of subordination runs over intervals of positive density; panels are parts
        of these in an angle (u is a sine of it), halved where inaccurate; ``breaks`` are eigenvalues with kinks, ``dips``
        minima of the density.

        Panels end at the ``breaks``. On every interval of u the variable is the angle of ``u = center + half sin(angle)``, in
        which the square roots at the ends of the density are smooth.
        """
        if self._resolution(noise) > 0.01:
            raise ValueError(
                f"the noise variance {noise} is below the rounding error of the atoms of the spectrum; use a larger one"
            )
        atoms = self.atoms / math.sqrt(noise)
        nodes, kronrod_weights, gauss_weights = gauss_kronrod()

        def evaluate(panels: Host) -> tuple[Host, Host]:
            """Integrals (functions, n) over each of n panels, given as rows of an interval's two ends (in u) and the panel's
            two angles, and their error estimates: Kronrod minus Gauss rule.
            """
            lower_edge, upper_edge, lower_angle, upper_angle = panels.T[..., None]
            angle = (lower_angle + upper_angle) / 2 + (
                upper_angle - lower_angle
            ) / 2 * nodes
            u = (lower_edge + upper_edge) / 2 + (upper_edge - lower_edge) / 2 * np.sin(
                angle
            )
            subordinated = _subordinated(np, u.reshape(-1), atoms, self.weights)
            density = (subordinated.v * subordinated.stretch / math.pi).reshape(u.shape)
            weighted_density = (
                density
                * np.cos(angle)
                * (upper_edge - lower_edge)
                / 2
                * (upper_angle - lower_angle)
                / 2
            )
            integrals = function(subordinated).reshape(-1, *u.shape) * weighted_density
            kronrod_integrals = integrals @ kronrod_weights
            return kronrod_integrals, np.abs(
                kronrod_integrals - integrals[..., 1::2] @ gauss_weights
            )

        break_points = self._invert(np.asarray(breaks, dtype=float), noise)
        interval_ends, dips = _intervals(atoms, self.weights)
        panels = _panels(
            interval_ends, np.append(dips, break_points.x - break_points.drift)
        )
        integrals, errors = evaluate(panels)
        for _ in range(40):
            tolerance = rtol * np.abs(integrals).sum(-1)
            # an integral with more panels is given up
            if (errors.sum(-1) <= tolerance).all() or len(panels) > 20_000:
                break
            is_inaccurate = (errors > tolerance[:, None] / (2 * len(panels))).any(0)
            middle_angle = panels[is_inaccurate, 2:].mean(1)
            half_panels = np.tile(panels[is_inaccurate], (2, 1))
            half_panels[: len(middle_angle), 3] = half_panels[
                len(middle_angle) :, 2
            ] = middle_angle
            panels = np.concatenate([panels[~is_inaccurate], half_panels])
            half_values, half_errors = evaluate(half_panels)
            integrals = np.concatenate(
                [integrals[:, ~is_inaccurate], half_values], axis=1
            )
            errors = np.concatenate([errors[:, ~is_inaccurate], half_errors], axis=1)
        # The narrowest bulk is known to within the rounding of the atom that it surrounds.
        rounding_error = (
            1e-14 + 2e-16 * np.abs(atoms).max() / np.diff(interval_ends).min()
        )
        return Uncertain(
            integrals.sum(-1),
            errors.sum(-1) + rounding_error * np.abs(integrals).sum(-1),
            "quadrature",
        )


class _Subordinated(NamedTuple):
    """Values at subordination points u (n,), for a signal of atoms plus noise of variance 1: observed eigenvalue ``x = u +
    drift``, imaginary part ``v`` (the density is ``v / pi``), ``stretch = dx/du``, and the posterior mean (``shrunk``) and
    variance of the signal's eigenvalue given x.
    """

    x: Array
    v: Array
    drift: Array
    stretch: Array
    shrunk: Array
    variance: Array


def _subordinated(
    xp: ModuleType, u: Array, atoms: Array, weights: Array
) -> _Subordinated:
    """Observed eigenvalue, density and posterior of the signal's eigenvalue (``_Subordinated``) at points u, for a signal whose
    spectrum is ``atoms`` with ``weights`` and noise of variance 1; in blocks whose arrays fit into the cache. ``xp`` is the array
    namespace.
    """
    block_size = max(1, (1 << 17) // atoms.shape[0])
    count = u.shape[0]
    slices = [
        slice(start, min(start + block_size, count))
        for start in range(0, max(count, 1), block_size)
    ]
    blocks = [_subordinate(xp, u[block], atoms, weights) for block in slices]
    return _Subordinated(*(xp.concat(list(columns)) for columns in zip(*blocks)))


def _subordinate(
    xp: ModuleType, u: Array, atoms: Array, weights: Array
) -> _Subordinated:
    """Observed eigenvalue, density and posterior (``_Subordinated``) at one block of points u (n,), for a spectrum of ``atoms``
    with ``weights``. The imaginary part v solves ``sum_i weight_i / ((u - atom_i)^2 + v^2) = 1``, by Newton's method for ``t =
    v^2``; u lies in a bulk (interval of positive density) where t > 0. ``xp`` is the array namespace.
    """
    atom_distance = u[:, None] - atoms[None, :]
    squared_distance = atom_distance * atom_distance
    # 1/f of f(t) = sum p/((u-s)^2 + t) is increasing and concave, so Newton's method goes up from any lower
    # bound of v^2; a single atom gives one. Where f(0) < 1 steps are negative and t stays at zero.
    t = clip(xp.max(weights[None, :] - squared_distance, axis=1), 0.0, None)
    is_converged = xp.isnan(u)
    for _ in range(200):
        inverse_distance = 1 / (squared_distance + t[:, None])
        inverse_mean = xp.matmul(inverse_distance, weights)
        inverse_slope = xp.matmul(inverse_distance * inverse_distance, weights) / (
            inverse_mean * inverse_mean
        )
        next_t = clip(t + (1 - 1 / inverse_mean) / inverse_slope, 0.0, None)
        # Steps down, and points that go on to move when they have been there, are rounding.
        is_converged = (
            is_converged
            | xp.isnan(inverse_mean)
            | (next_t - t <= 1e-14 * t + 4e-16 / inverse_slope)
        )
        t = next_t
        if xp.all(is_converged):
            break
    inverse_distance = 1 / (squared_distance + t[:, None])
    weighted_inverse = inverse_distance * weights[None, :]
    inverse_sum = xp.sum(weighted_inverse, axis=1)
    drift = xp.sum(weighted_inverse * atom_distance, axis=1)
    weighted_inverse_square = weighted_inverse * inverse_distance
    inverse_square_sum = xp.sum(weighted_inverse_square, axis=1)
    inverse_moment = xp.sum(weighted_inverse_square * atom_distance, axis=1)
    in_bulk = t > 0
    stretch = clip(
        xp.where(
            in_bulk,
            2 * t * inverse_square_sum
            + 2 * inverse_moment * inverse_moment / inverse_square_sum,
            1 - inverse_sum,
        ),
        1e-300,
        None,
    )
    atom_mean = xp.matmul(weighted_inverse, atoms) / inverse_sum
    atom_variance = (
        xp.sum(weighted_inverse * (atoms[None, :] - atom_mean[:, None]) ** 2, axis=1)
        / inverse_sum
    )
    return _Subordinated(
        u + drift,
        xp.sqrt(t),
        drift,
        stretch,
        xp.where(in_bulk, atom_mean, u - drift),
        atom_variance,
    )


def _intervals(atoms: Host, weights: Host) -> tuple[Host, Host]:
    """Find the B intervals (B, 2) of u in which the density of weighted atoms plus noise of variance 1 is positive, and points
    inside them where it may have a dip (between two atoms that the noise barely merges). A gap lies between two neighboring
    atoms; an open gap has density 0 inside.

    Between neighboring atoms, ``G(u) = sum p/(u-s)^2`` to the power -1/2 is concave (a power mean of
    distances): Newton's method for ``G^(-1/2) = 1`` goes monotonically from each atom to the
    nearest solution, or past the maximum if there is none.
    """
    root_weights = np.sqrt(weights)
    cube_roots = np.cbrt(weights)
    atom_distances = np.diff(atoms)
    # Two neighbors alone would leave this gap open; the other atoms can only close it.
    smallest_gap = (cube_roots[:-1] + cube_roots[1:]) ** 1.5
    wide_gaps = np.flatnonzero(atom_distances > smallest_gap)
    gap_starts, has_left_edge = _solve_edges(
        atoms[wide_gaps] + root_weights[wide_gaps], 1, atoms, weights
    )
    gap_ends, has_right_edge = _solve_edges(
        atoms[wide_gaps + 1] - root_weights[wide_gaps + 1], -1, atoms, weights
    )
    lowest_edge, _ = _solve_edges(atoms[:1] - root_weights[:1], -1, atoms, weights)
    highest_edge, _ = _solve_edges(atoms[-1:] + root_weights[-1:], 1, atoms, weights)
    is_gap_open = has_left_edge & has_right_edge & (gap_starts < gap_ends)
    inner_edges = np.stack(
        [gap_starts[is_gap_open], gap_ends[is_gap_open]], axis=1
    ).ravel()
    interval_ends = np.concatenate([lowest_edge, inner_edges, highest_edge]).reshape(
        -1, 2
    )
    dip_gaps = np.setdiff1d(
        np.flatnonzero(atom_distances > smallest_gap / 3), wide_gaps[is_gap_open]
    )
    return interval_ends, atoms[dip_gaps] + atom_distances[dip_gaps] * cube_roots[
        dip_gaps
    ] / (cube_roots[dip_gaps] + cube_roots[dip_gaps + 1])


def _solve_edges(
    u: Host, direction: int, atoms: Host, weights: Host
) -> tuple[Host, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Find the edges of the spectrum next to the starting points ``u``, going up (``direction`` 1) or down (-1), and a mask of
    the points where one exists. At an edge ``G(u) = sum_i weight_i / (u - atom_i)^2`` is 1; solved by Newton's method.
    """
    has_edge = np.zeros(u.shape, dtype=bool)
    unsolved_points = np.arange(u.size)
    for _ in range(100):
        inverse_distance = 1 / (u[unsolved_points, None] - atoms)
        inverse_square = inverse_distance * inverse_distance
        G = inverse_square @ weights
        edge_residual = G**-0.5 - 1
        residual_slope = (inverse_square * inverse_distance) @ weights * G**-1.5
        has_edge_ahead = residual_slope * direction > 0
        newton_step = -edge_residual[has_edge_ahead] / residual_slope[has_edge_ahead]
        unsolved_points = unsolved_points[has_edge_ahead]
        u[unsolved_points] += newton_step
        converged = np.abs(newton_step) <= 1e-15 * (np.abs(u[unsolved_points]) + 1)
        has_edge[unsolved_points[converged]] = True
        unsolved_points = unsolved_points[~converged]
        if not unsolved_points.size:
            break
    return u, has_edge


def _panels(ends: Host, breaks: Host) -> Host:
    """Initial panels of the integration, one row (lower and upper end of an interval of u, lower and upper angle) each: u is
    the interval's middle plus its half-width times the sine of the angle. Panels also end at the points ``breaks`` of u;
    ``ends`` are the intervals (B, 2).
    """
    panels = []
    for lower_edge, upper_edge in ends:
        inner_breaks = breaks[(breaks > lower_edge) & (breaks < upper_edge)]
        angles = np.arcsin(
            np.clip(
                (2 * inner_breaks - lower_edge - upper_edge)
                / (upper_edge - lower_edge),
                -1,
                1,
            )
        )
        angles = np.unique([-np.pi / 2, 0.0, np.pi / 2, *angles])
        panels += [
            (lower_edge, upper_edge, lower_angle, upper_angle)
            for lower_angle, upper_angle in pairwise(angles)
        ]
    return np.array(panels)
