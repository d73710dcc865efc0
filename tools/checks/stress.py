"""Tests theory and runs at extreme parameters, each a right number or a refusal: ``python tools/checks/stress.py``.

Every point of theory has to be an MSE between 0 and the 1 of the prior mean, known to ``KNOWN`` or better, and not above that
of fewer samples, within ``--limit`` seconds of processor time; and each of its numbers has to be within ``MOST_Z`` standard
errors of plain draws from teacher and posterior, as in ``smimbench theory --verify``. Or it is one line that says what would be
right. With ``--runs`` every algorithm runs at dimensions from 1 and sample ratios from 1e-4 to 1e4: each has to end with finite
metrics, or skipped, diverged or refused in a line of smimbench's own. ``--skip FILE`` leaves out what has a row in a table that
is there already. results/checks/extremes.md has the tables of a whole run.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
import warnings
from pathlib import Path
from typing import Any

from smimbench.interfaces import ParameterError
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.registry import get_registry
from smimbench.run.cell import run_cell
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite import SuiteError
from smimbench.suite.reader import parse_suite
from smimbench.theory.verification import verify_point

KNOWN = 0.05
"""Largest stated error of an MSE, in units of the prior's; doubled, a point that says little passes."""
MOST_Z = 5.0
"""Some 500 numbers are compared: by chance one is beyond 4 in 30 whole runs, beyond 5 in 3,500."""
RESOLVE = 0.1
"""Relative deviation of the error that the draws of a point should show; half of it takes four times the draws."""
ALPHAS = (1e-4, 0.1, 1.0, 1e4)
ATTENTION, SEQUENCE = "attention-indexed", "sequence-multi-index"


class Late(BaseException):
    """Raised if a point took too long."""


def problems():
    """Yield problems at the ends of their ranges: model, tokens, channel with parameters, rank ``rho``."""
    channels = (
        {"name": "linear", "noise": 0.1},
        {"name": "softmax"},
        {"name": "hardmax"},
    )
    for rho in (1e-3, 0.03, 0.5, 10, 1e3):
        yield from ((ATTENTION, 2, channel, rho) for channel in channels)
    for tokens in (1, 2, 3, 4, 8, 16):
        yield from ((ATTENTION, tokens, channel, 0.5) for channel in channels)
        yield from ((SEQUENCE, tokens, channel, None) for channel in channels)
    yield from (
        (ATTENTION, 2, {"name": "softmax", "beta": beta}, 0.5)
        for beta in (1e-3, 0.03, 30.0, 1e3)
    )
    yield from (
        (SEQUENCE, 2, {"name": "linear", "noise": noise}, None)
        for noise in (0.0, 1e-3, 1e3)
    )
    yield from ((SEQUENCE, tokens, {"name": "sign"}, None) for tokens in (1, 16))
    yield from (
        (SEQUENCE, tokens, {"name": "probit", "noise": noise}, None)
        for tokens, noise in ((1, 1e3), (16, 1e-3))
    )
    yield from (
        (SEQUENCE, 2, {"name": "softmax", "layers": 2, "skip": skip}, None)
        for skip in (0.0, 100.0)
    )
    yield from (
        (ATTENTION, 2, {"name": "softmax", "layers": 2, "beta": beta}, 0.5)
        for beta in (1e-3, 9.0, 1e3)
    )
    yield from ((ATTENTION, 2, channels[0], rho) for rho in (1e-30, 1e30))
    yield ATTENTION, 3000, channels[0], 0.5


def point(
    cache, model, tokens, channel, rho, alpha, upper_bounds, limit
) -> tuple[str, list[tuple[float, float]]]:
    """Solve a point of theory and check it by Monte Carlo; return its MSE with error and largest z as text, or why there is
    none, and its MSE of each component with error, bounds for points of more samples. ``limit`` are seconds.
    """
    prior = (
        {"name": "gaussian"} if rho is None else {"name": "wishart", "rho": float(rho)}
    )
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        problem = Problem({"name": model, "tokens": tokens}, channel, prior)
        optimum = cache.points(problem, [alpha])[0][0]
        signal.setitimer(signal.ITIMER_PROF, limit)
        checks = verify_point(problem, optimum, RESOLVE)
    except Late:
        return f"not within {limit:g} s", upper_bounds
    except (ProblemError, ParameterError) as error:
        return f"refused: {error}", upper_bounds
    except Exception as error:  # whatever it is, it is what the check looks for
        return f"WRONG: {type(error).__name__}: {error}", upper_bounds
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    points = list(zip(optimum.mse.tolist(), optimum.mse_error.tolist(), strict=True))
    is_plausible = all(
        error <= KNOWN and -1e-9 <= mse <= 1 + 1e-6 + 4 * error for mse, error in points
    )  # an error that is not a number is not below
    is_below_bounds = all(
        mse <= upper_mse + 1e-9 + 4 * math.hypot(error, upper_error)
        for (mse, error), (upper_mse, upper_error) in zip(
            points, upper_bounds or points, strict=True
        )
    )
    largest_z = max((abs(check.z) for check in checks), default=0.0)
    prefix = (
        "" if is_plausible and is_below_bounds and largest_z <= MOST_Z else "WRONG: "
    )
    draws_text = "" if all(check.has_enough_draws for check in checks) else " (few)"
    errors = ", ".join(f"{mse:.5g} ± {error:.1g}" for mse, error in points)
    return f"{prefix}{errors} | {largest_z:.1f}{draws_text}", points


def late(*_):
    """Signal handler that raises ``Late``."""
    raise Late


