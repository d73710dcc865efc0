"""``smimbench verify``: whether stored results and kept points of theory are what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from smimbench.cli.options import (
    JSON,
    NOT_OK,
    OK,
    RESULTS,
    SUITE_OR_FOLDER,
    Request,
    command,
    flag,
    make_console,
    print_json,
)

if TYPE_CHECKING:
    from smimbench.run.store import Store
    from smimbench.run.verification import Verification
    from smimbench.suite.cells import Suite

__all__ = ["verify"]


@command(
    SUITE_OR_FOLDER,
    click.Option(["--cells"], type=click.IntRange(0), default=5, show_default=True, help="Cells to run again."),
    click.Option(["--seed"], type=click.IntRange(0), default=0, show_default=True, help="Which ones, at random."),
    flag("Do not solve theory again.", "--no-theory"),
    RESULTS,
    JSON,
)
def verify(request: Request, cells: int, seed: int, no_theory: bool) -> int:
    """Check every byte of stored results, solve their theory again, and run a sample of cells again.

    What does not agree is named, one line each; the exit code is then 1. Nothing is changed.
    """
    from smimbench.run.external import scores_of
    from smimbench.run.verification import files, rerun

    suite = request.suite()
    store = request.store(suite)
    found = {"files": files(store)}
    if (scores := files(scores_of(store))).checked or scores.wrong:
        found["scores"] = scores
    backends = sorted({record["cell"]["backend"] for record in store.load().values()})
    known = [cell for backend in backends for cell in suite.cells(backend, request.registry)]
    if not no_theory:
        found["points of theory"] = _verified_theory(suite, store)
    found["cells run again"] = rerun(known, store, request.registry, count=cells, seed=seed)
    wrong = [line for one in found.values() for line in one.wrong]
    if request.as_json:
        print_json({"checked": {name: one.checked for name, one in found.items()}, "wrong": wrong})
    else:
        console = make_console()
        for line in wrong:
            console.print(line, style="red", soft_wrap=True)
        for name, one in found.items():
            console.print(f"{one.checked} {name}: {f'{len(one.wrong)} do not agree' if one.wrong else 'all agree'}")
    return NOT_OK if wrong else OK


def _verified_theory(suite: Suite, store: Store) -> Verification:
    """Points of theory that are kept, against points that are solved now."""
    from smimbench.run.store import theory_folder
    from smimbench.run.theory_guard import GuardedTheory
    from smimbench.run.verification import Verification

    found = Verification()
    kept, fresh = GuardedTheory(theory_folder(store)), GuardedTheory()
    for plan in suite.plans:
        ratios = [alpha for alpha in plan.alphas if kept.kept([(plan.problem, [alpha])]).points]
        if not ratios:
            continue
        for alpha, old, new in zip(ratios, kept.points(plan.problem, ratios), fresh.points(plan.problem, ratios)):
            lines = []
            for name in ("mse", "overlap"):
                before, after = _numbers(old[0][name]), _numbers(new[0][name])
                error = max(_numbers(old[0]["mse_error"]) + _numbers(new[0]["mse_error"]))
                apart = max((abs(a - b) for a, b in zip(before, after)), default=0.0)
                if len(before) != len(after) or apart > 4 * error + 1e-9:
                    lines.append(
                        f"theory of {plan.label} at alpha {alpha:g}: {name} is {after}, the file says {before}"
                    )
            found.add(lines)
    return found


def _numbers(value: object) -> list[float]:
    if isinstance(value, (list, tuple)):
        return [number for one in value for number in _numbers(one)]
    return [float(value)]  # type: ignore[arg-type]
