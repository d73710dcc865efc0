"""Tests what verdicts detect: sabotaged algorithms, honest ones, and GAMP at the optimum of its size.

``python tools/checks/sabotage.py FOLDER [--minutes 25] [--only sabotage honest gamp]`` makes the runs and keeps them in FOLDER:
stop it at any time, and rerun to continue. ``--table`` only prints what there is, from stored runs and theory, in seconds.

``sabotage``: 30 mistakes in algorithms of three problems, each claiming the prediction of the intact algorithm
(``tools/checks/saboteurs.py``). Their true deviation is the difference of errors from the intact algorithm, paired by instance.
``honest``: 200 random cases of shipped algorithms. ``gamp``: 20 random problems at three sizes, from two roots of all seeds.
``tools/checks/verdict_cases.py`` has all cases.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.special import stdtrit
from verdict_cases import CASES, MATRIX, SABOTAGES, gamp_suite, honest_suite, suite_text

import smimbench
from smimbench.registry import get_registry
from smimbench.report.row import row_of
from smimbench.report.verdict import verdicts

# -- runs -----------------------------------------------------------------------------------------------------------------


def suites(kind):
    """Return the texts of all suites of a kind (``sabotage``, ``honest`` or ``gamp``), by name."""
    if kind == "sabotage":
        return {name: suite_text(*sabotage) for name, sabotage in SABOTAGES.items()}
    if kind == "honest":
        return {f"{case:03d}": honest_suite(case) for case in range(CASES)}
    return {
        f"{case:02d}-{root}": gamp_suite(case, root)
        for case in range(20)
        for root in (0, 1)
    }


def make_runs(folder, kind, until):
    """Run the suites of a kind that are missing in the folder, until the moment ``until``."""
    for name, text in suites(kind).items():
        path = folder / kind / f"{name}.toml"
        if time.monotonic() > until or path.with_suffix(".done").exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        smimbench.run(path, results=folder / kind / "results")
        path.with_suffix(".done").touch()


def rows_of(folder, kind):
    """Return the rows of results of every suite of a kind that has been run, by its name."""
    by_suite = {}
    for name in suites(kind):
        path = folder / kind / f"{name}.toml"
        if path.with_suffix(".done").exists():
            by_suite[name] = smimbench.show(path, results=folder / kind / "results")
    return by_suite


# -- what is detected -----------------------------------------------------------------------------------------------------


def true_deviation(rows, intact):
    """Compute the relative difference of the errors of two algorithms (``rows`` and those of the ``intact`` one) on the same
    instances, at infinite size, and its standard error.

    The difference at every size is continued by ``a + b / D``. Without instances in common (streams draw their own) it is that of
    means.
    """
    sizes, values, errors = [], [], []
    for row, control in zip(
        *(sorted(side, key=lambda row: row["dimension"]) for side in (rows, intact)),
        strict=True,
    ):
        values_by_run, control_by_run = row["values"], control["values"]
        common = [key for key in values_by_run if key in control_by_run]
        differences = np.array(
            [values_by_run[key] - control_by_run[key] for key in common]
        )
        control_mean = np.mean([control_by_run[key] for key in common])
        sizes.append(row["dimension"])
        values.append(differences.mean() / control_mean)
        errors.append(
            max(
                differences.std(ddof=1) / math.sqrt(len(differences)) / control_mean,
                1e-6,
            )
        )
    if not any(values):
        return 0.0, 0.0
    design = (
        np.stack([np.ones(len(sizes)), 1 / np.array(sizes)], axis=1)
        / np.array(errors)[:, None]
    )
    covariance = np.linalg.inv(design.T @ design)
    coefficient = covariance @ design.T @ (np.array(values) / np.array(errors))
    return float(coefficient[0]), float(covariance[0, 0] ** 0.5)


def part_of(rows, start, step):
    """Return the same rows with a part of the runs: every ``step``-th replicate from ``start`` on."""

    def in_half(values):
        """Select the values, by run, whose replicate is in this part."""
        return {
            key: values_of_metric
            for key, values_of_metric in values.items()
            if int(key.rpartition("/")[2]) % step == start
        }

    halves = []
    for row in rows:
        half = row | {
            "values": in_half(row["values"]),
            "n": len(in_half(row["values"])),
        }
        if "also_predicted" in row:
            half["also_predicted"] = [
                prediction | {"values": in_half(prediction["values"])}
                for prediction in row["also_predicted"]
            ]
        halves.append(half)
    return halves


def contenders(rows):
    """Return the verdict on every algorithm in the rows, as JSON, by label."""
    return {
        contender.algorithm: contender.document()
        for entry in verdicts([row_of(row) for row in rows])
        for contender in entry.contenders
    }


def sabotage_table(rows):
    """Return an entry for every sabotage of a suite, by all runs and by each half of them: true deviation and verdict."""
    errors = {}
    for row in rows:
        if row["metric"] == "mse":
            errors.setdefault(row["algorithm"], []).append(row)
    entries = []
    for step in (1, 2):
        for start in range(step):
            verdict_of = contenders(part_of(rows, start, step))
            for name, errors_of_case in errors.items():
                if name.partition(",")[0] not in errors:
                    continue  # the intact algorithm is still to be run
                true_difference, difference_error = true_deviation(
                    errors_of_case, errors[name.partition(",")[0]]
                )
                keys = (
                    "prediction",
                    "would_have_seen",
                    "deviation",
                    "deviation_z",
                    "deviation_of",
                    "below_optimum",
                )
                runs = sum(row["n"] for row in errors_of_case) // step
                entries.append(
                    {
                        "algorithm": name,
                        "part": "all" if step == 1 else f"{start + 1} of {step}",
                        "runs": runs,
                        "true": true_difference,
                        "true_error": difference_error,
                    }
                    | {key: verdict_of[name].get(key) for key in keys}
                )
    return entries


def is_sabotage(entry):
    """Whether an entry is of an algorithm with a mistake (its label names the change)."""
    return "," in entry["algorithm"]


def percent(number, form="+.1f"):
    """Format a fraction in percent; blank for None."""
    if number is None:
        return ""
    return "above 1000" if number > 10 else f"{100 * number:{form}}"


def print_sabotages(folder):
    """Print a table for every suite, and how many sabotages are detected; write ``sabotage.csv`` and ``power.svg`` to the
    folder.
    """
    entries = [
        {"problem": name, **entry}
        for name, rows in rows_of(folder, "sabotage").items()
        for entry in sabotage_table(rows)
    ]
    if not entries:
        return
    with open(folder / "sabotage.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(entries[0]))
        writer.writeheader()
        for entry in entries:
            floats = {
                field_name: f"{number:.4g}"
                for field_name, number in entry.items()
                if isinstance(number, float)
            }
            writer.writerow(entry | floats)
    entries_of_all_runs = [entry for entry in entries if entry["part"] == "all"]
    print(
        "| problem | algorithm | true deviation, % | agrees with theory | would have been detected, % "
        "| largest deviation, % | metric | z |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for entry in entries_of_all_runs:
        true_text = "intact"
        if is_sabotage(entry):
            error = percent(entry["true_error"], ".2f")
            true_text = f"{percent(entry['true'], '+.2f')} ± {error}"
            if entry["true_error"] > 1:
                true_text = "unknown"
        optimum_text = ", below the optimum" if entry["below_optimum"] else ""
        z = "" if entry["deviation_z"] is None else f"{entry['deviation_z']:+.1f}"
        print(
            f"| {entry['problem']} | {entry['algorithm']} | {true_text} | {entry['prediction']}{optimum_text} "
            f"| {percent(entry['would_have_seen'], '.1f')} | {percent(entry['deviation'])} | {entry['deviation_of']} | {z} |"
        )
    for part_name, entries_of_part in (
        ("all runs", entries_of_all_runs),
        (
            "half of the runs",
            [entry for entry in entries if entry not in entries_of_all_runs],
        ),
    ):
        detectable = [
            entry
            for entry in entries_of_part
            if is_sabotage(entry) and entry["would_have_seen"]
        ]
        above_detectable = [
            entry
            for entry in detectable
            if abs(entry["true"]) - 2 * entry["true_error"] > entry["would_have_seen"]
        ]
        caught = sum(entry["prediction"] == "no" for entry in detectable)
        detected = sum(entry["prediction"] == "no" for entry in above_detectable)
        intact = [
            entry["prediction"] for entry in entries_of_part if not is_sabotage(entry)
        ]
        print(f"\n{part_name}: detected {detected} of {len(above_detectable)} whose true deviation is above "
              f"what would have been detected, {caught} of "
              f"{len(detectable)} in all; intact: {dict(Counter(intact))}")  # fmt: skip
    detectable = [
        entry for entry in entries if is_sabotage(entry) and entry["would_have_seen"]
    ]
    power_curve(
        folder,
        [
            entry
            for entry in detectable
            if 4 * entry["true_error"]
            < max(abs(entry["true"]), entry["would_have_seen"])
        ],
    )


EDGES = np.array([0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.5, np.inf])
"""Bins of the true deviation over the one that would have been seen."""


def power_curve(folder, entries):
    """Print and draw (``power.svg``) the share of sabotages (``entries``) that is detected against their true deviation over
    the one that would have been detected.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "power", "font.size": 9})
    from matplotlib import pyplot as plt

    ratio = np.array(
        [abs(entry["true"]) / entry["would_have_seen"] for entry in entries]
    )
    is_detected = np.array([entry["prediction"] == "no" for entry in entries])
    is_detected_in_error = np.array(
        [
            entry["prediction"] == "no" and entry["deviation_of"] == "mse"
            for entry in entries
        ]
    )
    print(
        "\n| true deviation / detectable one | sabotages | detected | by the error |\n|---|---|---|---|"
    )
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for values, label, marker in (
        (is_detected, "any number", "o"),
        (is_detected_in_error, "the error itself", "s"),
    ):
        median_ratios, shares, lower_errors, upper_errors = [], [], [], []
        for lower, upper in pairwise(EDGES):
            is_in_bin = (ratio >= lower) & (ratio < upper)
            bin_count, detected_count = (
                int(is_in_bin.sum()),
                int(values[is_in_bin].sum()),
            )
            if not bin_count:
                continue
            median_ratios.append(float(np.median(ratio[is_in_bin])))
            shares.append(detected_count / bin_count)
            half_width = 1.96 * math.sqrt(
                (detected_count + 2)
                / (bin_count + 4)
                * (1 - (detected_count + 2) / (bin_count + 4))
                / (bin_count + 4)
            )  # Agresti and Coull
            lower_errors.append(
                max(
                    shares[-1]
                    - max((detected_count + 2) / (bin_count + 4) - half_width, 0),
                    0,
                )
            )
            upper_errors.append(
                max(
                    min((detected_count + 2) / (bin_count + 4) + half_width, 1)
                    - shares[-1],
                    0,
                )
            )
            if values is is_detected:
                print(
                    f"| {lower:g} to {upper:g} | {bin_count} | {detected_count} | {int(is_detected_in_error[is_in_bin].sum())} |"
                )
        axes.errorbar(
            median_ratios,
            shares,
            (lower_errors, upper_errors),
            marker=marker,
            capsize=2,
            lw=1,
            label=f"detected in {label}",
        )
    axes.axvline(1, color="0.6", lw=0.8, ls="--")
    axes.set(
        xscale="symlog",
        xlabel="true deviation / deviation that would have been detected",
        ylabel="share detected",
        ylim=(-0.03, 1.05),
    )
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(left=0)
    axes.set_xticks([0, 0.1, 0.3, 1, 3, 10], ["0", "0.1", "0.3", "1", "3", "10"])
    axes.legend(frameon=False)
    figure.savefig(folder / "power.svg", metadata={"Date": None})


