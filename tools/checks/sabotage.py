"""What verdicts see: sabotaged algorithms, honest ones, and GAMP at the optimum of its size.

``python tools/checks/sabotage.py FOLDER [--minutes 25] [--only sabotage honest gamp]`` makes the runs and keeps them in FOLDER:
stop it at any time, and start it again to go on. ``--table`` only prints what there is, from stored runs and theory, in seconds.

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
    """Names and texts of all suites of a part."""
    if kind == "sabotage":
        return {name: suite_text(*one) for name, one in SABOTAGES.items()}
    if kind == "honest":
        return {f"{case:03d}": honest_suite(case) for case in range(CASES)}
    return {
        f"{case:02d}-{root}": gamp_suite(case, root)
        for case in range(20)
        for root in (0, 1)
    }


def make_runs(folder, kind, until):
    """Whatever is missing of a part, suite by suite, until it is that late."""
    for name, text in suites(kind).items():
        path = folder / kind / f"{name}.toml"
        if time.monotonic() > until or path.with_suffix(".done").exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        smimbench.run(path, results=folder / kind / "results")
        path.with_suffix(".done").touch()


def rows_of(folder, kind):
    """Rows of every suite of a part that has been run, by its name."""
    found = {}
    for name in suites(kind):
        path = folder / kind / f"{name}.toml"
        if path.with_suffix(".done").exists():
            found[name] = smimbench.show(path, results=folder / kind / "results")
    return found


# -- what is seen ---------------------------------------------------------------------------------------------------------


def true_deviation(rows, intact):
    """Relative difference of the errors of two algorithms on the same instances, at infinite size, and its standard error.

    The difference at every size is continued by ``a + b / D``. Without instances in common (streams draw their own) it is that of
    means.
    """
    sizes, values, errors = [], [], []
    for one, other in zip(
        *(sorted(side, key=lambda row: row["dimension"]) for side in (rows, intact)),
        strict=True,
    ):
        a, b = one["values"], other["values"]
        common = [key for key in a if key in b]
        gaps = np.array([a[key] - b[key] for key in common])
        middle = np.mean([b[key] for key in common])
        sizes.append(one["dimension"])
        values.append(gaps.mean() / middle)
        errors.append(max(gaps.std(ddof=1) / math.sqrt(len(gaps)) / middle, 1e-6))
    if not any(values):
        return 0.0, 0.0
    law = (
        np.stack([np.ones(len(sizes)), 1 / np.array(sizes)], axis=1)
        / np.array(errors)[:, None]
    )
    covariance = np.linalg.inv(law.T @ law)
    found = covariance @ law.T @ (np.array(values) / np.array(errors))
    return float(found[0]), float(covariance[0, 0] ** 0.5)


def part_of(rows, first, step):
    """The same rows of a part of the runs."""

    def kept(values):
        return {
            key: one
            for key, one in values.items()
            if int(key.rpartition("/")[2]) % step == first
        }

    found = []
    for row in rows:
        new = row | {"values": kept(row["values"]), "n": len(kept(row["values"]))}
        if "also_predicted" in row:
            new["also_predicted"] = [
                one | {"values": kept(one["values"])} for one in row["also_predicted"]
            ]
        found.append(new)
    return found


def contenders(rows):
    """What verdicts say of every algorithm."""
    return {
        one.algorithm: one.document()
        for entry in verdicts([row_of(row) for row in rows])
        for one in entry.contenders
    }


def sabotage_table(rows):
    """An entry for every sabotage of a suite, by all runs and by each half of them: true deviation and what the verdict says."""
    errors = {}
    for row in rows:
        if row["metric"] == "mse":
            errors.setdefault(row["algorithm"], []).append(row)
    found = []
    for step in (1, 2):
        for first in range(step):
            said = contenders(part_of(rows, first, step))
            for name, own in errors.items():
                if name.partition(",")[0] not in errors:
                    continue  # the intact algorithm is still to be run
                true, error = true_deviation(own, errors[name.partition(",")[0]])
                keys = (
                    "prediction",
                    "would_have_seen",
                    "deviation",
                    "deviation_z",
                    "deviation_of",
                    "below_optimum",
                )
                runs = sum(row["n"] for row in own) // step
                found.append(
                    {
                        "algorithm": name,
                        "part": "all" if step == 1 else f"{first + 1} of {step}",
                        "runs": runs,
                        "true": true,
                        "true_error": error,
                    }
                    | {key: said[name].get(key) for key in keys}
                )
    return found


def is_sabotage(one):
    """Whether an entry is of an algorithm that is not intact."""
    return "," in one["algorithm"]


def percent(number, form="+.1f"):
    """In per cent; blank for None."""
    if number is None:
        return ""
    return "above 1000" if number > 10 else f"{100 * number:{form}}"


def print_sabotages(folder):
    """A table for every suite, and how many are caught; ``sabotage.csv`` and ``power.svg`` in the folder."""
    entries = [
        {"problem": name, **one}
        for name, rows in rows_of(folder, "sabotage").items()
        for one in sabotage_table(rows)
    ]
    if not entries:
        return
    with open(folder / "sabotage.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(entries[0]))
        writer.writeheader()
        writer.writerows(
            {key: f"{x:.4g}" if isinstance(x, float) else x for key, x in one.items()}
            for one in entries
        )
    full = [one for one in entries if one["part"] == "all"]
    print(
        "| problem | algorithm | true deviation, % | matches | would have seen, % | seen, % | of | z |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for one in full:
        true = f"{percent(one['true'], '+.2f')} ± {percent(one['true_error'], '.2f')}"
        true = (
            "intact"
            if not is_sabotage(one)
            else "unknown"
            if one["true_error"] > 1
            else true
        )
        below = ", below the optimum" if one["below_optimum"] else ""
        z = "" if one["deviation_z"] is None else f"{one['deviation_z']:+.1f}"
        print(
            f"| {one['problem']} | {one['algorithm']} | {true} | {one['prediction']}{below} "
            f"| {percent(one['would_have_seen'], '.1f')} | {percent(one['deviation'])} | {one['deviation_of']} | {z} |"
        )
    for words, chosen in (
        ("all runs", full),
        ("half of the runs", [one for one in entries if one not in full]),
    ):
        found = [one for one in chosen if is_sabotage(one) and one["would_have_seen"]]
        above = [
            one
            for one in found
            if abs(one["true"]) - 2 * one["true_error"] > one["would_have_seen"]
        ]
        caught = sum(one["prediction"] == "no" for one in found)
        seen = sum(one["prediction"] == "no" for one in above)
        intact = [one["prediction"] for one in chosen if not is_sabotage(one)]
        print(f"\n{words}: caught {seen} of {len(above)} whose true deviation is above what would have been seen, {caught} of "
              f"{len(found)} in all; intact: {dict(Counter(intact))}")  # fmt: skip
    known = [one for one in entries if is_sabotage(one) and one["would_have_seen"]]
    power_curve(
        folder,
        [
            one
            for one in known
            if 4 * one["true_error"] < max(abs(one["true"]), one["would_have_seen"])
        ],
    )


EDGES = np.array([0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.5, np.inf])
"""Bins of the true deviation over the one that would have been seen."""


def power_curve(folder, entries):
    """Share that is caught against the true deviation over the one that would have been seen: ``power.svg``, and printed."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "power", "font.size": 9})
    from matplotlib import pyplot as plt

    ratio = np.array([abs(one["true"]) / one["would_have_seen"] for one in entries])
    caught = np.array([one["prediction"] == "no" for one in entries])
    of_error = np.array(
        [one["prediction"] == "no" and one["deviation_of"] == "mse" for one in entries]
    )
    print(
        "\n| true deviation / would have seen | sabotages | caught | by the error |\n|---|---|---|---|"
    )
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for values, label, marker in (
        (caught, "any number", "o"),
        (of_error, "the error itself", "s"),
    ):
        x, share, low, high = [], [], [], []
        for least, most in pairwise(EDGES):
            inside = (ratio >= least) & (ratio < most)
            n, k = int(inside.sum()), int(values[inside].sum())
            if not n:
                continue
            x.append(float(np.median(ratio[inside])))
            share.append(k / n)
            spread = 1.96 * math.sqrt(
                (k + 2) / (n + 4) * (1 - (k + 2) / (n + 4)) / (n + 4)
            )  # Agresti and Coull
            low.append(max(share[-1] - max((k + 2) / (n + 4) - spread, 0), 0))
            high.append(max(min((k + 2) / (n + 4) + spread, 1) - share[-1], 0))
            if values is caught:
                print(
                    f"| {least:g} to {most:g} | {n} | {k} | {int(of_error[inside].sum())} |"
                )
        axes.errorbar(
            x,
            share,
            (low, high),
            marker=marker,
            capsize=2,
            lw=1,
            label=f"seen in {label}",
        )
    axes.axvline(1, color="0.6", lw=0.8, ls="--")
    axes.set(
        xscale="symlog",
        xlabel="true deviation / would have seen",
        ylabel="share caught",
        ylim=(-0.03, 1.05),
    )
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(left=0)
    axes.set_xticks([0, 0.1, 0.3, 1, 3, 10], ["0", "0.1", "0.3", "1", "3", "10"])
    axes.legend(frameon=False)
    figure.savefig(folder / "power.svg", metadata={"Date": None})


