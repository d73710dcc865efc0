"""Information that the labels of a problem carry about its latents, each value computed once and remembered."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from smimbench.derive.sampled_information import SCRAMBLES, sampled_moments
from smimbench.interfaces import Array, Channel, Host, Model, Uncertain
from smimbench.interfaces.checks import checked_posterior
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.linalg import spectral_function, symmetric_logarithm
from smimbench.numerics.memo import cached_on
from smimbench.numerics.random_numbers import monte_carlo_rng, normal_points
from smimbench.numerics.statistics import controlled_mean
from smimbench.problem.problem import Problem, ProblemError
from smimbench.theory.types import NEGLIGIBLE


def is_sampled(method: str) -> bool:
    """Whether a method description means sampling (Monte Carlo over random labels)."""
    return "Monte Carlo" in method


class Nodes:
    """Cache of the information and the susceptibility of a problem's labels at every pair of overlap Q and error V evaluated so
    far (a node).

    Parameters
    ----------
    read : callable
        Gives the nodes to begin with, by their keys; asked when the first one is looked for.
    evaluate : callable, optional
        Makes every new node, given its key and the work to do, and says whether it is worth remembering; for callers with a clock
        and a disk. All are remembered without it.

    Attributes
    ----------
    count : int
        Nodes in use, new ones and remembered ones.
    """

    def __init__(
        self,
        read: Callable[[], dict[str, Uncertain]] = dict,
        evaluate: Callable[[str, Callable[[], Uncertain]], tuple[Uncertain, bool]]
        | None = None,
    ) -> None:
        """Start with the stored nodes (values of information or susceptibility at one overlap, by key) that ``read`` returns;
        ``evaluate`` computes a new one and says whether it was stored.
        """
        self._read = read
        self._evaluate = evaluate
        self._alpha: float | None = None
        self._tell: Callable[[int, float | None], None] | None = None
        self._is_sampled = False
        self.count = 0

    @cached_property
    def evaluated(self) -> dict[str, Uncertain]:
        """Values of information and susceptibility evaluated so far (nodes), by their keys."""
        return self._read()

    @contextlib.contextmanager
    def watched(self, tell: Callable[[int, float | None], None]) -> Iterator[None]:
        """Context manager that reports progress to ``tell``: number of nodes (evaluated overlaps), and the sample ratio that a
        curve has reached.
        """
        self._tell, self._alpha = tell, None
        try:
            yield
        finally:
            self._tell = None

    def reached(self, alpha: float | None = None) -> None:
        """Report a new node (evaluated overlap), or the sample ratio that a curve has reached, to the progress callback."""
        self._alpha = self._alpha if alpha is None else alpha
        if self._tell is not None:
            self._tell(self.count, self._alpha)

    def at(
        self,
        kind: str,
        Q: Array,
        V: Array,
        evaluate: Callable[[Array, Array], Uncertain],
    ) -> Uncertain:
        """Return ``evaluate(Q, V)`` from the cache, or compute and store it. Q and V (..., P, P) are overlaps and errors; if
        values are sampled, each pair of matrices q, v of a batch is stored by itself. ``kind`` is 'information' or
        'susceptibility', or either with 'rough ' in front (from few labels).

        Where a single evaluation was sampled a batch is evaluated, and remembered, one by one.
        """
        Q = np.asarray(Q, dtype=float)
        V = np.asarray(V, dtype=float)
        if Q.ndim == 2 or not self._is_sampled:
            return self._evaluate_once(kind, Q, V, evaluate)
        shape = Q.shape[-2:]
        nodes = [
            self._evaluate_once(kind, q, v, evaluate)
            for q, v in zip(Q.reshape(-1, *shape), V.reshape(-1, *shape))
        ]
        stacked_values = np.reshape([node.value for node in nodes], Q.shape)
        stacked_errors = np.reshape(
            [np.broadcast_to(node.error, shape) for node in nodes], Q.shape
        )
        return Uncertain(
            stacked_values,
            stacked_errors,
            ", ".join(dict.fromkeys(node.method for node in nodes)),
        )

    def _evaluate_once(
        self,
        kind: str,
        Q: Array,
        V: Array,
        evaluate: Callable[[Array, Array], Uncertain],
    ) -> Uncertain:
        """Return ``evaluate(Q, V)``, the information or susceptibility (``kind``) at Q and V, from the cache, or compute and
        store it.
        """
        key, is_stored = self.key(kind, Q, V), True
        node = self.evaluated.get(key)
        if (
            node is None or np.shape(node.value) != Q.shape
        ):  # a stored node may have another shape
            if self._evaluate is None:
                node = evaluate(Q, V)
            else:
                node, is_stored = self._evaluate(key, lambda: evaluate(Q, V))
        self._is_sampled |= Q.ndim == 2 and is_sampled(node.method)
        if is_stored:
            self.evaluated[key] = node
            self.count += 1
            self.reached()
        return node

    @staticmethod
    def key(kind: str, Q: Array, V: Array) -> str:
        """Cache key of the information or susceptibility (``kind``) at Q and V, equal only for bitwise equal arguments."""
        content = f"{kind} {Q.shape} ".encode() + Q.tobytes() + V.tobytes()
        return hashlib.sha256(content).hexdigest()[:24]


def nodes_of(problem: Problem, make: Callable[[], Nodes] = Nodes) -> Nodes:
    """Return the cache of information and susceptibility of a problem at the overlaps evaluated so far (its nodes), created by
    ``make`` at the first call.
    """
    return cached_on(problem, "nodes", make)


def channel_information(
    channel: Channel, model: Model, Q: Array, V: Array
) -> Uncertain:
    r"""Information ``I(Q) = E \sum_c g_c g_c^T`` (..., P, P) of the labels on latents of overlap Q and error V, with ``g = V^-1
    (<z> - omega)`` at each site c, <z> and omega being posterior and prior mean: by the channel's own method, or sampled for each
    pair q, v of a batch.

    ``omega ~ N(0, Q (x) I_C)`` and ``z | omega ~ N(omega, V (x) I_C)``.

    Parameters
    ----------
    Q, V : ndarray (..., P, P)
        Host arrays; leading axes are a batch.

    Returns
    -------
    Uncertain
        ``value`` (..., P, P), ``error`` broadcastable to it.
    """
    if channel.information is not None:
        information: Uncertain = channel.information(Q, V)
        return information
    shape = Q.shape
    flat_Q = Q.reshape(-1, *shape[-2:])
    flat_V = V.reshape(-1, *shape[-2:])
    sampled_information = [
        sampled_moments(channel, model.sites, q, v)[0] for q, v in zip(flat_Q, flat_V)
    ]
    value = np.stack(
        [information.value for information in sampled_information]
    ).reshape(shape)
    error = np.stack(
        [information.error for information in sampled_information]
    ).reshape(shape)
    return Uncertain(value, error, sampled_information[0].method)


def offers_rough(problem: Problem) -> bool:
    """Whether the channel states how many labels give a rough sampled information, good enough for finite differences."""
    sampling = problem.channel.sampling
    return sampling is not None and sampling.rough_labels is not None


def information_at(
    problem: Problem, Q: Array, V: Array, *, rough: bool = False
) -> Uncertain:
    """Information (..., P, P) of a problem's labels at overlap Q and error V (q, v: one pair or a batch), with its error in the
    same shape. ``rough`` values, from few labels, are for finite differences only.

    ``rough``: from as many labels as the channel's ``sampling`` says, which only differences should be taken of.
    """
    node = _cached_evaluation(
        problem,
        "information",
        Q,
        V,
        lambda q, v: channel_information(problem.channel, problem.model, q, v),
        rough,
    )
    value = np.asarray(node.value, dtype=float)
    return Uncertain(
        value,
        np.broadcast_to(np.asarray(node.error, dtype=float), value.shape),
        node.method,
    )


def susceptibility_at(
    problem: Problem, Q: Array, V: Array, *, rough: bool = False
) -> Uncertain:
    """Susceptibility (P, P) at overlap Q and error V: slope of the information on components without overlap, in their overlap;
    from the channel or sampled. ``rough`` values, from few labels, are for finite differences only.
    """
    channel_susceptibility = problem.channel.susceptibility

    def sampled(q: Array, v: Array) -> Uncertain:
        """Susceptibility at overlap q and error v, sampled through the second moment of the channel's posterior."""
        susceptibility = sampled_moments(problem.channel, problem.model.sites, q, v)[1]
        if not np.isfinite(susceptibility.error).all():
            channel_name = problem.spec["channel"]["name"]
            raise ProblemError(
                f"channel {channel_name!r}",
                "labels do not depend on the sign of a component, so thresholds need the second moment of its posterior; "
                "return it from posterior(..., second_moment=True), or give a method susceptibility",
            )
        return susceptibility

    return _cached_evaluation(
        problem,
        "susceptibility",
        Q,
        V,
        sampled if channel_susceptibility is None else channel_susceptibility,
        rough and channel_susceptibility is not None,
    )