def print_honest(folder):
    """Print how many honest cases end in which answer, and every one that is rejected."""
    counts = defaultdict(Counter)
    for name, rows in rows_of(folder, "honest").items():
        for contender in contenders(rows).values():
            name_of_label = {
                row["algorithm"]: row["identity"]["algorithm"]["name"] for row in rows
            }[contender["algorithm"]]
            rank = (
                "matrix"
                if MATRIX in str(rows[0]["identity"]["problem"])
                else "low rank"
            )
            answer = contender["prediction"] or "no prediction"
            counts[name_of_label, rank][answer] += 1
            if answer == "no" or contender["below_optimum"]:
                deviation_text = percent(contender["deviation"])
                z = contender["deviation_z"] or 0
                reason = f"{deviation_text}% in {contender['deviation_of']}, z {z:+.1f}"
                label = f"{rows[0]['problem']}, {contender['algorithm']}"
                is_below_optimum = contender["below_optimum"]
                print(f"refused {name}: {label}: {reason}, below {is_below_optimum}")
    if not counts:
        return
    answers = ("yes", "no", "finite size", "too few runs", "no prediction")
    print(f"\n| algorithm | {' | '.join(answers)} |\n|---|{'---|' * len(answers)}")
    for (name, rank), answers_of_case in sorted(counts.items()):
        print(
            f"| {name}, {rank} | {' | '.join(str(answers_of_case[answer]) for answer in answers)} |"
        )
    total = sum(counts.values(), Counter())
    decided = sum(total[answer] for answer in answers[:4])
    print(f"| all | {' | '.join(str(total[answer]) for answer in answers)} |")
    print(f"\nfalse no: {total['no']} of {decided}")


