"""The exact limit of online descent on attention matrices, against matrix equations and closed forms."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from smimbench_attention.algorithms.gradient.online.riccati import (
    Coefficients,
    TeacherSpectrum,
    solve_flow,
    wishart_spectrum,
)

from smimbench.numerics import gauss_legendre

SITES = 3


def linear_coefficients(cross: np.ndarray, self_overlap: np.ndarray) -> Coefficients:
    """Coefficients of squared loss on linear labels of three sites, ``Phi = 3 (q11 - 2 q12 + q22)``."""
    return Coefficients(
        np.full(len(cross), 1.0 * SITES), np.full(len(cross), -1.0 * SITES)
    )


def curved_coefficients(cross: np.ndarray, self_overlap: np.ndarray) -> Coefficients:
    """Coefficients that depend on the overlaps, as those of softmax do."""
    return Coefficients(2 / (1 + self_overlap), -1.5 / (1 + cross**2))


def marchenko_pastur(rho: float, nodes: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and weights of ``W W^T / sqrt(r D)`` from its density, with the atom at 0."""
    angles, weights = gauss_legendre(nodes, -np.pi / 2, np.pi / 2)
    eigenvalues = 1 + rho + 2 * math.sqrt(rho) * np.sin(angles)
    density = 2 * rho * np.cos(angles) ** 2 / (np.pi * eigenvalues)
    atom = max(0.0, 1 - rho)
    return np.append(0, eigenvalues / math.sqrt(rho)), np.append(
        atom, weights * density
    )


@pytest.mark.parametrize("rho", [0.2, 0.7, 1.0, 3.0])
def test_gauss_rule_integrates_the_density(rho: float) -> None:
    eigenvalues, weights = marchenko_pastur(rho)
    spectrum = wishart_spectrum(rho)
    for function in (
        np.ones_like,
        np.square,
        lambda x: np.exp(-x),
        lambda x: np.log(3 + x),
    ):
        expected = weights @ function(eigenvalues)
        assert spectrum.weights @ function(spectrum.eigenvalues) == pytest.approx(
            expected, abs=1e-9
        )


@pytest.mark.parametrize(("rho", "decay"), [(0.3, 0.0), (1.0, 0.4), (2.5, 0.1)])
def test_multiple_of_the_identity_as_teacher(rho: float, decay: float) -> None:
    """Every eigenvalue of the student follows a logistic equation, solved in closed form."""
    teacher, times = 0.8, np.array([0.0, 0.05, 0.2, 0.7, 3.0])
    spectrum = TeacherSpectrum(np.array([teacher]), np.array([1.0]))
    moments = solve_flow(
        spectrum, linear_coefficients, times, 1, rho, math.sqrt(rho), decay
    )
    start, weights = marchenko_pastur(rho)
    growth = 2 * (SITES * teacher - decay)
    for index, time in enumerate(times):
        # x' = growth x - 2 SITES x^2
        saturation = 2 * SITES * np.expm1(growth * time) / growth
        eigenvalues = start * math.exp(growth * time) / (1 + start * saturation)
        assert moments.trace[index, 0] == pytest.approx(weights @ eigenvalues, abs=2e-6)
        assert moments.cross[index, 0] == pytest.approx(
            teacher * weights @ eigenvalues, abs=2e-6
        )
        assert moments.self_overlap[index, 0] == pytest.approx(
            weights @ eigenvalues**2, abs=2e-6
        )


