"""Makes tables and figure of universality.md: statistics of token distributions, and ratios of errors to Gaussian tokens.

python tools/universality.py                            # before a run: statistics of the arms
smimbench run universality
python tools/universality.py results/universality       # after it: tests of equivalence and slopes in 1/d
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import smimbench
from smimbench.suite.reader import Suite

MARGIN = math.log(1.03)  # errors within 3% are equivalent
BASE = "gaussian"


class Design(NamedTuple):
    """Statistics of the tokens (n samples of x_1, x_2) of one data set, the columns of a table of universality.md: spread of
    their squared length, correlation, kurtosis of projections and of quadratic forms, and number of independent equations in
    the labels.
    """

    samples: int
    length: float  # standard deviation of |x|^2 / D
    correlation: float  # mean of x_1 x_2 / D
    projection: float  # kurtosis of projections of a token
    quadratic: float  # kurtosis of x_1^T S x_2 for the teacher
    equations: int  # independent ones in noiseless softmax labels


class Equivalence(NamedTuple):
    """Mean logarithm of paired ratios of errors, its standard error, and its 90% confidence interval from ``low`` to ``high``."""

    mean: float
    error: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Result of two one-sided tests at 5%: the interval lies within the margin, beyond it, or neither."""
        if self.low > -MARGIN and self.high < MARGIN:
            return "equivalent"
        return "different" if self.low > MARGIN or self.high < -MARGIN else "undecided"


def equivalence(logarithms: np.ndarray) -> Equivalence:
    """Compute the mean of ``logarithms`` of ratios and its 90% interval, which makes two one-sided t tests at 5%."""
    n = len(logarithms)
    mean, error = (
        float(np.mean(logarithms)),
        float(np.std(logarithms, ddof=1) / math.sqrt(n)),
    )
    half_width = float(stats.t(n - 1).ppf(0.95)) * error
    return Equivalence(mean, error, mean - half_width, mean + half_width)


def trend(
    dimensions: np.ndarray, means: np.ndarray, errors: np.ndarray
) -> tuple[tuple[float, float], ...]:
    """Fit limit and slope of ``mean = limit + slope / d`` to means at several dimensions d, each with its standard error, by
    weighted least squares.
    """
    X = np.stack([np.ones(len(dimensions)), 1 / dimensions], axis=1) / errors[:, None]
    covariance = np.linalg.inv(X.T @ X)
    coefficients = covariance @ X.T @ (means / errors)
    return tuple(
        (float(value), float(error))
        for value, error in zip(coefficients, np.sqrt(np.diag(covariance)))
    )


def equations(tokens: np.ndarray) -> int:
    r"""Count the independent equations for the signal S in noiseless softmax labels of samples of two tokens (n, 2, D):
    their rank is ``words + pairs - components``.

    A label tells ``h_aa - h_ab`` and ``h_bb - h_ab``. Unknowns are one ``x^T S x`` for each word and one ``x^T S x'`` for each
    pair of different words that meet, words x and -x being one. A constant in a connected component of this graph is not seen,
    unless words of it meet with both signs. Vectors are taken as generic, so this is the rank as long as unknowns are fewer
    than the entries of S.
    """
    flat = tokens.reshape(-1, tokens.shape[-1])
    signs = np.sign(
        np.take_along_axis(flat, np.argmax(flat != 0, axis=1)[:, None], axis=1)
    )
    words = np.unique(flat * signs, axis=0, return_inverse=True)[1].reshape(-1, 2)
    size = int(words.max()) + 1
    signed = np.unique(
        np.column_stack(
            [np.sort(words, axis=1), signs.reshape(-1, 2).prod(axis=1)]
        ).astype(int),
        axis=0,
    )
    loops = signed[:, 0] == signed[:, 1]
    pairs, times = np.unique(signed[~loops, :2], axis=0, return_counts=True)
    graph = coo_array((np.ones(len(pairs)), pairs.T), shape=(size, size))
    components, of = connected_components(graph, directed=False)
    is_seen = of[
        np.concatenate([signed[loops & (signed[:, 2] < 0), 0], pairs[times == 2, 0]])
    ]
    return size + len(pairs) - (int(components) - len(np.unique(is_seen)))


