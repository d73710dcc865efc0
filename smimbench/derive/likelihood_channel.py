r"""Channels that are given by their likelihood alone: the engine integrates.

For ``z ~ N(omega, V (x) I_C)`` and a label y the posterior is ``N(z; omega, V (x) I_C) exp(log_likelihood(y, z)) / Z``, in
``P C`` dimensions. All integrals are done in the whitened latents u, ``z = omega + V^{1/2} u``, in which the prior is the
standard normal law, with one of three methods:

* one dimension: adaptive quadrature (``smimbench.numerics.line_integrals``), which finds narrow peaks, jumps and hard
  constraints by itself;
* two and three dimensions: the same quadrature along parallel lines through quasi-random points of the other dimensions.
  One label that pins one combination of the latents, however narrowly, is crossed by every line;
* four to twelve dimensions: quasi-random points.

In the last two, points are placed by importance sampling where the likelihood asks for it: a Gaussian is fitted to the
posterior in a few tempered rounds, sample by sample, so that a narrow or improbable label does not leave the points
empty-handed. Points are randomised in independent replicates; their spread is the error that is reported.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import array_api_compat
import numpy as np

from smimbench.backend.arrays import clip, namespace
from smimbench.derive.channel import observable
from smimbench.interfaces import ParameterError, Posterior, Uncertain
from smimbench.numerics.linalg import inverse_root, symmetric_root
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.masked import put_at_mask
from smimbench.numerics.qmc import whitened_points
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from smimbench.interfaces import Array, Model

__all__ = ["IntegratedChannel", "complete_channel"]

LARGEST_DIMENSION = 12
ACCURACY = 1e-2

_REPLICATES = 4
_BLOCK = 1 << 18
_ROUNDS = 40
_ENOUGH = 0.1
_FIT = 0.15
_INFLATION = 1.3
_POINTS = 256
_LINES = 16
_ROWS = 128
_THIN = 0.03
_TRUSTED = 20.0
_ONE_LINE = 1e-3
_SCRAMBLES = 8
_PROBES = 4096
_MOST_LABELS = 64
_WIDTHS = ((1.0, 256), (1.6, 128), (2.6, 128))
_REFINEMENTS = 2
_GOOD, _GOOD_DRAWN = 1e-3, 1.5e-2
_THINNEST = 1e-3
_FAINT = 0.02
_SLOPE_POINTS = 512
_NOISE_DRAWS = 64
_NARROWEST = 1e-7


def complete_channel(channel: Any, model: Model) -> Any:
    """The channel with everything the engine can add: a posterior from its likelihood, a derivative, a prediction.

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
    if not hasattr(channel, "posterior"):
        integrated = IntegratedChannel(channel, model.sites)
        integrated.check()
        return integrated
    if not (hasattr(channel, "symmetry") and hasattr(channel, "components")):
        return _Derived(channel, model.sites)
    derived = _Derived(channel, model.sites)
    adds_prediction = not hasattr(channel, "predict") and derived.noisy
    adds_derivative = not hasattr(channel, "vjp") and derived.smooth
    return derived if adds_prediction or adds_derivative else channel


class _Derived:
    """A channel with what can be derived from its ``forward``; everything else is the channel's own."""

    def __init__(self, channel: Any, sites: int) -> None:
        self.channel = channel
        self.sites = int(sites)
        self.components = int(getattr(channel, "components", 1))

    def __getattr__(self, name: str) -> Any:
        if name in ("channel", "sites") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        if not hasattr(self.channel, name):
            if name == "predict" and self.noisy:
                return self._predict_noiseless
            if name == "vjp" and self.smooth:
                return self._vjp
            if name == "symmetry":
                return self._find_symmetry()
        return getattr(self.channel, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channel!r}, sites={self.sites})"

    @property
    def noisy(self) -> bool:
        """Whether ``forward`` draws random numbers."""
        found: bool | None = self.__dict__.get("_noisy")
        if found is None:
            found = self._is_noisy()
            self.__dict__["_noisy"] = found
        return found

    @property
    def smooth(self) -> bool:
        """Whether the noiseless label has a derivative that says something: not so for signs and positions of maxima."""
        found: bool | None = self.__dict__.get("_smooth")
        if found is None:
            found = self._is_smooth()
            self.__dict__["_smooth"] = found
        return found

    def _find_symmetry(self) -> str:
        """The largest group of transformations of the latents, among those the engine knows, that no label sees."""
        if "_symmetry" in self.__dict__:
            known: str = self.__dict__["_symmetry"]
            return known
        rng = monte_carlo_rng("likelihood: which kind of label")
        P = self.components
        cycle, swap = np.roll(np.eye(P), 1, axis=0), np.eye(P)
        swap[:2] = swap[:2][::-1]
        rotation = np.linalg.qr(rng.standard_normal((P, P)))[0]
        found = "none"
        if P > 1 and self._unseen(rotation):
            found = "rotations"
        else:
            flips = all(self._unseen(np.diag(np.where(np.arange(P) == p, -1.0, 1.0))) for p in range(P))
            permutes = P > 1 and self._unseen(cycle) and self._unseen(swap)
            if flips:
                found = "signed-permutations" if permutes else "signs"
            elif P > 1 and self._unseen(-np.eye(P)):
                found = "permutations-common-sign" if permutes else "common-sign"
            elif permutes:
                found = "permutations"
        self.__dict__["_symmetry"] = found
        return found

    def _unseen(self, transformation: Array) -> bool:
        """Whether labels are as likely under transformed latents as under the latents themselves."""
        z = self._probe(64)
        turned = transformation @ z
        try:
            if hasattr(self.channel, "log_likelihood"):
                y = np.asarray(self.channel.forward(z, rng=monte_carlo_rng("symmetry: labels")))
                with np.errstate(all="ignore"):
                    pair = [np.asarray(self.channel.log_likelihood(y, at), dtype=float) for at in (z, turned)]
                return bool(np.allclose(pair[0], pair[1], rtol=1e-6, atol=1e-6))
            pair = [
                np.asarray(self.channel.forward(at, rng=monte_carlo_rng("symmetry: labels")))
                for at in (z, turned)
            ]
            return bool(np.allclose(pair[0], pair[1], rtol=1e-6, atol=1e-9))
        except Exception:  # what cannot be asked has no symmetry that we know of
            return False

    def _probe(self, count: int) -> Array:
        return monte_carlo_rng("symmetry: latents").standard_normal((count, self.components, self.sites))

    def _is_noisy(self) -> bool:
        z = self._probe(8)
        try:
            self.channel.forward(z)
        except Exception:  # a noisy channel may complain about the missing generator in any way it likes
            return True
        first, second = (np.asarray(self.channel.forward(z, rng=np.random.default_rng(k))) for k in (0, 1))
        return not np.array_equal(first, second)

    def _is_smooth(self) -> bool:
        z = self._probe(64)
        direction = monte_carlo_rng("derivative: direction").standard_normal(z.shape)

        def slope(step: float) -> Array:
            up, down = (np.asarray(self._predict(z + s * direction), dtype=float) for s in (step, -step))
            return np.reshape((up - down) / (2 * step), (len(z), -1))

        try:
            coarse, fine = slope(1e-3), slope(1e-4)
        except Exception:  # no noiseless label at all
            return False
        size = np.abs(fine).max(axis=1)
        agree = np.abs(coarse - fine).max(axis=1) <= 1e-2 * np.maximum(size, 1e-6)
        return bool(np.isfinite(fine).all() and (size > 0).mean() > 0.5 and agree.mean() > 0.8)

    def _predict(self, z: Array) -> Array:
        direct = getattr(self.channel, "predict", None)
        if direct is not None:
            return direct(z)
        return self._predict_noiseless(z) if self.noisy else observable(self.channel, self.channel.forward(z))

    def _predict_noiseless(self, z: Array) -> Array:
        """``E[y | z]`` as a mean over fixed draws of the noise; give the channel a ``predict`` for the exact one."""
        total: Any = 0.0
        for seed in range(_NOISE_DRAWS):
            y = observable(
                self.channel, self.channel.forward(z, rng=monte_carlo_rng("prediction: labels", seed))
            )
            total = total + namespace(z).astype(y, z.dtype)
        return total / _NOISE_DRAWS

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
                shift = xp.asarray(unit, dtype=xp.float64, device=array_api_compat.device(z))
                total = xp.zeros((n,), dtype=xp.float64, device=array_api_compat.device(z))
                for factor, coefficient in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
                    y = xp.reshape(xp.astype(self._predict(wide + factor * shift), xp.float64), (n, -1))
                    total = total + coefficient * xp.sum(weight * y, axis=1)
                columns.append(total / (12 * step))
        return xp.astype(xp.reshape(xp.stack(columns, axis=1), z.shape), z.dtype)