def linear_response(problem: Problem, Q: Host, V: Host) -> tuple[Host, Host]:
    r"""Linearized state evolution at overlap Q and error V: derivative ``dI_ab / dQ_cd = E \sum_{kl} G_{ak,cl} G_{bk,dl}`` (P, P,
    P, P) of the information I over sites k, l, and its error, with ``G = V^-1 <z z^T> V^-1 - V^-1`` the response of posterior
    means to prior means, from labels y of latents z.

    ``G = V^{-1} (E[z z^T | y] - V) V^{-1}`` at a prior mean that says nothing (``E[z | y] = 0``), by sampled labels.
    """
    channel, sites, P = problem.channel, problem.model.sites, problem.components
    V_root = np.linalg.cholesky(V)
    V_inverse = np.linalg.inv(V)
    point_count = 2**10
    scramble_samples, scramble_controls = [], []
    for scramble in range(SCRAMBLES):
        z = V_root @ normal_points(
            P * sites, point_count, "perfect recovery: latents", scramble
        ).reshape(point_count, P, sites)
        rng = monte_carlo_rng("perfect recovery: labels", scramble)
        y = channel.forward(z, rng=rng)
        posterior = channel.posterior(
            y, np.zeros_like(z), V, second_moment=True, rng=rng
        )
        posterior_second_moment: Array = checked_posterior(
            posterior, z, second_moment=True
        ).second_moment
        G: Array = np.einsum(
            "pq,nqcrd,rs->npcsd", V_inverse, posterior_second_moment, V_inverse
        )
        G[:, :, range(sites), :, range(sites)] -= V_inverse
        scramble_samples.append(
            np.einsum("nakcl,nbkdl->nabcd", G, G).reshape(point_count, -1)
        )
        scramble_controls.append(np.einsum("npcqc->npq", G).reshape(point_count, -1))
    response_mean, response_error = controlled_mean(scramble_samples, scramble_controls)
    return response_mean.reshape(P, P, P, P), response_error.reshape(P, P, P, P)