def design(problem: Any, alpha: float, dimension: int) -> Design:
    """Compute the statistics of the first data set of a problem at this sample ratio and dimension."""
    instance = problem.instance(alpha, dimension)
    x, S = instance.inputs, instance.signal[0]
    S = S - np.trace(S) / dimension * np.eye(dimension)
    directions = np.random.default_rng(0).standard_normal((dimension, 200))
    projected = x.reshape(-1, dimension) @ directions
    quadratic = np.sum((x[:, 0] @ S) * x[:, 1], axis=-1)
    return Design(
        len(x),
        float(np.std(np.sum(x * x, axis=-1) / dimension)),
        float(np.mean(np.sum(x[:, 0] * x[:, 1], axis=-1)) / dimension),
        float(stats.kurtosis(projected, axis=None, fisher=False)),
        float(stats.kurtosis(quadratic, fisher=False)),
        equations(x),
    )


def statistics(suite: Suite) -> str:
    """Return the table of statistics of the token distributions (arms) of the suite, for softmax labels, at every dimension."""
    lines = [
        "| arm | d | n | std of length² / d | correlation | kurtosis, projection | kurtosis, x₁ᵀSx₂ | equations / 2n "
        "| ridge / Gaussian |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for plan in suite.plans:
        channel, _, arm = plan.label.partition(": ")
        for D in plan.dimensions if channel == "softmax" else ():
            instance, entry_count = (
                design(plan.problem, plan.alphas[0], D),
                D * (D + 1) / 2,
            )
            ratio = (1 - instance.equations / entry_count) / (
                1 - 2 * instance.samples / entry_count
            )
            numbers = (
                instance.length,
                instance.correlation,
                instance.projection,
                instance.quadratic,
            )
            cells = [
                f"{value:.2f}"
                for value in (
                    *numbers,
                    instance.equations / (2 * instance.samples),
                    ratio,
                )
            ]
            lines.append(
                f"| {arm} | {D} | {instance.samples} | " + " | ".join(cells) + " |"
            )
    return "\n".join(lines)


def paired(suite: Suite, folder: Path) -> dict[tuple[str, str, str, int], np.ndarray]:
    """Compute logarithms of the ratios of errors to those on Gaussian tokens, by channel, token distribution (arm),
    algorithm and dimension, for the seeds that both have in the results of a folder.
    """
    values = smimbench.load(folder).values
    rows = values if isinstance(values, list) else values.to_dict("records")
    keys = {cell.key for cell in suite.cells()}
    errors_of_arm: dict[tuple[str, str, str, int], dict[int, float]] = {}
    for row in rows:
        if row["metric"] == "mse" and row["key"] in keys:
            channel, _, arm = row["problem"].partition(": ")
            errors_of_arm.setdefault(
                (channel, arm, row["algorithm"], row["dimension"]), {}
            )[row["replicate"]] = row["value"]
    ratios = {}
    for (channel, arm, *algorithm_and_dimension), errors in sorted(
        errors_of_arm.items(), key=lambda pair: (pair[0][0], pair[0][2], pair[0][1])
    ):
        base_errors = errors_of_arm.get((channel, BASE, *algorithm_and_dimension), {})
        common = sorted(set(errors) & set(base_errors))
        if arm != BASE and len(common) > 1:
            ratios[channel, arm, *algorithm_and_dimension] = np.array(
                [math.log(errors[seed] / base_errors[seed]) for seed in common]
            )
    return ratios


def results(ratios: dict[tuple[str, str, str, int], np.ndarray]) -> str:
    """Return the table of ratios with their intervals, verdicts, limits and slopes, from logarithms by channel, arm,
    algorithm and dimension.
    """
    lines = [
        "| labels | algorithm | arm | d | pairs | error / Gaussian, 90% | verdict | limit | slope in 1/d |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for channel, arm, algorithm in dict.fromkeys(key[:3] for key in ratios):
        sizes = sorted(key[3] for key in ratios if key[:3] == (channel, arm, algorithm))
        tests = [equivalence(ratios[channel, arm, algorithm, D]) for D in sizes]
        trend_cells = ["", ""]
        if len(sizes) > 1:
            means, errors = np.array([(test.mean, test.error) for test in tests]).T
            (limit, limit_error), (slope, slope_error) = trend(
                np.array(sizes, dtype=float), means, errors
            )
            trend_cells = [
                f"{math.exp(limit):.3f} ± {math.exp(limit) * limit_error:.3f}",
                f"{slope:.2f} ± {slope_error:.2f}",
            ]
        for D, test in zip(sizes, tests):
            interval = f"{math.exp(test.mean):.3f} ({math.exp(test.low):.3f} to {math.exp(test.high):.3f})"
            pairs = len(ratios[channel, arm, algorithm, D])
            cells = [
                channel,
                algorithm,
                arm,
                str(D),
                str(pairs),
                interval,
                test.verdict,
            ]
            lines.append(
                "| "
                + " | ".join([*cells, *(trend_cells if sizes[-1] == D else ["", ""])])
                + " |"
            )
    return "\n".join(lines)


def draw(ratios: dict[tuple[str, str, str, int], np.ndarray], file: Path) -> None:
    """Draw ratios over 1/d, a row of panels for each kind of labels and a column for each algorithm, into a file; the band
    is the margin.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    channels, arms, algorithms = (
        list(dict.fromkeys(key[position] for key in ratios)) for position in range(3)
    )
    size = (3.2 * len(algorithms), 2.8 * len(channels) + 0.4)
    figure, panels = plt.subplots(
        len(channels),
        len(algorithms),
        figsize=size,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for row, channel in zip(panels, channels):
        for panel, algorithm in zip(row, algorithms):
            panel.axhspan(math.exp(-MARGIN), math.exp(MARGIN), color="0.9")
            for arm in arms:
                sizes = sorted(
                    key[3] for key in ratios if key[:3] == (channel, arm, algorithm)
                )
                tests = [equivalence(ratios[channel, arm, algorithm, D]) for D in sizes]
                ratios_of_tests = np.exp([test.mean for test in tests])
                half_widths = np.abs(
                    np.exp(
                        [[test.low for test in tests], [test.high for test in tests]]
                    )
                    - ratios_of_tests
                )
                panel.errorbar(
                    [1 / D for D in sizes],
                    ratios_of_tests,
                    half_widths,
                    marker="o",
                    markersize=3,
                    label=arm,
                )
            panel.set(title=f"{channel}, {algorithm}", yscale="log", xlim=(0, None))
            low, high = panel.get_ylim()
            subs = (1, 1.2, 1.4, 1.6, 2, 3, 5, 8) if high / low < 10 else (1, 3)
            panel.yaxis.set(
                major_locator=LogLocator(subs=subs),
                major_formatter=StrMethodFormatter("{x:g}"),
                minor_formatter=NullFormatter(),
            )
            panel.minorticks_off()
        row[0].set_ylabel("error / error on Gaussian tokens")
    for panel in panels[-1]:
        panel.set_xlabel("1/d")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(arms),
        fontsize=8,
    )
    figure.savefig(file, dpi=110)


def main() -> None:
    """Print the table of the token distributions, or that of the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "results", type=Path, nargs="?", help="folder of the suite's results"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as in smimbench run",
    )
    parser.add_argument("--figure", type=Path, help="file of the figure")
    arguments = parser.parse_args()
    suite = smimbench.load_suite("universality", arguments.set)
    if arguments.results is None:
        print(statistics(suite))  # noqa: T201
        return
    ratios = paired(suite, arguments.results)
    print(results(ratios))  # noqa: T201
    if arguments.figure:
        draw(ratios, arguments.figure)


if __name__ == "__main__":
    main()
