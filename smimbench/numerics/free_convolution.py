r"""Denoising a symmetric matrix of any known spectrum: free convolution with a semicircle by subordination; density,
support, means, MMSE.

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
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from smimbench.backend.arrays import clip, matching, namespace, to_host
from smimbench.interfaces import Uncertain
from smimbench.numerics.quadrature import gauss_kronrod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["FreeConvolution"]

Host = np.ndarray[Any, np.dtype[np.float64]]
Law = Literal["exact", "quantiles"]

_CHUNK = 1 << 17
"""Products of atoms and points that are held at once; doubled, twice the memory."""


class FreeConvolution:
    r"""A spectrum given by atoms, seen through semicircular noise of any variance.

    Parameters
    ----------
    atoms : array_like (K,)
        Eigenvalues of S.
    weights : array_like (K,) or None
        Their probabilities, positive; normalised here. None: all equal.
    law : {"exact", "quantiles"}
        What the atoms stand for, which decides what error ``mmse`` reports.

        ``"exact"``
            The law has these atoms, or they are nodes of a rule as good as exact: the error of the
            integration only.
        ``"quantiles"``
            A discretisation of a continuous law: also the change when neighbours are merged in pairs.

    Attributes
    ----------
    mean, variance : float
        Of the spectrum.

    Raises
    ------
    ValueError
        For atoms that are not finite, weights that are not positive, or an unknown ``law``.

    Notes
    -----
    Work grows as K times the number of nodes; where ``sqrt(Delta)`` is below the distance of neighbours there
    is one bulk per atom and it grows as K^2. A discretised law is not resolved there: F is still good to a
    part in K, as its error says, but ``density`` and ``rie`` show the atoms.

    Examples
    --------
    >>> projector = FreeConvolution([0.0, 1.0])
    >>> F = projector.mmse(0.01)
    >>> bool(0.0049 < F.value < 0.005), bool(F.error < 1e-11)
    (True, True)
    """

    def __init__(self, atoms: Any, weights: Any = None, *, law: Law = "exact") -> None:
        atoms = np.asarray(atoms, dtype=np.float64)
        if atoms.ndim != 1 or atoms.size == 0 or not np.isfinite(atoms).all():
            raise ValueError("atoms must be a non-empty list of finite numbers")
        weights = np.ones_like(atoms) if weights is None else np.asarray(weights, dtype=np.float64)
        if weights.shape != atoms.shape or not (np.isfinite(weights).all() and (weights > 0).all()):
            raise ValueError("weights must be positive finite numbers, one for each atom")
        if law not in get_args(Law):
            raise ValueError(f"law must be one of {', '.join(get_args(Law))}, got {law!r}")
        self.law = law
        self.atoms, where = np.unique(atoms, return_inverse=True)
        self.weights = np.bincount(where, weights) / weights.sum()
        self.mean = float(self.weights @ self.atoms)
        self.variance = float(self.weights @ (self.atoms - self.mean) ** 2)

    def density(self, x: Array, noise: float) -> Array:
        """Density of the eigenvalues of ``S + sqrt(noise) Z`` at x (n,); namespace and dtype of x."""
        xp = namespace(x)
        return xp.astype(self._invert(x, noise).v / (math.pi * math.sqrt(noise)), x.dtype)

    def rie(self, x: Array, noise: float) -> Array:
        """Eigenvalues of the posterior mean of S where the observation has x: ``x - 2 noise Re g(x)``.

        Parameters
        ----------
        x : array (n,)
            On any namespace and device, anywhere on the line; computed in float64 and returned like x.
        noise : float
            Delta > 0.

        Raises
        ------
        ValueError
            If the noise is not positive and finite.
        """
        xp = namespace(x)
        return xp.astype(self._invert(x, noise).shrunk * math.sqrt(noise), x.dtype)

    def _invert(self, x: Array, noise: float) -> _Subordinated:
        """The point u with ``x(u) = x``, in units of ``sqrt(noise)``: Newton's method from ``|x - u| <= 1``."""
        _check(noise)
        xp = namespace(x)
        root = math.sqrt(noise)
        place = matching(x, xp.float64)
        atoms, weights = xp.asarray(self.atoms / root, **place), xp.asarray(self.weights, **place)
        target = xp.astype(x, xp.float64) / root
        low, high = target - 1, target + 1
        tolerance = 2e-16 * (xp.abs(target) + 1)
        u = target
        point = _Subordinated(xp, u, atoms, weights)
        for _ in range(100):
            miss = target - point.x
            low, high = xp.where(miss > 0, u, low), xp.where(miss < 0, u, high)
            new = u + miss / point.stretch
            new = xp.where((new > low) & (new < high), new, (low + high) / 2)
            done = (xp.abs(new - u) <= tolerance) | (xp.abs(miss) <= tolerance) | xp.isnan(target)
            if xp.all(done):
                break
            u = xp.where(done, u, new)
            point = _Subordinated(xp, u, atoms, weights)
        return point

    def support(self, noise: float) -> Host:
        """Bulks of the law of ``S + sqrt(noise) Z``: their ends (B, 2), from left to right.

        Raises
        ------
        ValueError
            If the noise is not positive and finite, or too small compared with the atoms for floating-point numbers.
        """
        atoms = self._scaled(noise)
        ends, _ = _intervals(atoms, self.weights)
        distance = ends.reshape(-1)[:, None] - atoms
        x: Host = (ends + (self.weights / distance).sum(1).reshape(ends.shape)) * math.sqrt(noise)
        return x

    def means(
        self,
        function: Callable[[Host, Host, Host], Host],
        noise: float,
        breaks: Sequence[float] = (),
        *,
        rtol: float = 1e-8,
    ) -> Uncertain:
        """Means of functions of the observed eigenvalues, by integration.

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
            ``value`` (k,) and its error: of the integration, and for a discretised law the change when neighbours are merged
            in pairs, three times.

        Raises
        ------
        ValueError
            As for ``support``.
        """
        _check(noise)
        root = math.sqrt(noise)
        inner = self._invert(np.asarray(breaks, dtype=float), noise) if len(breaks) else None
        found = self._integrate(
            noise,
            lambda p: function(p.x * root, p.shrunk * root, p.variance * noise),
            rtol,
            () if inner is None else inner.x - inner.drift,
        )
        if self.law == "exact":
            return found
        coarse = self._halved().means(function, noise, breaks, rtol=rtol)
        return found._replace(error=found.error + 3 * np.abs(coarse.value - found.value))

    def mmse(self, noise: Any, *, rtol: float = 1e-10) -> Uncertain:
        """``F(noise)``, the limit of ``E|S - S_hat|_F^2 / D`` for the posterior mean.

        Parameters
        ----------
        noise : float or array
            Delta >= 0, of any shape; computed on the host. 0 gives 0, infinity the variance of the spectrum.
        rtol : float
            Relative accuracy asked of the integration.

        Returns
        -------
        Uncertain
            Floats or host arrays; ``error`` covers integration, rounding and what ``law`` adds.

        Raises
        ------
        ValueError
            If a noise is negative or NaN.
        """
        noise = np.asarray(to_host(noise), dtype=np.float64)
        if not (noise >= 0).all():
            raise ValueError("the noise must be >= 0")
        value, error = np.zeros(noise.shape), np.zeros(noise.shape)
        for index, delta in np.ndenumerate(noise):
            value[index], integration = self._mmse(float(delta), rtol)
            error[index] = integration + self._discretisation(float(delta), float(value[index]), rtol)
        method = "quadrature" if self.law == "exact" else f"quadrature over {self.law}"
        return Uncertain(value[()], error[()], method)

    def _mmse(self, noise: float, rtol: float) -> tuple[float, float]:
        if noise == 0 or math.isinf(noise):
            value = 0.0 if noise == 0 else self.variance
            return value, 1e-15 * value
        nearest = np.diff(self.atoms).min(initial=np.inf)
        apart = noise * (1 - float((self.weights**2).sum()))
        if noise < 1e-10 * nearest * nearest:
            # A semicircle of variance noise p for each atom, shifted and stretched by the others.
            return apart, 4 * noise * (noise / nearest) / nearest + 1e-15 * apart
        if self._resolution(noise) > 0.01:
            return apart, noise
        found = self._integrate(noise, lambda p: p.variance[None, :] * noise, rtol)
        return float(found.value[0]), float(found.error[0])

    def _resolution(self, noise: float) -> float:
        """Rounding of the largest atom, in units of the width of the narrowest bulk."""
        width = math.sqrt(noise) * math.sqrt(float(self.weights.min()))
        return 2e-16 * float(np.abs(self.atoms).max()) / width

    def _scaled(self, noise: float) -> Host:
        """Atoms in units of ``sqrt(noise)``."""
        _check(noise)
        if self._resolution(noise) > 0.01:
            raise ValueError(f"the noise is too small to be resolved compared with these atoms, got {noise}")
        return self.atoms / math.sqrt(noise)

    def _discretisation(self, noise: float, value: float, rtol: float) -> float:
        """How uncertain F is because the law is known through finitely many atoms."""
        if self.law == "exact":
            return 0.0
        # The change on halving; three times, because the ends of a law can converge more slowly than 1/K.
        return 3 * abs(self._halved()._mmse(noise, rtol)[0] - value)

    def _halved(self) -> FreeConvolution:
        """The law with neighbouring atoms merged in pairs."""
        starts = np.arange(0, self.atoms.size, 2)
        weights = np.add.reduceat(self.weights, starts)
        return FreeConvolution(np.add.reduceat(self.weights * self.atoms, starts) / weights, weights)

    def _integrate(
        self, noise: float, function: Callable[[_Subordinated], Host], rtol: float, breaks: Any = ()
    ) -> Uncertain:
        """Adaptive Gauss-Kronrod integration of a vector of functions against the observed law.

        Panels end at the ``breaks``, points u in units of ``sqrt(noise)``.
        On every interval of u the variable is the angle of ``u = middle + half sin(angle)``, in which the
        square roots at the ends of the density are smooth.
        """
        atoms = self._scaled(noise)
        nodes, kronrod, gauss = gauss_kronrod()

        def evaluate(panels: Host) -> tuple[Host, Host]:
            left, right, low, high = panels.T[..., None]
            angle = (low + high) / 2 + (high - low) / 2 * nodes
            u = (left + right) / 2 + (right - left) / 2 * np.sin(angle)
            p = _Subordinated(np, u.reshape(-1), atoms, self.weights)
            density = (p.v * p.stretch / math.pi).reshape(u.shape)
            values = function(p).reshape(-1, *u.shape) * (
                density * np.cos(angle) * (right - left) / 2 * (high - low) / 2
            )
            fine = values @ kronrod
            return fine, np.abs(fine - values[..., 1::2] @ gauss)

        ends, dips = _intervals(atoms, self.weights)
        panels = _panels(ends, np.append(dips, breaks))
        values, errors = evaluate(panels)
        for _ in range(40):
            tolerance = rtol * np.abs(values).sum(-1)
            # panels at which an integral is given up
            if (errors.sum(-1) <= tolerance).all() or len(panels) > 20_000:
                break
            bad = (errors > tolerance[:, None] / (2 * len(panels))).any(0)
            centre = panels[bad, 2:].mean(1)
            halves = np.concatenate([panels[bad], panels[bad]])
            halves[: len(centre), 3] = halves[len(centre) :, 2] = centre
            more_values, more_errors = evaluate(halves)
            panels = np.concatenate([panels[~bad], halves])
            values = np.concatenate([values[:, ~bad], more_values], axis=1)
            errors = np.concatenate([errors[:, ~bad], more_errors], axis=1)
        # The narrowest bulk is known to within the rounding of the atom that it surrounds.
        rounding = 1e-14 + 2e-16 * np.abs(atoms).max() / np.diff(ends).min()
        return Uncertain(values.sum(-1), errors.sum(-1) + rounding * np.abs(values).sum(-1), "quadrature")