def print_honest(folder):
    """How many honest cases end in which answer, and every one that is refused."""
    counts = defaultdict(Counter)
    for name, rows in rows_of(folder, "honest").items():
        for one in contenders(rows).values():
            of = {
                row["algorithm"]: row["identity"]["algorithm"]["name"] for row in rows
            }[one["algorithm"]]
            rank = (
                "matrix"
                if MATRIX in str(rows[0]["identity"]["problem"])
                else "low rank"
            )
            answer = one["prediction"] or "no prediction"
            counts[of, rank][answer] += 1
            if answer == "no" or one["below_optimum"]:
                said = f"{percent(one['deviation'])}% in {one['deviation_of']}, z {one['deviation_z'] or 0:+.1f}"
                print(
                    f"refused {name}: {rows[0]['problem']}, {one['algorithm']}: {said}, below {one['below_optimum']}"
                )
    if not counts:
        return
    answers = ("yes", "no", "finite size", "too few runs", "no prediction")
    print(f"\n| algorithm | {' | '.join(answers)} |\n|---|{'---|' * len(answers)}")
    for (name, rank), found in sorted(counts.items()):
        print(
            f"| {name}, {rank} | {' | '.join(str(found[answer]) for answer in answers)} |"
        )
    total = sum(counts.values(), Counter())
    known = sum(total[answer] for answer in answers[:4])
    print(f"| all | {' | '.join(str(total[answer]) for answer in answers)} |")
    print(f"\nfalse no: {total['no']} of {known}")


