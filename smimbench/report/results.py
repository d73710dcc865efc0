"""All that was run of a suite, with its theory: what tables, figures, the page and the Python functions are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from smimbench.files import JsonObject
from smimbench.report.extrapolation import extrapolated_rows
from smimbench.report.rows import Optima, Rows, error_rows, find_optima, paired, paired_by_name, scored_rows
from smimbench.report.verdict import summary, verdicts
from smimbench.run.answers import Answers
from smimbench.run.campaign import other_versions
from smimbench.run.store import Store, settings_folder, theory_folder
from smimbench.suite.cells import Suite


class Results:
    """Results of a suite on some backends (default: all that there are).

    Parameters
    ----------
    answers : Answers or None
        Theory; default: what is stored.
    any_code : bool
        Count what other code has run, too, where the present code has run nothing of an algorithm.
    """

    def __init__(
        self,
        suite: Suite,
        store: Store,
        backends: Sequence[str] = (),
        answers: Answers | None = None,
        *,
        any_code: bool = False,
    ) -> None:
        self.suite, self.store, self.records = suite, store, store.load(compact=True)
        self.answers = answers or Answers(theory_folder(store), predictions=suite.needs_prediction_errors)
        known = sorted({record["cell"]["backend"] for record in self.records.values()})
        self.folder = settings_folder(suite, store)
        self.cells = [cell for backend in backends or known or ["numpy"] for cell in suite.cells(backend)]
        self.pairs = paired(self.cells, self.records)
        if any_code:
            self.pairs += paired_by_name(self.cells, store, self.records)
        self.counts = dict(Counter(record["status"] for _, record in self.pairs))

    @cached_property
    def rows(self) -> Rows:
        """Rows of the error table."""
        return Rows([*error_rows(self.pairs, self.suite, self.store, self.answers, lambda: self.optima), *self.scored])

    @cached_property
    def scored(self) -> list[JsonObject]:
        """Rows of estimates from elsewhere."""
        return scored_rows(self.suite, self.store, self.answers, self.optima)

    @cached_property
    def optima(self) -> Optima:
        """The Bayes-optimal error at finite size, where it is known."""
        return find_optima(self.pairs, self.suite, self.answers)

    @cached_property
    def extrapolated(self) -> list[JsonObject]:
        """Values at infinite dimension, where there are three dimensions or more."""
        return extrapolated_rows(self.rows, self.suite.run.target)

    @cached_property
    def others(self) -> list[JsonObject]:
        """Number of stored cells that other versions of an item made, which no table counts."""
        return other_versions(self.cells, self.records.values())

    def missing(self, backends: Iterable[str]) -> int:
        """Cells on these backends that have no record."""
        return sum(len(self.suite.cells(backend)) for backend in backends) - len(self.pairs)

    def document(self) -> JsonObject:
        """What ``show --json`` prints."""
        rows = self.rows
        with np.errstate(over="ignore", invalid="ignore"):  # values may be as large as numbers go
            follows = {"verdicts": verdicts(rows), "summary": summary(rows), "extrapolated": self.extrapolated}
        return {
            "suite": self.suite.name,
            "title": self.suite.title,
            "description": self.suite.description,
            "verdicts": follows["verdicts"],
            "summary": follows["summary"],
            "rows": rows,
            "extrapolated": follows["extrapolated"],
            "status_counts": self.counts,
            "missing": len(self.cells) - len(self.pairs),
            "other_versions": self.others,
            **({"left_out": list(self.suite.left_out)} if self.suite.left_out else {}),
        }