def matrix_moments(
    dimension: int, rho: float, width: float, decay: float, times: np.ndarray, seed: int
) -> np.ndarray:
    """Moments (times, 3) of the matrix equation in ``dimension`` D, with the spectrum of the teacher and of the start at
    quantiles, so that only their random eigenvectors fluctuate.
    """
    rng = np.random.default_rng(seed)

    def shares(ratio: float) -> np.ndarray:
        """Mean eigenvalues of D equal shares of the law, so that the trace is exact."""
        angles = np.pi * ((np.arange(40_000) + 0.5) / 40_000 - 0.5)
        eigenvalues = 1 + ratio + 2 * math.sqrt(ratio) * np.sin(angles)
        weights = 2 * ratio * np.cos(angles) ** 2 / eigenvalues / 40_000
        edges = np.arange(dimension + 1) / dimension
        mass = np.concatenate([[0.0], max(0.0, 1 - ratio) + np.cumsum(weights)])
        mass[0] = max(0.0, 1 - ratio)
        first_moment = np.concatenate([[0.0], np.cumsum(weights * eigenvalues)])
        return (
            np.diff(np.interp(edges, mass, first_moment)) * dimension / math.sqrt(ratio)
        )

    teacher = shares(rho)
    rotation, _ = np.linalg.qr(rng.standard_normal((dimension, dimension)))
    start = (rotation * shares(width)) @ rotation.T

    def moments(student: np.ndarray) -> tuple[float, float, float]:
        """Normalized traces of the student, of its products with the teacher and with itself."""
        diagonal = np.diagonal(student)
        return (
            diagonal.mean(),
            diagonal @ teacher / dimension,
            np.sum(student**2) / dimension,
        )

    def derivative(_: float, flat: np.ndarray) -> np.ndarray:
        """The matrix equation."""
        student = flat.reshape(dimension, dimension)
        _, cross, self_overlap = moments(student)
        a, b = curved_coefficients(np.array([cross]), np.array([self_overlap]))
        product = student @ (a[0] * student) + student * (b[0] * teacher + decay)
        return -(product + product.T).ravel()

    solution = solve_ivp(
        derivative, (0, times[-1]), start.ravel(), "RK45", times, rtol=1e-6, atol=1e-8
    )
    return np.array(
        [moments(flat.reshape(dimension, dimension)) for flat in solution.y.T]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rho", "width", "decay"), [(0.5, 0.5, 0.0), (0.3, 1.4, 0.2), (1.0, 0.4, 0.0)]
)
def test_matrix_equation_in_large_dimension(
    rho: float, width: float, decay: float
) -> None:
    times = np.array([0.0, 0.1, 0.3, 1.0, 2.5])
    limit = solve_flow(
        wishart_spectrum(rho),
        curved_coefficients,
        times,
        1,
        width,
        math.sqrt(width),
        decay,
    )
    limits = np.stack(limit, axis=1)[:, :, 0]
    draws = np.array(
        [matrix_moments(300, rho, width, decay, times, seed) for seed in range(8)]
    )
    # Random eigenvectors overlap by 1 / D; what is left beside is of order 1 / D^2.
    errors = draws.std(axis=0, ddof=1) / math.sqrt(len(draws))
    assert errors.max() < 3e-3
    assert (np.abs(draws.mean(axis=0) - limits) < 4 * errors + 3e-4).all()


class Hierarchy:
    """The hierarchy of moments ``tr(S_k1 .. S_kw) / D`` of student (0) and teacher (1), words of at most ``degree`` letters,
    with all longer ones set to 0, as in arXiv:2609.03858, equations 11 and 13.
    """

    def __init__(self, degree: int, rho: float, width: float) -> None:
        """Moments at the start, of free matrices, and for every word the places of those that drive it."""
        words = [
            word
            for length in range(degree + 1)
            for word in itertools.product((0, 1), repeat=length)
        ]
        self.places = {word: place for place, word in enumerate(words)}
        self.start = free_moments(words, (width, rho))
        outside = len(words)
        driven, by_student, by_teacher = [], [], []
        for place, word in enumerate(words):
            for position, letter in enumerate(word):
                if letter == 0:
                    before, after = word[:position], word[position + 1 :]
                    driven.append(place)
                    longer = [
                        (*before, *pair, *after) for pair in ((0, 0), (1, 0), (0, 1))
                    ]
                    drivers = [self.places.get(driver, outside) for driver in longer]
                    by_student.append(drivers[0])
                    by_teacher.append(drivers[1:])
        self.driven, self.by_student = np.array(driven), np.array(by_student)
        self.by_teacher = np.array(by_teacher)

    def solve(self, times: np.ndarray) -> np.ndarray:
        """Trace, overlap with the teacher and with itself, (times, 3)."""
        read = [self.places[word] for word in ((0,), (0, 1), (0, 0))]

        def derivative(_: float, moments: np.ndarray) -> np.ndarray:
            """Each letter of the student in a word becomes ``-(S H + H S)``."""
            a, b = curved_coefficients(moments[read[1:2]], moments[read[2:]])
            padded = np.append(moments, 0.0)
            drive = 2 * a[0] * padded[self.by_student]
            drive += b[0] * padded[self.by_teacher].sum(axis=1)
            return -np.bincount(self.driven, drive, len(moments))

        solution = solve_ivp(
            derivative, (0, times[-1]), self.start, "RK45", times, rtol=1e-9, atol=1e-11
        )
        return solution.y[read].T