def print_gamp(folder):
    """Verdicts at three sizes, and the error over the optimum at the largest of them: with seeds of this root, and of another."""
    found = rows_of(folder, "gamp")
    yes = inside = apart = others = 0
    cases = sorted({name[:2] for name in found})
    if not cases:
        return
    print(
        "| case | matches | would have seen, % | error / optimum | seeds of another root |\n|---|---|---|---|---|"
    )
    for case in cases:
        rows = found[f"{case}-0"]
        (one,) = contenders(rows).values()
        yes += one["prediction"] == "yes"
        ratio, error = one["ratio_to_bayes"], one["ratio_error"]
        last = max(
            (row for row in rows if row["metric"] == "mse"),
            key=lambda row: row["dimension"],
        )
        half = float(
            stdtrit(last["n"] - 1, 0.975)
        )  # of the 95% interval, in standard errors
        within = ratio is None or abs(ratio - 1) <= half * error
        inside += within
        other, words = None, ""
        if found.get(f"{case}-1") and ratio is not None:
            (other,) = (
                row
                for row in found[f"{case}-1"]
                if row["metric"] == "mse" and row["dimension"] == last["dimension"]
            )
            new = other["mean"] / last["optimum"]
            spread = (
                math.hypot(
                    other["sem"] / other["mean"],
                    (last["optimum_error"] or 0.0) / last["optimum"],
                )
                * new
            )
            others += 1
            apart += abs(new - 1) <= half * spread
            words = f"{new:.3f} ± {spread:.3f}"
        shown = "optimum 0" if ratio is None else f"{ratio:.3f} ± {error:.3f}"
        print(f"| {rows[0]['problem']}, alpha {rows[0]['nominal_alpha']:g} | {one['prediction']} "
              f"| {percent(one['would_have_seen'], '.1f')} | {shown} | {words} |")  # fmt: skip
    print(
        f"\nyes: {yes} of {len(cases)}; 1 within the 95% interval: {inside} of {len(cases)}; of other seeds: {apart} of {others}"
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