def _check(noise: float) -> None:
    if not 0 < noise < math.inf:
        raise ValueError(f"the noise must be a positive finite number, got {noise}")


class _Subordinated:
    """What the subordination says at points u (n,), for noise 1.

    Attributes
    ----------
    v, drift, stretch, shrunk, variance : array (n,)
        ``v``, ``x - u``, ``dx/du``, and mean and variance of the weights q.
    """

    def __init__(self, xp: ModuleType, u: Array, atoms: Array, weights: Array) -> None:
        rows = max(1, _CHUNK // atoms.shape[0])
        count = u.shape[0]
        slices = [slice(i, min(i + rows, count)) for i in range(0, max(count, 1), rows)]
        parts = [_subordinate(xp, u[part], atoms, weights) for part in slices]
        columns = [c[0] if len(c) == 1 else xp.concat(list(c)) for c in zip(*parts)]
        self.v, self.drift, self.stretch, self.shrunk, self.variance = columns
        self.x = u + self.drift


def _subordinate(xp: ModuleType, u: Array, atoms: Array, weights: Array) -> tuple[Array, ...]:
    difference = u[:, None] - atoms[None, :]
    square = difference * difference
    # 1/f of f(t) = sum p/((u-s)^2 + t) is increasing and concave, so Newton's method goes up from any lower
    # bound of v^2; a single atom gives one. Where f(0) < 1 steps are negative and t stays at zero.
    t = clip(xp.max(weights[None, :] - square, axis=1), 0.0, None)
    for _ in range(200):
        inverse = 1 / (square + t[:, None])
        f = xp.matmul(inverse, weights)
        slope = xp.matmul(inverse * inverse, weights) / (f * f)
        new = clip(t + (1 - 1 / f) / slope, 0.0, None)
        settled = xp.abs(new - t) <= 1e-14 * t + 4e-16 / slope
        t = new
        if xp.all(settled | xp.isnan(f)):
            break
    inverse = 1 / (square + t[:, None])
    q = inverse * weights[None, :]
    total = xp.sum(q, axis=1)
    drift = xp.sum(q * difference, axis=1)
    second = q * inverse
    a, b = xp.sum(second, axis=1), xp.sum(second * difference, axis=1)
    inside = t > 0
    stretch = xp.where(inside, 2 * t * a + 2 * b * b / a, 1 - total)
    mean = xp.matmul(q, atoms) / total
    variance = xp.sum(q * (atoms[None, :] - mean[:, None]) ** 2, axis=1) / total
    shrunk = xp.where(inside, mean, u - drift)
    return xp.sqrt(t), drift, clip(stretch, 1e-300, None), shrunk, variance


def _intervals(atoms: Host, weights: Host) -> tuple[Host, Host]:
    """Intervals (B, 2) of u with v > 0, and points inside them where v may have a dip, for noise 1.

    Between neighbouring atoms, ``G(u) = sum p/(u-s)^2`` to the power -1/2 is concave (a power mean of
    distances): Newton's method for ``G^(-1/2) = 1`` goes monotonically from each atom to the
    nearest solution, or past the maximum if there is none.
    """
    own = np.sqrt(weights)
    cube = np.cbrt(weights)
    # Two neighbours alone would leave this gap open; the other atoms can only close it.
    needed = (cube[:-1] + cube[1:]) ** 1.5
    distance = np.diff(atoms)
    wide = np.flatnonzero(distance > needed)
    start = np.concatenate([[atoms[0] - own[0]], atoms[wide] + own[wide], atoms[wide + 1] - own[wide + 1]])
    start = np.append(start, atoms[-1] + own[-1])
    forward = np.ones(start.size)
    forward[0] = -1
    forward[1 + wide.size : -1] = -1
    u, found = _solve_edge(start, forward, atoms, weights)
    left_end, right_end = u[1 : 1 + wide.size], u[1 + wide.size : -1]
    is_open = found[1 : 1 + wide.size] & found[1 + wide.size : -1] & (left_end < right_end)
    inner = np.stack([left_end[is_open], right_end[is_open]], axis=1).reshape(-1)
    ends = np.concatenate([u[:1], inner, u[-1:]]).reshape(-1, 2)
    dips = np.flatnonzero(distance > needed / 3)
    dips = np.setdiff1d(dips, wide[is_open])
    return ends, atoms[dips] + distance[dips] * cube[dips] / (cube[dips] + cube[dips + 1])


def _solve_edge(u: Host, forward: Host, atoms: Host, weights: Host) -> tuple[Host, np.ndarray[Any, np.dtype[np.bool_]]]:
    u = u.copy()
    found = np.zeros(u.shape, dtype=bool)
    active = np.arange(u.size)
    rows = max(1, _CHUNK // atoms.size)
    for _ in range(100):
        value, slope = np.empty(active.size), np.empty(active.size)
        for i in range(0, active.size, rows):
            inverse = 1 / (u[active[i : i + rows], None] - atoms)
            square = inverse * inverse
            G = square @ weights
            value[i : i + rows] = G**-0.5 - 1
            slope[i : i + rows] = (square * inverse) @ weights * G**-1.5
        rising = slope * forward[active] > 0
        step = -value[rising] / slope[rising]
        active = active[rising]
        u[active] += step
        done = np.abs(step) <= 1e-15 * (np.abs(u[active]) + 1)
        found[active[done]] = True
        active = active[~done]
        if not active.size:
            break
    return u, found


def _panels(ends: Host, breaks: Host) -> Host:
    """Start of the integration: rows of left and right end of the interval, and lower and upper angle."""
    rows = []
    for left, right in ends:
        inner = breaks[(breaks > left) & (breaks < right)]
        angles = np.arcsin(np.clip((2 * inner - left - right) / (right - left), -1, 1))
        angles = np.unique(np.concatenate([[-np.pi / 2, 0.0, np.pi / 2], angles]))
        interval = np.broadcast_to([left, right], (angles.size - 1, 2))
        rows.append(np.column_stack([interval, angles[:-1], angles[1:]]))
    return np.concatenate(rows)