RUN_PROBLEMS = (
    (SEQUENCE, 1, {"name": "linear", "noise": 0.1}, None),
    (SEQUENCE, 2, {"name": "softmax"}, None),
    (SEQUENCE, 2, {"name": "softmax", "layers": 2, "skip": 1.0}, None),
    (SEQUENCE, 16, {"name": "hardmax"}, None),
    (SEQUENCE, 1, {"name": "sign"}, None),
    (ATTENTION, 2, {"name": "linear", "noise": 0.1}, 1e-3),
    (ATTENTION, 2, {"name": "softmax"}, 0.5),
    (ATTENTION, 16, {"name": "softmax", "beta": 1e3}, 10.0),
    (ATTENTION, 2, {"name": "hardmax"}, 1e3),
)
ALGORITHMS = {"sgd": "steps = 3\nbatch = 1", "adam": "steps = 3", "adamw": "steps = 3"}
MOST_SAMPLES = 20_000


def suite_of(model, tokens, channel, rho, alpha, dimension, algorithm):
    """Return the text of a suite of one cell, from its items and sizes."""
    table = ", ".join(f"{key} = {value!r}" for key, value in channel.items())
    prior = (
        '{ name = "gaussian" }'
        if rho is None
        else f'{{ name = "wishart", rho = {rho} }}'
    )
    of = (
        '\nof = { name = "adam", steps = 2 }\nstudents = 2'
        if algorithm == "averaged"
        else ""
    )
    return parse_suite(
        Path("stress.toml"),
        f"""[problem]
model = {{ name = "{model}", tokens = {tokens} }}
channel = {{ {table} }}
prior = {prior}
[grid]
alpha = [{alpha}]
dimension = [{dimension}]
seeds = 1
[[algorithms]]
name = "{algorithm}"{of}
{ALGORITHMS.get(algorithm, "")}
[run]
max_iterations = 3
timeout = 30
""",
    )


def ran(model, tokens, channel, rho, alpha, dimension, algorithm) -> str:
    """Run one cell and return how it ended, or what is wrong with that."""
    try:
        (cell,) = suite_of(
            model, tokens, channel, rho, alpha, dimension, algorithm
        ).cells()
        record = run_cell(cell)
    except SuiteError as error:
        return f"refused: {error}"
    except Exception as error:  # whatever it is, it is what the check looks for
        return f"WRONG: {type(error).__name__}: {error}"
    status, errors = record.status, record.metrics.get("mse", [])
    expected_errors = (
        "ParameterError",
        "ProblemError",
        "ValueError: ",
    )  # what smimbench and its items raise on purpose
    if status == "failed" and not record.reason.startswith(expected_errors):
        return f"WRONG: {record.reason} ({record.where})"
    if status in ("ok", "not-converged") and not (
        errors and all(v is not None and math.isfinite(v) for v in errors)
    ):
        return f"WRONG: {status} with MSE {errors}"
    outcome = (
        f"{status}: {record.reason}" if status in ("failed", "skipped") else status
    )
    return outcome.replace("|", "/")


def channel_words(channel: dict[str, Any]) -> str:
    """Write name and parameters of a channel as text."""
    parameters = [f"{key} {value:g}" for key, value in channel.items() if key != "name"]
    return ", ".join([channel["name"], *parameters])


def runs() -> None:
    """Print a row for every problem, algorithm, dimension and sample ratio: how its run ended."""
    print(
        "| model | tokens | channel | rho | algorithm | D | alpha | end |\n|---|---|---|---|---|---|---|---|"
    )
    for model, tokens, channel, rho in RUN_PROBLEMS:
        words = channel_words(channel)
        for algorithm in sorted(
            {entry.name for entry in get_registry().entries("algorithm")}
        ):
            for dimension in (1, 2, 5):
                for alpha in ALPHAS:
                    power = 1 if model == SEQUENCE else 2
                    if alpha * dimension**power * tokens > MOST_SAMPLES:
                        continue
                    outcome = ran(
                        model, tokens, channel, rho, alpha, dimension, algorithm
                    )
                    print(
                        f"| {model} | {tokens} | {words} | {'' if rho is None else rho} | {algorithm} | {dimension} "
                        f"| {alpha:g} | {outcome} |",
                        flush=True,
                    )


def points(table: str, limit: float) -> None:
    """Print a row for every problem and sample ratio of theory, unless the text ``table`` has that row; a point may take
    ``limit`` seconds.
    """
    print(
        "| model | tokens | channel | rho | alpha | MSE | z | s |\n|---|---|---|---|---|---|---|---|"
    )
    for model, tokens, channel, rho in problems():
        words = channel_words(channel)
        cache, upper_bounds = TheorySolver(), []
        for alpha in ALPHAS:
            row = f"| {model} | {tokens} | {words} | {'' if rho is None else rho} | {alpha:g} |"
            if row in table:
                continue
            begin = time.process_time()
            outcome, upper_bounds = point(
                cache, model, tokens, channel, rho, alpha, upper_bounds, limit
            )
            outcome += "" if " | " in outcome else " | "
            print(f"{row} {outcome} | {time.process_time() - begin:.1f} |", flush=True)
            if outcome.startswith(("refused", "not")):
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", action="store_true", help="Runs in place of theory.")
    parser.add_argument(
        "--limit",
        type=float,
        default=300.0,
        help="Seconds of processor time for a point; once more for its draws.",
    )
    parser.add_argument("--skip", type=Path, help="A table whose rows are left out.")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, late)
    if chosen.runs:
        runs()
    else:
        points(chosen.skip.read_text() if chosen.skip else "", chosen.limit)