def free_moments(
    words: list[tuple[int, ...]], widths: tuple[float, float]
) -> np.ndarray:
    """Moments of free matrices ``W W^T / sqrt(r D)`` of these width ratios: sums over non-crossing partitions, whose blocks of n
    equal letters count ``rho^(1 - n / 2)``.
    """

    @functools.cache
    def moment(word: tuple[int, ...]) -> float:
        """The first letter is in a block; what stands between the letters of a block is apart."""
        if not word:
            return 1.0
        return widths[word[0]] * after_letter(word[0], word[1:])

    @functools.cache
    def after_letter(letter: int, word: tuple[int, ...]) -> float:
        """Sum over how the block of a letter goes on in the rest of the word."""
        total = moment(word)
        for position, candidate in enumerate(word):
            if candidate == letter:
                total += moment(word[:position]) * after_letter(
                    letter, word[position + 1 :]
                )
        return widths[letter] ** -0.5 * total

    return np.array([moment(word) for word in words])


@pytest.mark.slow
def test_truncated_hierarchy_converges_exponentially() -> None:
    rho, width, times = 0.6, 1.3, np.array([0.0, 0.03, 0.06])
    limit = solve_flow(
        wishart_spectrum(rho), curved_coefficients, times, 1, width, math.sqrt(width)
    )
    limits = np.stack(limit, axis=1)[:, :, 0]
    errors = [
        np.abs(Hierarchy(degree, rho, width).solve(times) - limits).max()
        for degree in (8, 10, 12, 14)
    ]
    assert errors[-1] < 1e-4
    assert all(longer < shorter / 2 for shorter, longer in itertools.pairwise(errors))


def test_small_width_is_the_low_rank_equation() -> None:
    """Few columns in many dimensions: the factor stays in the span of start and teacher, whose Gram matrix is all that
    counts.
    """
    columns, rho, times = 40, 0.01, np.array([0.0, 0.02, 0.1, 0.3, 0.6])
    D = round(columns / rho)
    limit = solve_flow(
        wishart_spectrum(rho), curved_coefficients, times, 1, rho, math.sqrt(rho)
    )
    scale = 1 / math.sqrt(columns * D)

    def path(seed: int) -> np.ndarray:
        """Moments (times, 3) of one start and teacher."""
        frame = np.random.default_rng(seed).standard_normal((D, 2 * columns))
        gram = frame.T @ frame
        start = np.eye(2 * columns, columns)

        def moments(flat: np.ndarray) -> tuple[float, float, float]:
            """Normalized traces of the student, of its products with the teacher and with itself."""
            factor = flat.reshape(2 * columns, columns)
            self_overlap, cross = factor.T @ gram @ factor, gram[columns:] @ factor
            return (
                scale * np.trace(self_overlap) / D,
                scale**2 * np.sum(cross**2) / D,
                scale**2 * np.sum(self_overlap**2) / D,
            )

        def derivative(_: float, flat: np.ndarray) -> np.ndarray:
            """The flow of the factor, in coordinates of the frame."""
            factor = flat.reshape(2 * columns, columns)
            _, cross, self_overlap = moments(flat)
            a, b = curved_coefficients(np.array([cross]), np.array([self_overlap]))
            change = a[0] * scale * factor @ (factor.T @ gram @ factor)
            change[columns:] += b[0] * scale * (gram[columns:] @ factor)
            return -change.ravel()

        solution = solve_ivp(
            derivative,
            (0, times[-1]),
            start.ravel(),
            "RK45",
            times,
            rtol=1e-8,
            atol=1e-10,
        )
        return np.array([moments(flat) for flat in solution.y.T])

    draws = np.array([path(seed) for seed in range(4)])
    errors = draws.std(axis=0, ddof=1) / 2
    limits = np.stack(limit, axis=1)[:, :, 0]
    assert limits[-1, 1] > 0.5  # it has learned by then
    assert (np.abs(draws.mean(axis=0) - limits) < 5 * errors + 2e-3).all()


def test_escape_from_a_small_start_takes_the_logarithm_of_its_size() -> None:
    """Near zero the student grows exponentially along the teacher, so the time of escape is linear in log(1 / sigma)."""
    rho, times = 0.5, np.linspace(0, 2, 201)
    spectrum = wishart_spectrum(rho)

    def escape_time(sigma: float) -> float:
        """Time at which half of the teacher's overlap is reached."""
        moments = solve_flow(spectrum, linear_coefficients, times, 1, rho, sigma)
        return float(
            np.interp(0.5 * spectrum.second_moment, moments.cross[:, 0], times)
        )

    escape_times = np.array([escape_time(10.0**-power) for power in (3, 6, 9)])
    steps = np.diff(escape_times)
    assert steps[1] == pytest.approx(steps[0], rel=0.01)
    # Half of the overlap takes more than the largest eigenvalues.
    largest = (1 + math.sqrt(rho)) ** 2 / math.sqrt(rho)
    assert steps[1] > math.log(1e3) / (2 * SITES * largest)