def print_gamp(folder):
    """Print verdicts on GAMP at three dimensions, and its error over the optimum at the largest of them, with seeds of one
    root and of another.
    """
    rows_by_case = rows_of(folder, "gamp")
    agreeing_count = optimal_count = other_optimal_count = other_count = 0
    cases = sorted({name[:2] for name in rows_by_case})
    if not cases:
        return
    print(
        "| problem | agrees with theory | would have been detected, % | error / optimum | with another root of all seeds |\n"
        "|---|---|---|---|---|"
    )
    for case in cases:
        rows = rows_by_case[f"{case}-0"]
        (contender,) = contenders(rows).values()
        agreeing_count += contender["prediction"] == "yes"
        ratio, error = contender["ratio_to_bayes"], contender["ratio_error"]
        last_row = max(
            (row for row in rows if row["metric"] == "mse"),
            key=lambda row: row["dimension"],
        )
        quantile = float(
            stdtrit(last_row["n"] - 1, 0.975)
        )  # of the 95% interval, in standard errors
        is_optimal = ratio is None or abs(ratio - 1) <= quantile * error
        optimal_count += is_optimal
        other_row, other_text = None, ""
        if rows_by_case.get(f"{case}-1") and ratio is not None:
            (other_row,) = (
                row
                for row in rows_by_case[f"{case}-1"]
                if row["metric"] == "mse" and row["dimension"] == last_row["dimension"]
            )
            other_ratio = other_row["mean"] / last_row["optimum"]
            other_error = (
                math.hypot(
                    other_row["sem"] / other_row["mean"],
                    (last_row["optimum_error"] or 0.0) / last_row["optimum"],
                )
                * other_ratio
            )
            other_count += 1
            other_optimal_count += abs(other_ratio - 1) <= quantile * other_error
            other_text = f"{other_ratio:.3f} ± {other_error:.3f}"
        ratio_text = "optimum 0" if ratio is None else f"{ratio:.3f} ± {error:.3f}"
        print(f"| {rows[0]['problem']}, alpha {rows[0]['nominal_alpha']:g} | {contender['prediction']} "
              f"| {percent(contender['would_have_seen'], '.1f')} | {ratio_text} | {other_text} |")  # fmt: skip
    print(
        f"\nyes: {agreeing_count} of {len(cases)}; 1 within the 95% interval: {optimal_count} of {len(cases)}; "
        f"of other seeds: {other_optimal_count} of {other_count}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="No suite is begun later than that.",
    )
    parser.add_argument("--only", nargs="+", default=["sabotage", "honest", "gamp"])
    parser.add_argument("--table", action="store_true", help="Make no runs.")
    chosen = parser.parse_args()
    get_registry().add(Path(__file__).with_name("saboteurs.py"))
    warnings.simplefilter("ignore")
    until = time.monotonic() + 60 * chosen.minutes
    for kind in chosen.only:
        if not chosen.table:
            make_runs(chosen.folder, kind, until)
        {"sabotage": print_sabotages, "honest": print_honest, "gamp": print_gamp}[kind](
            chosen.folder
        )