def _cached_evaluation(
    problem: Problem,
    kind: str,
    Q: Array,
    V: Array,
    evaluate: Callable[[Array, Array], Uncertain],
    rough: bool,
) -> Uncertain:
    """Return the information or susceptibility (``kind``) at Q and V from the cache (its nodes are the overlaps evaluated so
    far), or compute it: by ``evaluate``, or if ``rough`` by the channel from few labels.
    """
    channel: Any = problem.channel

    def rough_estimate(q: Array, v: Array) -> Uncertain:
        """Information or susceptibility from few labels, at overlap q and error v."""
        estimate: Uncertain = getattr(channel, kind)(
            q, v, labels=channel.sampling.rough_labels(q, v)
        )
        return estimate

    nodes = nodes_of(problem)
    return (
        nodes.at(f"rough {kind}", Q, V, rough_estimate)
        if rough
        else nodes.at(kind, Q, V, evaluate)
    )


def overlap_at(problem: Problem, qhat: Array) -> tuple[Host, Host]:
    """Overlap Q and error V (..., P, P) under the prior's state-evolution map, at information ``qhat`` (..., P, P)."""
    prior_overlap = problem.prior.overlap(qhat)
    return np.asarray(prior_overlap.Q), np.asarray(prior_overlap.V)


def overlap_error_at(problem: Problem, qhat: Array) -> float:
    """Relative error of V at information ``qhat`` (P, P) as stated by the prior; 0 if the prior states none."""
    stated_error = getattr(
        problem.prior, "overlap_error", 0.0
    )  # derived priors have one
    return float(
        stated_error(np.asarray(qhat, dtype=float))
        if callable(stated_error)
        else stated_error
    )


