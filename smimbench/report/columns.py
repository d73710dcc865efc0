"""What every column of a table means: ``smimbench help columns``, and the page docs/columns.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smimbench.report.tables import make_table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["COLUMNS", "columns_page", "print_columns"]

COLUMNS: dict[str, dict[str, str]] = {
    "Where a row is from": {
        "algorithm": "Its label in the suite, with @backend where several backends are shown. Estimates from "
        "`smimbench score` stand next to the algorithms of the suite.",
        "alpha": "Sample ratio that was used: n / D, or n / d^2 for a signal of extensive rank. Algorithms that draw fresh "
        "samples stand at the ratio of all of them.",
        "D, d": "Dimension of the signal.",
        "component, layer": "Component of the signal, from 1.",
        "n": "Runs with an estimate.",
        "status": "How the runs ended: ok, n.c. (not converged), div. (diverged), t/o (timeout), fail, skip. `moving`: the "
        "error still moved at the last step.",
    },
    "Errors": {
        "mean ± s.e.m., MSE ± s.e.m.": "Mean over the runs and its standard error. One run has no standard error.",
        "predicted": "What theory predicts for this algorithm, with its numerical error; blank if there is no such theory.",
        "optimal": "Bayes-optimal value from state evolution at the same sample ratio.",
        "diff": "Mean minus optimal.",
        "z": "Mean minus prediction (minus optimal where both are the same), in units of both errors together. `?`: fewer "
        "than 4 runs, too few for a standard error. Blank where theory is 0.",
        "error / optimal": "Error over the Bayes-optimal error; 1 cannot be beaten as D grows. In the verdict: the geometric "
        "mean over sample ratios. Blank where the optimal error is 0.",
        "at 0": "Largest error where the optimal error is 0 (0: below run.target).",
        "as predicted": "yes: at every sample ratio at least 4 runs agree with the prediction, within their 99% interval (at "
        "most 20% wide) or 5%. no: somewhere they do not; the largest difference is shown. unclear: too few runs.",
        "error / best": "Error over that of the first algorithm, on the same instances: geometric mean.",
        "95% interval": "Of error / best, by Student's t on the logarithms.",
        "instances": "Instances with an estimate, of all. Algorithms that draw samples of their own are left out.",
    },
    "Time": {
        "time to 5%": "Median time until the error is within 5% of optimal (below run.target where that is 0). A run that "
        "never gets there counts as infinity. never: most runs; partly: not at all sample ratios.",
        "runs at 5%": "Share of runs that get within 5% of optimal.",
        "to 50%, to 20%": "The same for 50% and 20%, in iterations where the table says so.",
        "per run": "Mean time of a run.",
        "iter., made": "Mean number of iterations.",
        "first": "Time of the first iteration, which often compiles or allocates.",
        "per iter.": "Median time of the iterations after the first.",
        "of peak": "Share of this machine's measured rate of matrix products (x) or of reading memory (r), whichever "
        "limits the iteration.",
        "memory": "Largest memory of a run.",
    },
    "Infinite dimension": {
        "value ± err": "Limit of the means as D grows, from at least three dimensions; the error includes lack of fit.",
        "law": "Law of the corrections: 1/D unless its chi-square rejects it.",
        "b ± err, b in theory": "Fitted coefficient of 1/D, and its value in closed form.",
        "chi2": "Chi-square of the fit over its degrees of freedom.",
        "exponent": "Best single exponent with its interval; blank if every exponent fits as well.",
    },
    "Order of learning": {
        "layer 1, component 1, ...": "Median epochs (or iterations) until half of its optimal overlap; `-` where that is 0.",
        "order (runs)": "Order in which components got there, and in how many runs.",
        "last / first": "Time of the last component over that of the first: geometric mean and standard error.",
        "all": "Share of runs that learned all components.",
    },
    "Other numbers that runs report": {
        "no.": "Position in the list that the algorithm reports, as of eigenvalues.",
        "theory": "What theory expects; none: there is no such value as D grows.",
        "found": "Runs that found a value, of all.",
    },
    "Comparison of two results": {
        "before, after": "Means of the two results.",
        "change": "Relative change of the mean with its 99.7% interval, paired where the instances are the same.",
        "made by": "Versions of the items that made the result, and those that are installed.",
        "verdict": "better, worse, within noise, nearer to theory (worse, but closer to the prediction), both at 0, only "
        "before, only after.",
    },
    "Theory": {
        "error": "Numerical error of the number before it.",
        "in alpha": "The same error as a change of the sample ratio.",
        "gen. Bayes, plug-in": "Error of prediction on new data: of the posterior mean, and of the estimate put in.",
        "branch": "unique, or where branches compete: informed (from the signal) and uninformed (from the prior mean, "
        "reached by algorithms).",
        "published, difference, tolerance": "Published values, theory minus them, and their accuracy; off: outside.",
        "printed, drawn": "Of --verify: the printed number, and the same from plain draws.",
    },
}


def columns_page() -> str:
    """All columns as Markdown."""
    parts = [
        "# What the columns mean\n\n<!-- `smimbench help columns` prints this; written in smimbench/report/columns.py. -->\n"
    ]
    for title, columns in COLUMNS.items():
        parts.append(f"## {title}\n")
        parts.append("| column | meaning |\n|---|---|")
        parts += [f"| {name} | {text} |" for name, text in columns.items()]
        parts.append("")
    return "\n".join(parts)


def print_columns(console: Console, document: dict[str, dict[str, str]]) -> None:
    """A table per topic."""
    for title, columns in document.items():
        console.print(
            make_table(
                title, [("column", "l", lambda c: c[0]), ("meaning", "l", lambda c: c[1])], columns.items(), padding=1
            )
        )
        console.print()
