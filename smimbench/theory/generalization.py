r"""Generalization errors of the Bayes-optimal, plug-in and constant predictor, at overlaps and along curves.

The loss is ``|y - y_hat|^2`` summed over the entries of the noiseless observable label ``f(z)``. The latents of the truth
and of the estimate are jointly Gaussian, independent over sites, so no fresh inputs are needed: an estimate enters through
its overlap matrices alone.

* plug-in: ``y_hat = f(omega)``; where nothing is learned, its limit for an overlap that vanishes;
* Bayes: ``y_hat = E_{z ~ N(omega, V)} f(z)``;
* constant: ``y_hat = E f(z)``.

Where f is known as a mean of draws of noisy labels alone, every square is a product of two independent ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.polynomial import Chebyshev

from smimbench.derive.labels import predict_twice
from smimbench.interfaces import Uncertain
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.memo import cached_on
from smimbench.numerics.random_numbers import normal_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Array
    from smimbench.problem.problem import Problem

KINDS = ("bayes", "plugin", "constant")
Errors = dict[str, Uncertain]
"""Errors of prediction by kind."""
SCRAMBLES = 32
"""Independent Sobol scrambles, whose scatter gives the standard error; doubled, it is known 1.4 times better."""
POINTS = 2**11
"""Sobol points in each; doubled, errors of smooth labels nearly halve."""
VANISHING_ESTIMATE = 1e-20
"""Scale of the noise that stands for an estimate of vanishing overlap: breaks ties of discontinuous labels."""
CURVE_NODES = 25
"""Chebyshev nodes along a curve; doubled, the error of interpolation is squared."""


def generalization_error(problem: Problem, Q: Array, V: Array) -> Errors:
    r"""Generalization errors, by kind of predictor (bayes, plugin, constant), at overlap Q and error V of a Bayes-optimal
    estimate: by closed forms or sampled. They are cached by Q and V.

    Parameters
    ----------
    Q, V : ndarray (P, P)
        Overlap and error of the estimate.

    Returns
    -------
    dict
        ``"bayes"``, ``"plugin"``, ``"constant"``: the channel's closed form, or scrambled Sobol points with the standard
        error over scrambles. The Bayes error is ``E |f(z) - f(z')|^2 / 2`` with two independent draws from the posterior,
        which is unbiased; averaging draws into a predictor first would add its variance.
    """
    cache: dict[bytes, Errors] = cached_on(problem, "generalization_error", dict)
    cache_key = (
        np.asarray(Q, dtype=float).tobytes() + np.asarray(V, dtype=float).tobytes()
    )
    if cache_key not in cache:
        closed_form = problem.channel.generalization_error
        cache[cache_key] = (
            sampled_errors(problem, Q, V)
            if closed_form is None
            else _closed_errors(closed_form(Q, V))
        )
    return cache[cache_key]


def _closed_errors(formulas: Errors) -> Errors:
    """Convert generalization errors in closed form (``formulas``), by kind of predictor (bayes, plugin, constant), to floats,
    without negative rounding.
    """
    return _not_negative({kind: _to_float(formulas[kind]) for kind in KINDS})


def sampled_errors(problem: Problem, Q: Array, V: Array) -> Errors:
    """Generalization errors, by kind of predictor, at overlap Q and error V by Monte Carlo, even if the channel has closed
    forms.
    """
    return _errors_of_samples(
        problem, np.block([[Q + V, Q], [Q, Q]]), V, VANISHING_ESTIMATE
    )


def measured_error(
    problem: Problem, truth: Array, cross: Array, gram: Array, V: Array | None
) -> Errors:
    """Generalization errors, by kind of predictor, of an actual estimate from its overlaps (P, P): the teacher's self-overlap
    (``truth``), that of estimate and teacher (``cross``), and the estimate's self-overlap (``gram``). V is the error that the
    estimate claims; None: no Bayes prediction.

    Parameters
    ----------
    truth, cross, own : ndarray (P, P)
        Overlap matrices teacher-teacher, teacher-estimate and estimate-estimate.
    V : ndarray (P, P) or None
        Error that the algorithm claims; None leaves the Bayes predictor out.
    """
    joint_overlaps = np.block([[truth, cross], [cross.T, gram]])
    return _errors_of_samples(problem, joint_overlaps, V)


def point_errors(problem: Problem, Q: Array, V: Array, V_error: Array) -> Errors:
    """Generalization errors at overlap Q and error V whose stated uncertainty includes the effect of the numerical error
    ``V_error`` (P,) of the diagonal of V.

    To first order and with the same random points; it is added to the stated errors.
    """
    return _add_error_of_V(problem, generalization_error(problem, Q, V), Q, V, V_error)


def curve_errors(
    problem: Problem, Q: Sequence[Array], V: Sequence[Array], V_errors: Sequence[Array]
) -> list[Errors]:
    """Generalization errors along a curve of one component, at lists of overlaps Q, errors V and numerical errors ``V_errors`` of
    V; if the curve has many points they are interpolated.
    """
    if len(Q) <= CURVE_NODES:
        return [point_errors(problem, *point) for point in zip(Q, V, V_errors)]
    interpolated_errors = _errors_along_curve(problem, Q, V)
    return [
        _add_error_of_V(problem, *point)
        for point in zip(interpolated_errors, Q, V, V_errors)
    ]


def _add_error_of_V(
    problem: Problem, errors: Errors, Q: Array, V: Array, V_error: Array
) -> Errors:
    """Add to the uncertainties of generalization ``errors`` at Q and V how much they change if V grows, and Q falls, by the
    numerical error ``V_error`` of V; q and v are such a changed pair.
    """
    V_shift = np.diag(
        np.minimum(np.broadcast_to(V_error, len(V)), np.maximum(np.diagonal(Q), 0.0))
    )
    if V_shift.max() <= 1e-8:  # smaller errors of V do not matter
        return errors
    errors_at_point, errors_at_shift = (
        generalization_error(problem, q, v)
        for q, v in ((Q, V), (Q - V_shift, V + V_shift))
    )
    return {
        kind: error._replace(
            error=error.error
            + abs(errors_at_shift[kind].value - errors_at_point[kind].value)
        )
        for kind, error in errors.items()
    }


def _errors_along_curve(
    problem: Problem, Q: Sequence[Array], V: Sequence[Array]
) -> list[Errors]:
    """Generalization errors at points (Q, V) along a curve of one component, without the uncertainty from the error of V. They
    are interpolated in the square root of V between Chebyshev points.

    The errors are smooth in sqrt(V) (they behave like sqrt(V) or V near perfect recovery), so Chebyshev interpolation in
    that variable converges geometrically. What half of the nodes would have said is part of the error.
    """
    second_moment = float(problem.prior.second_moment(1)[0, 0])
    V_roots = np.sqrt([float(errors_at_node[0, 0]) for errors_at_node in V])
    root_center = (V_roots.max() + V_roots.min()) / 2
    half_width = (V_roots.max() - V_roots.min()) / 2
    if half_width < 1e-9:
        return [generalization_error(problem, Q[0], V[0])] * len(Q)
    nodes = root_center + half_width * np.cos(
        np.pi * np.arange(CURVE_NODES) / (CURVE_NODES - 1)
    )
    nodes = np.clip(nodes, 0.0, None)
    errors_at_nodes = [
        generalization_error(
            problem,
            np.array([[second_moment - root * root]]),
            np.array([[root * root]]),
        )
        for root in nodes
    ]
    along_curve: list[Errors] = [{} for _ in Q]
    for kind in KINDS:
        at_nodes = np.array(
            [errors_at_node[kind].value for errors_at_node in errors_at_nodes]
        )
        largest_noise = max(
            float(errors_at_node[kind].error) for errors_at_node in errors_at_nodes
        )
        fine_fit = Chebyshev.fit(nodes, at_nodes, CURVE_NODES - 1)(V_roots)
        coarse_fit = Chebyshev.fit(nodes[::2], at_nodes[::2], CURVE_NODES // 2)(V_roots)
        # The error of the finer rule is about the square of the coarser one's, relative to the size of the values.
        value_range = np.ptp(at_nodes) + 1e-300
        interpolation_error = np.minimum(
            np.abs(fine_fit - coarse_fit),
            (fine_fit - coarse_fit) ** 2 / value_range * 100 + 1e-12,
        )
        for errors, value, error in zip(along_curve, fine_fit, interpolation_error):
            errors[kind] = Uncertain(
                float(max(value, 0.0)),
                float(error + largest_noise),
                errors_at_nodes[0][kind].method,
            )
    return along_curve


def _to_float(uncertain: Uncertain) -> Uncertain:
    """Convert an ``Uncertain`` scalar's value and numerical error to floats."""
    return Uncertain(
        float(np.asarray(uncertain.value)),
        float(np.asarray(uncertain.error)),
        uncertain.method,
    )


def _not_negative(errors: Errors) -> Errors:
    """Set generalization errors that are negative within noise to 0; keep clearly negative ones, so that they are noticed."""
    rounding_error = 1e-14 * max(abs(entry.value) for entry in errors.values())
    return {
        kind: entry._replace(value=0.0)
        if -rounding_error - 4 * entry.error <= entry.value < 0
        else entry
        for kind, entry in errors.items()
    }


def _errors_of_samples(
    problem: Problem, joint_overlaps: Array, V: Array | None, noise_scale: float = 0.0
) -> Errors:
    """Generalization errors by Sobol points, from the joint overlaps (2P, 2P) of truth and estimate and the error V (None: no
    Bayes prediction). Latents z (n, P, C) are drawn of the truth, of the estimate (omega, with noise of ``noise_scale``) and of
    two posterior draws around omega; every label is predicted twice, with independent noise.
    """
    channel = problem.channel
    P, C = problem.components, problem.model.sites
    joint_root = symmetric_root(joint_overlaps)
    products_by_kind: dict[str, list[float]] = {kind: [] for kind in KINDS}
    if V is None:
        del products_by_kind["bayes"]
    else:
        V_root = symmetric_root(V)
    mean_labels, mean_squares = [], []

    def labels_of(rows: Array, scramble: int) -> tuple[Array, Array]:
        """Predict labels twice of latents given as ``rows`` (P, C n), whose samples are next to each other in memory."""
        z = rows.reshape(P, C, -1).transpose(2, 0, 1)
        return predict_twice(channel, z, scramble)

    for scramble in range(SCRAMBLES):
        normal_rows = normal_points(
            4 * P * C, POINTS, "generalization error", scramble
        ).T.reshape(4 * P, -1)
        joint_rows = joint_root @ normal_rows[: 2 * P]
        omega_rows = joint_rows[P:] + noise_scale * normal_rows[P : 2 * P]
        truth_labels = labels_of(joint_rows[:P], scramble)
        plugin_labels = labels_of(omega_rows, scramble)
        mean_labels.append((truth_labels[0] + truth_labels[1]).mean(axis=0) / 2)
        mean_squares.append(_product(*truth_labels))
        products_by_kind["plugin"].append(
            _product(
                truth_labels[0] - plugin_labels[0], truth_labels[1] - plugin_labels[1]
            )
        )
        if V is not None:
            posterior_labels, other_posterior_labels = (
                labels_of(omega_rows + V_root @ draws, scramble)
                for draws in np.split(normal_rows[2 * P :], 2)
            )
            products_by_kind["bayes"].append(
                _product(
                    truth_labels[0] - posterior_labels[0],
                    truth_labels[1] - other_posterior_labels[1],
                )
            )
    products_by_kind["constant"] = _variances(
        np.stack(mean_labels), np.array(mean_squares)
    )
    method = f"Monte Carlo ({SCRAMBLES} Sobol scrambles of {POINTS})"
    return _not_negative({
        kind: Uncertain(
            float(np.mean(scramble_estimates)),
            float(np.std(scramble_estimates, ddof=1) / np.sqrt(SCRAMBLES)),
            method,
        )
        for kind, scramble_estimates in products_by_kind.items()
    })  # fmt: skip


def _product(label: Array, other_label: Array) -> float:
    """Mean over samples of the inner product of two arrays of labels (n, ...)."""
    products = np.asarray(label, dtype=float) * np.asarray(other_label, dtype=float)
    return float(np.sum(products) / len(products))


def _variances(means: Array, squares: Array) -> list[float]:
    """Jackknife values of the variance ``E |y|^2 - |E y|^2`` of labels y, from the ``means`` of y and of its square (``squares``)
    in independent scrambles (sets of random points), each left out once.

    The square of a mean is biased by its variance; the product of the means of two scrambles is not.
    """
    count = len(means)
    flat_means = means.reshape(count, -1)
    squared_norms = np.sum(flat_means * flat_means, axis=1)
    columns = np.column_stack([flat_means, squared_norms, squares])

    def unbiased_variance(sums: Array, n: int) -> Array:
        """Unbiased variance of labels y from the sums of the columns over n scrambles."""
        squared_sum = np.sum(sums[..., :-2] ** 2, axis=-1)
        return sums[..., -1] / n - (squared_sum - sums[..., -2]) / (n * (n - 1))

    column_sums = columns.sum(axis=0)
    leave_one_out = unbiased_variance(column_sums - columns, count - 1)
    return list(
        count * unbiased_variance(column_sums, count) - (count - 1) * leave_one_out
    )