def diagonals(uncertain: Uncertain) -> tuple[Host, Host]:
    """Diagonals (P,) of an uncertain matrix, such as the information, and of its error."""
    matrix = np.asarray(uncertain.value, dtype=float)
    error = np.broadcast_to(np.asarray(uncertain.error, dtype=float), matrix.shape)
    return np.diagonal(matrix), np.diagonal(error)


def inverse_map(
    problem: Problem, Q: Host, V: Host, learned: Sequence[int] | Host
) -> Host:
    """Invert the prior's state-evolution map: find the information Qhat (P, P) that gives overlap Q and error V; 0 for
    components that are not ``learned``. The unknowns are the diagonal or, if Q is not diagonal, all entries of log Qhat on the
    learned components.
    """
    from scipy.optimize import root

    second_moment, prior_mean_overlap = prior_moments(problem)
    learned_indices = np.asarray(learned, dtype=int)
    learned_block = np.ix_(learned_indices, learned_indices)
    upper_triangle = np.triu_indices(len(learned))
    is_diagonal = not (
        np.abs(Q - prior_mean_overlap)[learned_block] * (1 - np.eye(len(learned)))
        > NEGLIGIBLE
    ).any()
    free_entries = (np.arange(len(learned)),) * 2 if is_diagonal else upper_triangle
    prior_variance_block = (second_moment - prior_mean_overlap)[learned_block]

    def qhat_matrix(log_entries: Host) -> Host:
        """Qhat (P, P) from the free (unknown) entries ``log_entries`` of its logarithm; 0 for components that are not learned."""
        log_matrix = np.zeros_like(prior_variance_block)
        log_matrix[free_entries] = log_entries
        log_matrix = log_matrix + np.triu(log_matrix, 1).T
        qhat = np.zeros_like(Q)
        qhat[learned_block] = spectral_function(log_matrix, np.exp)
        return qhat

    def log_odds(Q: Host, V: Host) -> Host:
        """Entries (log-odds) of ``log(Q - overlap of the prior mean) - log V`` on learned components, which increase with Q from
        -inf to inf.
        """
        coordinate_matrix: Host = symmetric_logarithm(
            (Q - prior_mean_overlap)[learned_block]
        ) - symmetric_logarithm(V[learned_block])
        return coordinate_matrix[free_entries]

    target_log_odds = log_odds(Q, V)
    start_entries = (
        target_log_odds - symmetric_logarithm(prior_variance_block)[free_entries]
    )  # this start is exact for Gaussian signals

    def residual(log_entries: Host) -> Host:
        """Log-odds (see ``log_odds``) of the overlap at these free entries ``log_entries`` of log Qhat minus those of the Q and V
        asked for.
        """
        return (
            log_odds(*overlap_at(problem, qhat_matrix(log_entries))) - target_log_odds
        )

    if len(start_entries) == 1:
        return qhat_matrix(
            np.array(
                [
                    _increasing_root(
                        lambda x: float(residual(np.array([x]))[0]),
                        float(start_entries[0]),
                    )
                ]
            )
        )
    return qhat_matrix(root(residual, start_entries, tol=1e-12).x)


def _increasing_root(residual: Callable[[float], float], start: float) -> float:
    """Find the root of an increasing function of one number (``residual``) between bounds that grow from ``start``."""
    from scipy.optimize import brentq

    lower_bound, upper_bound = start - 1.0, start + 1.0
    while residual(lower_bound) > 0:
        lower_bound -= 4.0
    while residual(upper_bound) < 0:
        upper_bound += 4.0
    return float(brentq(residual, lower_bound, upper_bound, xtol=1e-13, rtol=1e-13))