class IntegratedChannel(_Derived):
    """A channel given by ``forward`` and ``log_likelihood(y, z)``: posterior, log-partition and information by integration.

    Everything else (name, version, symmetry, parameters, any optional method) is the channel's own. ``vjp`` is there if
    the noiseless label is smooth, by finite differences; ``predict`` of a noisy channel is a mean over draws of the noise.

    Parameters
    ----------
    channel : object
        With ``forward(z, rng=...)``, ``log_likelihood(y, z) -> (n,)`` (up to a constant that may depend on y; ``-inf`` for
        impossible latents) and ``components``. An attribute ``accuracy`` sets ``accuracy``.
    sites : int
        C.
    accuracy : float or None
        Error of the posterior mean to aim at: root mean square over samples, relative to ``sqrt(diag V)``. Default 1e-3.
        More than four times the usual work is not spent on it; what was reached is reported in ``Posterior.error``.

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
    Derived, checked by tests/theory/test_likelihood.py.
    """

    def __init__(self, channel: Any, sites: int, accuracy: float | None = None) -> None:
        super().__init__(channel, sites)
        self.dimension = self.components * self.sites
        if self.dimension > LARGEST_DIMENSION:
            raise ParameterError(
                "name",
                f"channel {getattr(channel, 'name', '?')!r} gives a log_likelihood only, which can be integrated in up to "
                f"{LARGEST_DIMENSION} latent dimensions; {self.components} components * {self.sites} sites need a posterior",
            )
        self.accuracy = float(getattr(channel, "accuracy", ACCURACY) if accuracy is None else accuracy)

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: np.random.Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V (x) I_C)`` given the label.

        Parameters
        ----------
        y : array (n, ...)
        omega : array (n, P, C)
        V : array (P, P)
            Positive semidefinite.
        second_moment : bool
            Also return ``E[z z^T]`` (n, P, C, P, C).
        rng : numpy.random.Generator, optional
            Not used: points are fixed, so that equal inputs give equal results.

        Returns
        -------
        Posterior
            Where no point was compatible with the label, the prior is returned and counted as an error of one width.
        """
        found = self._integrate(y, omega, V, self.accuracy)
        xp = namespace(omega)
        n, P, C = omega.shape
        root = symmetric_root(xp.astype(V, xp.float64))
        mean = omega + xp.astype(_apply(root, found.mean, (n, P, C), xp), omega.dtype)
        flat = found.mean
        square = found.square - flat[:, :, None] * flat[:, None, :]
        blocks = xp.reshape(xp.mean(square, axis=0), (P, C, P, C))
        covariance = xp.sum(xp.stack([blocks[:, c, :, c] for c in range(C)]), axis=0) / C
        covariance = xp.matmul(xp.matmul(root, covariance), root)
        covariance = (covariance + xp.matrix_transpose(covariance)) / 2
        moment = None
        if second_moment:
            # Columns of V^{1/2} act on both ends of the whitened covariance.
            half = xp.matmul(root, xp.reshape(square, (n, P, C * P * C)))
            half = xp.permute_dims(xp.reshape(half, (n, P * C, P, C)), (0, 2, 1, 3))
            full = xp.reshape(xp.matmul(root, xp.reshape(half, (n, P, P * C * C))), (n, P, P * C, C))
            full = xp.reshape(xp.permute_dims(full, (0, 2, 1, 3)), (n, P, C, P, C))
            wide = xp.astype(mean, xp.float64)
            moment = full + wide[:, :, :, None, None] * wide[:, None, None, :, :]
            moment = xp.astype(moment, omega.dtype)
        error = float(xp.sqrt(xp.mean(clip(found.error, 0.0, 1.0) ** 2)))
        return Posterior(mean, xp.astype(covariance, omega.dtype), moment, error)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """``log int N(z; omega, V (x) I_C) exp(log_likelihood(y, z)) dz`` (n,)."""
        found = self._integrate(y, omega, V, self.accuracy)
        return namespace(omega).astype(found.log_norm, omega.dtype)

    def information(self, Q: Array, V: Array) -> Uncertain:
        r"""``E sum_c g_c g_c^T`` (..., P, P) with ``omega ~ N(0, Q (x) I_C)``; leading axes are a batch.

        Quasi-random points in independent scrambles, whose spread is the error. A label with few values is summed over;
        any other is drawn. Then g is noisy and its square would be biased: two independent estimates of g are multiplied,
        and ``g (z - omega)^T V^{-1}``, which has the same mean (Nishimori) and is linear in g, is a control variate.
        """
        if hasattr(self.channel, "information"):
            found: Uncertain = self.channel.information(Q, V)
            return found
        Q, V = (np.asarray(a, dtype=float) for a in (Q, V))
        Q, V = np.broadcast_arrays(Q, V)
        pairs = list(zip(Q.reshape(-1, *Q.shape[-2:]), V.reshape(-1, *V.shape[-2:])))
        memory: dict[bytes, Uncertain] = self.__dict__.setdefault("_memory", {})
        keys = [q.tobytes() + v.tobytes() for q, v in pairs]
        # A table, a figure and the thresholds ask for the same points.
        missing = {key: pair for key, pair in zip(keys, pairs) if key not in memory}
        if missing:
            memory.update(zip(missing, self._informations(list(missing.values()))))
        flat = [memory[key] for key in keys]
        value = np.stack([f.value for f in flat]).reshape(Q.shape)
        error = np.stack([f.error for f in flat]).reshape(Q.shape)
        return Uncertain(value, error, flat[0].method)

    def check(self) -> None:
        """Raise ParameterError, in one line, if ``forward`` and ``log_likelihood`` do not belong together."""
        who = f"channel {getattr(self.channel, 'name', type(self.channel).__name__)!r}"
        z = self._probe(16)
        rng = monte_carlo_rng("likelihood: few labels")
        what = "forward"
        try:
            y = np.asarray(self.channel.forward(z, rng=rng))
            what = "log_likelihood"
            with np.errstate(all="ignore"):
                found = np.asarray(self.channel.log_likelihood(y, z), dtype=float)
        except Exception as error:  # a third party's code may raise anything
            line = " ".join(str(error).split())
            raise ParameterError(
                "name",
                f"{who}: {what} fails for latents of shape {z.shape}: {type(error).__name__}: {line}",
            ) from None
        if y.ndim < 1 or len(y) != len(z):
            raise ParameterError(
                "name", f"{who}: forward must return one label per sample, shape (16, ...), got {y.shape}"
            )
        if self._exact():
            raise ParameterError(
                "name",
                f"{who}: the label is a continuous function of the latents without noise, so its likelihood is a delta "
                "function that cannot be integrated; give a posterior in place of log_likelihood, or add noise to forward",
            )
        if found.shape != (len(z),):
            raise ParameterError(
                "name",
                f"{who}: log_likelihood must return one number per sample, shape (16,), got {found.shape}",
            )
        if not np.isfinite(found).all():
            raise ParameterError(
                "name",
                f"{who}: log_likelihood must be finite for labels that forward has drawn from the same latents, "
                f"got {found[~np.isfinite(found)][0]}",
            )

    def _exact(self) -> bool:
        """Whether a noiseless label moves with every small move of the latents: then it has no density."""
        if self.noisy:
            return False
        z = self._probe(64)
        move = 1e-6 * monte_carlo_rng("likelihood: step").standard_normal(z.shape)
        first, second = (np.asarray(self.channel.forward(at)).reshape(len(z), -1) for at in (z, z + move))
        return bool((first != second).any(axis=1).mean() > 0.02)

    @property
    def labels(self) -> np.ndarray[Any, Any] | None:
        """All values of a label that has few of them, and whose probabilities add up to one; None otherwise."""
        if "_labels" not in self.__dict__:
            self.__dict__["_labels"] = self._find_labels()
        found: np.ndarray[Any, Any] | None = self.__dict__["_labels"]
        return found

    def _find_labels(self) -> np.ndarray[Any, Any] | None:
        rng = monte_carlo_rng("likelihood: symmetry")
        z = self._probe(_PROBES)
        y = np.asarray(self.channel.forward(z, rng=rng))
        values = np.unique(y.reshape(len(y), -1), axis=0)
        if len(values) > _MOST_LABELS:
            return None
        values = values.reshape(-1, *y.shape[1:])
        some = z[: _PROBES // 16]
        total = np.zeros(len(some))
        with np.errstate(all="ignore"):
            for value in values:
                repeated = np.broadcast_to(value, (len(some), *value.shape))
                total += np.exp(np.asarray(self.channel.log_likelihood(repeated, some), dtype=float))
        # Without this the likelihood is not a probability, or a label was not met: sample y instead of adding up.
        return values if np.ptp(total) < 1e-6 * total.mean() else None

    def _informations(self, pairs: list[tuple[Array, Array]]) -> list[Uncertain]:
        labels = self.labels
        if labels is not None and self.dimension == 1:
            Q, V = (np.array([pair[i][0, 0] for pair in pairs]) for i in range(2))
            far = V < _NARROWEST * Q
            if not far.any():
                return self._by_quadrature(Q, V, labels)
            # No rule meets a boundary that is this narrow unless it knows where: follow the power law on the way to it.
            near = [np.where(far, factor * _NARROWEST * Q, V) for factor in (1.0, 10.0)]
            found, wider = (self._by_quadrature(Q, np.maximum(v, V), labels) for v in near)
            return [
                _continued(f, w, v, low) if out else f
                for f, w, v, low, out in zip(found, wider, V, near[0], far)
            ]
        return [self._sampled(q, v, labels) for q, v in pairs]

    def _sampled(self, Q: Array, V: Array, labels: Array | None) -> Uncertain:
        """By sampling, where sampling is any good; its limits at both ends are known otherwise."""
        if self.components > 1:
            return self._information(Q, V)
        q, v = float(Q[0, 0]), float(V[0, 0])
        if labels is not None and v < _THINNEST * q:
            # So few labels are in doubt that none would be met; their share falls like the width of the posterior.
            at = _THINNEST * q
            found, wider = (self._kept(np.array([[q + v - e]]), np.array([[e]])) for e in (at, 10 * at))
            return _continued(found, wider, v, at)
        faint = _FAINT * (q + v)
        if q < faint and self.symmetry != "none" and self.symmetry != "permutations":
            # Labels that see no sign tell nothing at first, and then in proportion to what is known.
            start = self._susceptibility(q + v)
            near = self._kept(np.array([[faint]]), np.array([[q + v - faint]]))
            end = float(near.value[0, 0]) / faint
            value = q * (start.value + (end - start.value) * q / faint)
            error = q * math.hypot(start.error, float(near.error[0, 0]) / faint * q / faint)
            return Uncertain(np.array([[value]]), np.array([[error]]), near.method)
        return self._information(Q, V)

    def _kept(self, Q: Array, V: Array) -> Uncertain:
        memory: dict[bytes, Uncertain] = self.__dict__.setdefault("_anchors", {})
        key = Q.tobytes() + V.tobytes()
        if key not in memory:
            memory[key] = self._information(Q, V)
        return memory[key]

    def _susceptibility(self, V: float) -> Uncertain:
        """``E sum_cc' ((E[z_c z_c' | y] - V delta_cc') / V^2)^2`` at omega = 0: the slope of the information in the overlap."""
        memory: dict[float, Uncertain] = self.__dict__.setdefault("_slopes", {})
        if V not in memory:
            C, estimates = self.sites, []
            for scramble in range(_SCRAMBLES):
                u = whitened_points(self.dimension, _SLOPE_POINTS, "slope: latents", scramble, paired=False)
                z = math.sqrt(V) * u.reshape(-1, 1, C)
                y = np.asarray(self.channel.forward(z, rng=monte_carlo_rng("slope: labels", scramble)))
                found = self._integrate(y, np.zeros_like(z), np.array([[V]]), self.accuracy, effort=1)
                G = (found.square - np.eye(C)) / V
                estimates.append(float((G * G).sum((1, 2)).mean()))
            error = float(np.std(estimates, ddof=1)) / math.sqrt(_SCRAMBLES)
            memory[V] = Uncertain(float(np.mean(estimates)), error, "Monte Carlo")
        return memory[V]

    def _information(self, Q: Array, V: Array) -> Uncertain:
        """The best of the two samplers, with more points until the error is small or enough is enough."""
        labels = self.labels
        points, good = (256, _GOOD_DRAWN) if labels is None else (64, _GOOD)
        # Several components are found by iterating: a number of points that changed on the way would never settle.
        points, refinements = (points, _REFINEMENTS) if self.components == 1 else (max(points, 128), 1)
        for refinement in range(refinements):
            if labels is None:
                estimates = np.stack(self._over_samples(Q, V, points))
            else:
                estimates = np.stack(
                    [self._sum_over_labels(Q, V, labels, points, k) for k in range(_SCRAMBLES)]
                )
            value = estimates.mean(0)
            error = estimates.std(axis=0, ddof=1) / math.sqrt(_SCRAMBLES)
            if np.trace(error) <= good * abs(np.trace(value)) or refinement == refinements - 1:
                break
            points *= 4
        what = "labels added up" if labels is not None else "posterior integrated from the likelihood"
        return Uncertain(value, error, f"Monte Carlo ({_SCRAMBLES} Sobol scrambles of {points}; {what})")

    def _sum_over_labels(self, Q: Array, V: Array, labels: Array, points: int, scramble: int) -> Array:
        """``E sum_y P(y | omega) g g^T``, one scramble."""
        P, C, d = self.components, self.sites, self.dimension
        omega = symmetric_root(Q) @ whitened_points(
            d, points, "likelihood information: latents", scramble, paired=False
        ).reshape(points, P, C)
        root_V = symmetric_root(V)
        axes = monte_carlo_rng("likelihood information: axes", scramble).standard_normal((2, points, d))
        axes /= np.linalg.norm(axes, axis=2, keepdims=True)
        sets = [_wide_points(d, 2 * scramble + i) for i in (0, 1)]
        total = np.zeros((d, d))
        step = max(1, _BLOCK // sets[0][0].size)
        for start in range(0, points, step):
            part = slice(start, start + step)
            parts = []
            for (u, weight), axis in zip(sets, axes):
                # Turned for every omega, so that the errors of different omegas are independent.
                turned = _reflected(np.broadcast_to(u, (len(omega[part]), *u.shape)), axis[part], np)
                z = omega[part, None] + root_V @ turned.reshape(-1, len(u), P, C)
                likelihood = self._likelihoods(z.reshape(-1, P, C), labels).reshape(len(labels), -1, len(u))
                parts.append((weight * likelihood, turned))
            total += _sum_of_squares(*parts[0], *parts[1])
        total = (total + total.T) / (2 * points)
        blocks = total.reshape(P, C, P, C)
        inverse_root = np.linalg.inv(root_V)
        found: np.ndarray[Any, Any] = inverse_root @ sum(blocks[:, c, :, c] for c in range(C)) @ inverse_root
        return found

    def _by_quadrature(self, Q: Array, V: Array, labels: Array) -> list[Uncertain]:
        """The same in one dimension for all (Q, V) at once, by an adaptive rule over omega around one over z."""
        xp = namespace(Q)
        scale, width = np.sqrt(Q), np.sqrt(V)
        tolerance = _ONE_LINE / 10

        def inner(omega: Array, spread: Array) -> Array:
            """``sum_y P(y | omega) E[u | y, omega]^2`` (M,)."""

            def log_weight(u: Array, lines: Array) -> Array:
                at = lines // len(labels)
                z = omega[at][:, None] + spread[at][:, None] * u
                y = np.repeat(labels[lines % len(labels)], u.shape[1], axis=0)
                found = np.asarray(self.channel.log_likelihood(y, z.reshape(-1, 1, 1)), dtype=float)
                return np.maximum(found, IMPOSSIBLE).reshape(u.shape)

            count = len(omega) * len(labels)
            found = line_moments(log_weight, count, xp, None, tolerance=tolerance, search=False)
            chance = np.exp(np.clip(found.log_norm, -700, None))
            return (chance * found.mean**2).reshape(len(omega), len(labels)).sum(axis=1)

        def log_square(t: Array, lines: Array) -> Array:
            omega = (scale[lines][:, None] * t).ravel()
            spread = np.broadcast_to(width[lines][:, None], t.shape).ravel()
            step = max(1, _BLOCK // (80 * len(labels)))
            parts = [inner(omega[i : i + step], spread[i : i + step]) for i in range(0, len(omega), step)]
            return np.log(np.concatenate(parts)).reshape(t.shape)

        with np.errstate(all="ignore"):
            found = line_moments(log_square, len(Q), xp, None, tolerance=tolerance)
        value = np.exp(found.log_norm) / V
        # The rule keeps the error of the norm below ten times that of the mean.
        error = value * np.clip(10 * found.error, 0.0, 1.0)
        method = "nested quadrature of the likelihood"
        return [
            Uncertain(np.array([[v]]), np.array([[e if v > 0 else 0.0]]), method)
            for v, e in zip(value, error)
        ]

    def _predict_noiseless(self, z: Array) -> Array:
        """``E[y | z]``: exact where a label has few values, otherwise a mean over fixed draws of the noise."""
        labels = self.labels
        if labels is None:
            return super()._predict_noiseless(z)
        xp = namespace(z)
        total: Any = 0.0
        norm: Any = 0.0
        for value in labels:
            one = xp.asarray(value, device=array_api_compat.device(z))
            y = xp.broadcast_to(one, (z.shape[0], *one.shape))
            seen = xp.astype(observable(self.channel, y), z.dtype)
            with np.errstate(all="ignore"):
                chance = xp.astype(xp.exp(self.channel.log_likelihood(y, z)), z.dtype)
            norm = norm + chance
            total = total + seen * xp.reshape(chance, (-1, *([1] * (seen.ndim - 1))))
        return total / xp.reshape(norm, (-1, *([1] * (total.ndim - 1))))

    def _likelihoods(self, z: Array, labels: Array) -> Array:
        """``P(y | z)`` of every label, (Y, n)."""
        with np.errstate(all="ignore"):
            repeated = (np.broadcast_to(value, (len(z), *value.shape)) for value in labels)
            return np.stack(
                [np.exp(np.asarray(self.channel.log_likelihood(y, z), dtype=float)) for y in repeated]
            )

    def _over_samples(self, Q: Array, V: Array, points: int) -> list[Array]:
        """Estimates from labels that are drawn, one for each scramble."""
        P, C = self.components, self.sites
        root_Q, root_V, inverse = symmetric_root(Q), symmetric_root(V), np.linalg.inv(V)
        primary, control = [], []
        for scramble in range(_SCRAMBLES):
            normal = whitened_points(
                2 * self.dimension, points, "likelihood information: pairs of latents", scramble, paired=False
            ).reshape(points, 2, P, C)
            omega, shift = root_Q @ normal[:, 0], root_V @ normal[:, 1]
            y = np.asarray(
                self.channel.forward(
                    omega + shift, rng=monte_carlo_rng("likelihood information: labels", scramble)
                )
            )
            found = self._integrate(y, omega, V, 10 * self.accuracy, effort=1)
            halves = [_apply(root_V, m, (points, P, C), np) for m in found.halves]
            g, other = (inverse @ m for m in halves)
            square = (np.einsum("npc,nqc->pq", g, other) + np.einsum("npc,nqc->pq", other, g)) / (2 * points)
            cross = np.einsum("npc,nqc->pq", (g + other) / 2, inverse @ shift) / points
            primary.append(square)
            control.append(square - (cross + cross.T) / 2)
        a, b = np.stack(primary), np.stack(control)
        estimates = []
        for k in range(_SCRAMBLES):
            # The coefficient comes from the other scrambles, which keeps the estimate unbiased.
            others = np.delete(np.arange(_SCRAMBLES), k)
            spread = b[others] - b[others].mean(0)
            power = (spread**2).sum(0)
            slope = (spread * (a[others] - a[others].mean(0))).sum(0) / np.where(power > 0, power, 1)
            estimates.append(a[k] - slope * b[k])
        return estimates

    def _integrate(self, y: Array, omega: Array, V: Array, accuracy: float, effort: int = 16) -> _Whitened:
        """Moments of the whitened latents of every sample, block by block."""
        xp = namespace(omega)
        if omega.ndim != 3 or tuple(omega.shape[1:]) != (self.components, self.sites):
            raise ValueError(
                f"omega must have shape (n, {self.components}, {self.sites}), got {tuple(omega.shape)}"
            )
        root = symmetric_root(xp.astype(V, xp.float64))
        n = omega.shape[0]
        size = max(1, _BLOCK // (200 if self.dimension == 1 else 2 * _POINTS * self.dimension))
        blocks = []
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            for start in range(0, n, size):
                part = slice(start, min(start + size, n))
                block = _Block(
                    self.channel, y[part, ...], xp.astype(omega[part, ...], xp.float64), root, start
                )
                blocks.append(_integrate_block(block, accuracy, effort))
        if not blocks:
            raise ValueError("there must be at least one sample")
        merged = [
            xp.concat([getattr(b, name) for b in blocks], axis=0)
            for name in ("log_norm", "mean", "square", "error")
        ]
        halves = tuple(xp.concat([b.halves[i] for b in blocks], axis=0) for i in range(2))
        return _Whitened(merged[0], merged[1], merged[2], merged[3], halves)


class _Whitened(NamedTuple):
    """``log Z`` (n,), ``E[u]`` (n, d), ``E[u u^T]`` (n, d, d), error of the mean (n,), two independent estimates of it."""

    log_norm: Array
    mean: Array
    square: Array
    error: Array
    halves: tuple[Array, ...]


_Fits: TypeAlias = "tuple[_Gaussian, ...]"


class _Block:
    """Some samples with their labels; evaluates the likelihood in whitened latents."""

    def __init__(self, channel: Any, y: Array, omega: Array, root: Array, start: int) -> None:
        self.channel, self.y, self.omega, self.root, self.start = channel, y, omega, root, start
        self.xp = namespace(omega)
        self.device = array_api_compat.device(omega)
        self.n, self.P, self.C = omega.shape
        self.d = self.P * self.C

    def take(self, rows: Array) -> _Block:
        """Some of the samples."""
        xp = self.xp
        return _Block(
            self.channel,
            xp.take(self.y, rows, axis=0),
            xp.take(self.omega, rows, axis=0),
            self.root,
            self.start,
        )

    def asarray(self, host: Any) -> Array:
        return self.xp.asarray(host, dtype=self.xp.float64, device=self.device)

    def log_likelihood(self, u: Array, rows: Array | None = None) -> Array:
        """``log_likelihood`` (N, k) at whitened latents (N, k, d) of the samples ``rows`` (N,); default: all."""
        xp = self.xp
        N, k, _ = u.shape
        y = self.y if rows is None else xp.take(self.y, rows, axis=0)
        omega = self.omega if rows is None else xp.take(self.omega, rows, axis=0)
        shift = xp.reshape(u, (N * k, self.P, self.C))
        shift = self.root[0, 0] * shift if self.P == 1 else xp.matmul(self.root, shift)
        z = xp.reshape(
            omega[:, None, :, :] + xp.reshape(shift, (N, k, self.P, self.C)), (N * k, self.P, self.C)
        )
        repeated = xp.reshape(xp.broadcast_to(y[:, None, ...], (N, k, *y.shape[1:])), (N * k, *y.shape[1:]))
        found = xp.astype(self.channel.log_likelihood(repeated, z), xp.float64)
        if found.shape != (N * k,):
            raise ValueError(
                f"log_likelihood must return one number per sample, shape ({N * k},), got {tuple(found.shape)}"
            )
        if bool(xp.any(xp.isnan(found) | (found == math.inf))):
            raise ValueError("log_likelihood returned a number that is not finite (only -inf is allowed)")
        return xp.reshape(xp.maximum(found, xp.full_like(found, IMPOSSIBLE)), (N, k))


def _integrate_block(block: _Block, accuracy: float, effort: int) -> _Whitened:
    """The cheapest method that meets the posterior of each sample, and more points where the error asks for them."""
    if block.d == 1:
        return _on_one_line(block, min(accuracy, _ONE_LINE), search=effort > 0)
    xp = block.xp
    prior = _prior(block)
    found, effective = _on_points(block, prior, _POINTS)
    # Where errors of single samples average out, a few effective points will do.
    easy = effective >= (_ENOUGH if effort > 1 else _ENOUGH / 5) * _POINTS
    found = _more_points(block, prior, found, easy, accuracy, effort)
    hard = xp.nonzero(~easy)[0]
    if hard.shape[0]:
        some = block.take(hard)
        found = _merged(found, _integrate_hard(some, _taken(prior, hard), accuracy, effort), ~easy, xp)
    return found


def _integrate_hard(block: _Block, prior: _Fits, accuracy: float, effort: int) -> _Whitened:
    """Samples whose posterior the prior's points hardly meet: a thin sheet in latent space, or a small region."""
    xp = block.xp
    lines = _LINES if block.d <= 3 else 4 * _LINES
    if block.d <= 3:
        # Lines through all of the prior miss no part of a sheet; a fit might settle on one.
        found, effective = _on_lines(block, prior, lines)
        met = effective >= _TRUSTED
        rough = met & (found.error > accuracy)
        if effort > 1:
            found = _again(block, prior, found, rough, lambda b, f: _on_lines(b, f, 4 * lines)[0])
        rest = xp.nonzero(~met)[0]
        if not rest.shape[0]:
            return found
        smaller = _integrate_fitted(block.take(rest), lines, accuracy, effort)
        return _merged(found, smaller, ~met, xp)
    return _integrate_fitted(block, lines, accuracy, effort)


def _integrate_fitted(block: _Block, lines: int, accuracy: float, effort: int) -> _Whitened:
    fits = _fits(block)
    found, effective = _on_points(block, fits, _POINTS)
    thin = effective < _THIN * _POINTS
    found = _more_points(block, fits, found, ~thin, accuracy, effort)
    return _again(block, fits, found, thin, lambda b, f: _on_lines(b, f, lines)[0])


def _more_points(
    block: _Block, fits: _Fits, found: _Whitened, where: Array, accuracy: float, effort: int
) -> _Whitened:
    count = _POINTS
    while effort > 1:
        effort, count = effort // 4, count * 4
        found = _again(
            block,
            fits,
            found,
            where & (found.error > accuracy),
            partial(_points_alone, count=count),
        )
    return found


def _taken(fits: _Fits, rows: Array) -> _Fits:
    xp = namespace(rows)
    return tuple(_Gaussian(*(xp.take(a, rows, axis=0) for a in fit)) for fit in fits)


def _merged(found: _Whitened, new: _Whitened, mask: Array, xp: ModuleType) -> _Whitened:
    """``found`` with the samples where ``mask`` holds replaced, in order, by ``new``."""
    halves = tuple(put_at_mask(o, mask, n) for n, o in zip(new.halves, found.halves))
    log_norm, mean, square, error = (put_at_mask(o, mask, n) for n, o in zip(new[:4], found[:4]))
    return _Whitened(log_norm, mean, square, error, halves)


def _points_alone(block: _Block, fits: _Fits, *, count: int) -> _Whitened:
    return _on_points(block, fits, count)[0]


def _again(
    block: _Block, fits: _Fits, found: _Whitened, mask: Array, method: Callable[[_Block, _Fits], _Whitened]
) -> _Whitened:
    """The moments with those of the samples where ``mask`` holds computed by another method."""
    xp = block.xp
    rows = xp.nonzero(mask)[0]
    if not rows.shape[0]:
        return found
    parts = []
    for start in range(0, rows.shape[0], _ROWS):
        some = rows[start : min(start + _ROWS, rows.shape[0])]
        parts.append(method(block.take(some), _taken(fits, some)))
    halves = tuple(xp.concat([part.halves[i] for part in parts], axis=0) for i in range(2))
    log_norm, mean, square, error = (
        xp.concat(list(column), axis=0) for column in zip(*(part[:4] for part in parts))
    )
    new = _Whitened(log_norm, mean, square, error, halves)
    return _merged(found, new, mask, xp)


def _on_one_line(block: _Block, accuracy: float, *, search: bool) -> _Whitened:
    xp = block.xp

    def log_weight(t: Array, lines: Array) -> Array:
        return block.log_likelihood(t[..., None], lines)

    found = line_moments(log_weight, block.n, xp, block.device, tolerance=accuracy, search=search)
    mean = found.mean[:, None]
    return _Whitened(found.log_norm, mean, found.square[:, None, None], found.error, (mean, mean))


class _Gaussian(NamedTuple):
    """Where to put the points of every sample: N(mean, factor factor^T), and along which direction to draw lines."""

    mean: Array
    factor: Array
    axis: Array


def _prior(block: _Block) -> _Fits:
    """The prior itself for every replicate."""
    xp, n, d = block.xp, block.n, block.d
    identity = xp.broadcast_to(xp.eye(d, dtype=xp.float64, device=block.device), (n, d, d))
    centre = xp.zeros((n, d), dtype=xp.float64, device=block.device)
    return (_Gaussian(centre, identity, _random_axes(block)),) * _REPLICATES


def _fits(block: _Block) -> _Fits:
    """For every replicate a Gaussian that covers the posterior of every sample, in whitened latents.

    Fit, move, repeat, with the weights raised to the power that keeps ``_FIT`` of the points effective. Every replicate
    has a fit of its own: where one has missed something, the replicates disagree and the error says so.
    """
    count = 128 if block.d <= 3 else 512
    seeds = range(70, 70 + _REPLICATES)
    return tuple(
        _adapt(block, block.asarray(whitened_points(block.d, count, "likelihood: nodes", seed)))
        for seed in seeds
    )


def _adapt(block: _Block, nodes: Array) -> _Gaussian:
    xp, d = block.xp, block.d
    count = nodes.shape[0]
    identity = xp.eye(d, dtype=xp.float64, device=block.device)
    spread = xp.sum(nodes * nodes, axis=1)[None, :] / 2
    mean = xp.zeros((block.n, d), dtype=xp.float64, device=block.device)
    covariance = xp.broadcast_to(identity, (block.n, d, d))
    scale = xp.ones((block.n,), dtype=xp.float64, device=block.device)
    rows = xp.arange(block.n, device=block.device)
    finished: list[tuple[Array, Array, Array]] = []
    for step in range(_ROUNDS + 1):
        factor = xp.linalg.cholesky(covariance)
        u = mean[:, None, :] + xp.matmul(
            xp.broadcast_to(nodes, (block.n, count, d)), xp.matrix_transpose(factor)
        )
        weight = block.log_likelihood(u) - xp.sum(u * u, axis=-1) / 2 + spread
        done = _effective(weight, xp) >= _FIT * count
        if step == _ROUNDS:
            done = xp.ones_like(done)
        here, rest = xp.nonzero(done)[0], xp.nonzero(~done)[0]
        finished.append((xp.take(rows, here), xp.take(mean, here, axis=0), xp.take(covariance, here, axis=0)))
        if not rest.shape[0]:
            break
        block, rows, scale = block.take(rest), xp.take(rows, rest), xp.take(scale, rest)
        mean, covariance, u, weight = (xp.take(a, rest, axis=0) for a in (mean, covariance, u, weight))
        alive = xp.max(weight, axis=1) > 0.5 * IMPOSSIBLE
        centre, square = _tempered_fit(u, weight, mean, covariance, xp)
        size = xp.linalg.trace(square)[:, None, None] / d
        square = _INFLATION * square + 1e-9 * size * identity
        # Nothing found: look further out.
        scale = xp.where(alive, scale, 2 * scale)
        covariance = xp.where(alive[:, None, None], square, (scale**2)[:, None, None] * identity)
        mean = xp.where(alive[:, None], centre, mean)
    order = xp.argsort(xp.concat([who for who, _, _ in finished]))
    mean, covariance = (xp.take(xp.concat([f[i] for f in finished]), order, axis=0) for i in (1, 2))
    factor = xp.linalg.cholesky(covariance)
    _, vectors = xp.linalg.eigh(covariance)
    # Two peaks that no single Gaussian can tell apart lie along its longest axis: draw the lines that way.
    axis = xp.linalg.solve(factor, vectors[:, :, -1:])[..., 0]
    return _Gaussian(mean, factor, axis / xp.linalg.vector_norm(axis, axis=1, keepdims=True))


def _tempered_fit(
    u: Array, weight: Array, mean: Array, covariance: Array, xp: ModuleType
) -> tuple[Array, Array]:
    """Mean and covariance under the weights raised to the power at which ``_FIT`` of the points are effective.

    While that power is below one the cloud is still on its way: its extent along the way is kept, or it would shrink
    before it arrives.
    """
    d = u.shape[-1]
    power = _tempering(weight, _FIT * weight.shape[1], xp)
    p = xp.exp(clip(power[:, None] * (weight - xp.max(weight, axis=1, keepdims=True)), -700.0, 0.0))
    p = p * xp.astype(weight > 0.5 * IMPOSSIBLE, xp.float64) + 1e-300
    p = p / xp.sum(p, axis=1, keepdims=True)
    centre = xp.sum(p[..., None] * u, axis=1)
    away = u - centre[:, None, :]
    square = xp.matmul(xp.matrix_transpose(away * p[..., None]), away)
    way = centre - mean
    square = square + (1 - power)[:, None, None] * way[:, :, None] * way[:, None, :]
    # Few points determine no covariance: lean on the present one.
    few = clip((d + 2) * xp.sum(p * p, axis=1), 0.0, 1.0)[:, None, None]
    return centre, (1 - few) * square + few * covariance / 4


def _effective(weight: Array, xp: ModuleType) -> Array:
    """Effective number of points under log-weights (N, K); 0 where all are impossible."""
    top = xp.max(weight, axis=1, keepdims=True)
    p = xp.exp(clip(weight - top, -700.0, 0.0))
    found = xp.sum(p, axis=1) ** 2 / xp.sum(p * p, axis=1)
    return xp.where(top[:, 0] > 0.5 * IMPOSSIBLE, found, xp.zeros_like(found))


def _tempering(weight: Array, wanted: float, xp: ModuleType) -> Array:
    """Largest power in (0, 1] of the weights that keeps ``wanted`` points effective, or half of the possible ones."""
    possible = weight > 0.5 * IMPOSSIBLE
    # Impossible points stay impossible at any power.
    gap = xp.where(possible, weight - xp.max(weight, axis=1, keepdims=True), xp.full_like(weight, math.inf))
    goal = clip(xp.sum(xp.astype(possible, xp.float64), axis=1) / 2, 1.0, wanted)
    low = xp.full_like(goal, -50.0)
    high = xp.zeros_like(goal)
    exponent = high
    for _ in range(16):
        scaled = xp.where(possible, (2.0**exponent)[:, None] * gap, xp.full_like(gap, -700.0))
        enough = _effective(scaled, xp) >= goal
        low, high = xp.where(enough, exponent, low), xp.where(enough, high, exponent)
        exponent = (low + high) / 2
    return 2.0**low


def _on_lines(block: _Block, fits: _Fits, count: int) -> tuple[_Whitened, Array]:
    """Adaptive quadrature along ``count`` parallel lines per sample and replicate, and how many were effective in all."""
    xp, n, d = block.xp, block.n, block.d
    owner = xp.reshape(xp.broadcast_to(xp.arange(n, device=block.device)[:, None], (n, count)), (-1,))
    parts = []
    for replicate, fit in enumerate(fits):
        direction = xp.matmul(fit.factor, fit.axis[..., None])[..., 0]
        across = block.asarray(whitened_points(d - 1, count, "likelihood: lines", replicate))
        across = xp.concat([xp.zeros_like(across[:, :1]), across], axis=1)
        across = _reflected(xp.broadcast_to(across[None, ...], (n, count, d)), fit.axis, xp)
        base = fit.mean[:, None, :] + xp.matmul(across, xp.matrix_transpose(fit.factor))
        flat = xp.reshape(base, (n * count, d))
        constant = xp.reshape(xp.sum(across * across, axis=-1), (-1,)) / 2

        determinant = _log_determinant(fit, xp)
        along = xp.take(direction, owner, axis=0)

        found = line_moments(
            partial(_on_the_line, block, flat, along, constant, owner),
            n * count,
            xp,
            block.device,
            tolerance=2e-3,
            reach=8.0,
            rounds=20,
            search=False,
        )
        weight, mean, square = (xp.reshape(a, (n, count)) for a in found[:3])
        points = base + mean[..., None] * direction[:, None, :]
        scatter = clip(square - mean * mean, 0.0, None)
        parts.append(_Weighted(weight + determinant[:, None], points, scatter, direction))
    effective = _effective(xp.concat([part.weight for part in parts], axis=1), xp)
    return _gathered(parts, _width(fits), xp), effective


def _on_the_line(
    block: _Block, base: Array, along: Array, constant: Array, owner: Array, t: Array, lines: Array
) -> Array:
    """Log-weight of points on lines: the Gaussian that the lines follow is divided out, the prior is put in."""
    xp = block.xp
    u = xp.take(base, lines, axis=0)[:, None, :] + t[..., None] * xp.take(along, lines, axis=0)[:, None, :]
    prior = xp.take(constant, lines)[:, None] + t * t / 2 - xp.sum(u * u, axis=-1) / 2
    return block.log_likelihood(u, xp.take(owner, lines)) + prior


def _on_points(block: _Block, fits: _Fits, count: int) -> tuple[_Whitened, Array]:
    """Importance sampling with ``count`` quasi-random points per sample and replicate, and how many were effective (n,)."""
    xp, n, d = block.xp, block.n, block.d
    parts = []
    effective = xp.zeros((n,), dtype=xp.float64, device=block.device)
    for replicate, fit in enumerate(fits):
        nodes = block.asarray(whitened_points(d, count, "likelihood: modes", replicate))
        nodes = _reflected(xp.broadcast_to(nodes[None, ...], (n, count, d)), fit.axis, xp)
        u = fit.mean[:, None, :] + xp.matmul(nodes, xp.matrix_transpose(fit.factor))
        weight = block.log_likelihood(u) - xp.sum(u * u, axis=-1) / 2 + xp.sum(nodes * nodes, axis=-1) / 2
        effective = effective + _effective(weight, xp) / _REPLICATES
        parts.append(_Weighted(weight + _log_determinant(fit, xp)[:, None], u))
    return _gathered(parts, _width(fits), xp), effective


class _Weighted(NamedTuple):
    """One replicate: log-weights (n, K), points (n, K, d), and for lines the variance along them (n, K), (n, d)."""

    weight: Array
    points: Array
    scatter: Array | None = None
    direction: Array | None = None


def _log_determinant(fit: _Gaussian, xp: ModuleType) -> Array:
    return xp.sum(xp.log(xp.linalg.diagonal(fit.factor)), axis=-1)


def _width(fits: _Fits) -> Array:
    """Size (n,) of the clouds of points in one direction, and their distance."""
    xp = namespace(fits[0].mean)
    sizes = [xp.mean(xp.sum(fit.factor * fit.factor, axis=-1), axis=-1) for fit in fits]
    centre = sum(fit.mean for fit in fits) / len(fits)
    apart = [xp.mean((fit.mean - centre) ** 2, axis=-1) for fit in fits]
    return xp.sqrt((sum(sizes) + sum(apart)) / len(fits))


def _gathered(parts: list[_Weighted], width: Array, xp: ModuleType) -> _Whitened:
    """Moments from weighted points in independent replicates.

    Where a few points carry everything the spread of the replicates says nothing: the error is then at least the size
    ``width`` of the cloud over the square root of their number.
    """
    top = xp.max(xp.stack([xp.max(part.weight, axis=1) for part in parts]), axis=0)
    alive = top > 0.5 * IMPOSSIBLE
    norms, means, squares = [], [], []
    for part in parts:
        p = xp.exp(clip(part.weight - top[:, None], -700.0, 0.0))
        p = p * xp.astype(part.weight > 0.5 * IMPOSSIBLE, xp.float64) / part.weight.shape[1]
        norms.append(xp.sum(p, axis=1))
        means.append(xp.sum(p[..., None] * part.points, axis=1))
        square = xp.matmul(xp.matrix_transpose(part.points * p[..., None]), part.points)
        if part.scatter is not None and part.direction is not None:
            outer = part.direction[:, :, None] * part.direction[:, None, :]
            square = square + xp.sum(p * part.scatter, axis=1)[:, None, None] * outer
        squares.append(square)
    norm = sum(norms) / len(parts)
    safe = xp.where(alive, norm, xp.ones_like(norm))
    mean = sum(means) / len(parts) / safe[:, None]
    square = sum(squares) / len(parts) / safe[:, None, None]
    # Standard error of a ratio over the replicates.
    residuals = [xp.sum((m - r[:, None] * mean) ** 2, axis=1) for m, r in zip(means, norms)]
    replicates = len(parts)
    variance = sum(residuals) / safe**2 / (replicates * (replicates - 1))
    d = mean.shape[1]
    effective = _effective(xp.concat([part.weight for part in parts], axis=1), xp)
    floor = xp.where(effective < _TRUSTED, width / xp.sqrt(clip(effective, 1.0, None)), xp.zeros_like(width))
    error = xp.maximum(xp.sqrt(variance / d), floor)
    half = replicates // 2
    halves = []
    for group in (slice(0, half), slice(half, replicates)):
        mass = sum(norms[group])
        good = mass > 1e-3 * norm
        estimate = sum(means[group]) / xp.where(good, mass, xp.ones_like(mass))[:, None]
        halves.append(xp.where(good[:, None], estimate, mean))
    identity = xp.eye(d, dtype=mean.dtype, device=array_api_compat.device(mean))
    mean = xp.where(alive[:, None], mean, xp.zeros_like(mean))
    square = xp.where(alive[:, None, None], square, xp.broadcast_to(identity, square.shape))
    error = xp.where(alive, error, xp.ones_like(error))
    log_norm = xp.where(alive, top + xp.log(safe), top)
    halves = [xp.where(alive[:, None], h, xp.zeros_like(h)) for h in halves]
    return _Whitened(log_norm, mean, square, error, tuple(halves))


def _reflected(points: Array, axis: Array, xp: ModuleType) -> Array:
    """Points (n, K, d) after the reflection that takes the first unit vector to ``axis`` (n, d), up to sign."""
    d = axis.shape[1]
    unit = xp.astype(xp.arange(d, device=array_api_compat.device(axis)) == 0, axis.dtype)
    sign = xp.where(axis[:, :1] > 0, -xp.ones_like(axis[:, :1]), xp.ones_like(axis[:, :1]))
    normal = sign * axis - unit
    normal = normal / xp.linalg.vector_norm(normal, axis=1, keepdims=True)
    along = xp.matmul(points, normal[..., None])
    return points - 2 * along * normal[:, None, :]


def _random_axes(block: _Block) -> Array:
    """A fixed direction for every sample: points that are reflected differently make independent errors."""
    rng = monte_carlo_rng("likelihood: block", block.d, block.start)
    axis = rng.standard_normal((block.n, block.d))
    return block.asarray(axis / np.linalg.norm(axis, axis=1, keepdims=True))


def _sum_of_squares(w: Array, u: Array, other_w: Array, other_u: Array) -> Array:
    """``sum_y P(y) m m^T`` (d, d) summed over omegas, for ``m`` the mean of u given y, free of the noise of the means.

    Weights (Y, n, K) and points (n, K, d) come in two independent sets. One mean from each makes an unbiased square
    where both have points to speak of. Where a label was met by few points of either, pairs of different points are
    counted, which loses singles only.
    """
    mass, other_mass = w.sum(2), other_w.sum(2)
    first, second = np.einsum("ynk,nki->yni", w, u), np.einsum("ynk,nki->yni", other_w, other_u)
    both = mass + other_mass
    squares = (w * w).sum(2) + (other_w * other_w).sum(2)
    few = both * both < _TRUSTED * 2 * squares
    safe = np.where(both > 0, both, 1.0)
    share = np.where(few, 0.0, 2 / safe)[..., None]
    total = np.einsum("yni,ynj->ij", first * share, second)
    label, sample = np.nonzero(few & (both > 0))
    if len(label):
        weight = np.concatenate([w[label, sample], other_w[label, sample]], axis=1)
        points = np.concatenate([u[sample], other_u[sample]], axis=1)
        rest = both[label, sample][:, None] - weight
        # Rounding can leave something of a single: it has no partner.
        portion = np.where(rest > 1e-9 * weight, weight / np.where(rest > 0, rest, 1.0), 0.0)
        moved = (first + second)[label, sample]
        pairs = np.einsum("mk,mki,mj->ij", portion, points, moved)
        total = total + (pairs - np.einsum("mk,mki,mkj->ij", portion * weight, points, points)) / 2
    return total


@lru_cache(maxsize=64)
def _wide_points(dimension: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points from Gaussians of several widths at once, and their weights as points of the standard normal law."""
    parts = [
        scale * whitened_points(dimension, count, "likelihood: mixture", seed, i, paired=True)
        for i, (scale, count) in enumerate(_WIDTHS)
    ]
    u = np.concatenate(parts)
    square = (u * u).sum(1)
    total = sum(count for _, count in _WIDTHS)
    logs = [
        math.log(count / total) - dimension * math.log(scale) - square / (2 * scale**2)
        for scale, count in _WIDTHS
    ]
    weight = np.exp(-square / 2 - np.logaddexp.reduce(np.stack(logs), axis=0)) / total
    weight /= weight.sum()
    return u @ inverse_root((u * weight[:, None]).T @ u), weight


def _continued(found: Uncertain, wider: Uncertain, V: float, at: float) -> Uncertain:
    """The power law through the information at the error ``at`` and at ten times that, continued to V."""
    value, other = float(found.value[0, 0]), float(wider.value[0, 0])
    if not (value > 0 and other > 0):
        return found
    # Labels tell at most the width of the posterior, and never less of a narrower one.
    power = min(max(math.log10(value / other), 0.0), 1.0)
    distance = math.log(at / V)
    relative = [float(f.error[0, 0]) / float(f.value[0, 0]) for f in (found, wider)]
    spread = relative[0] + sum(relative) * distance / math.log(10)
    grown = np.array([[value * math.exp(power * distance)]])
    return Uncertain(grown, grown * min(spread, 1.0), f"{found.method}, continued as a power law")


def _apply(root: Array, flat: Array, shape: tuple[int, ...], xp: Any) -> Array:
    return xp.matmul(root, xp.reshape(flat, shape))
