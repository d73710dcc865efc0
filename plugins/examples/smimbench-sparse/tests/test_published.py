"""Published values of other groups agree with theory within their tolerance, or a remark explains the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

import smimbench

for package in ("smimbench_glm", "smimbench_phase_retrieval"):
    pytest.importorskip(package, reason="needs the channels of the other examples")

SUITE = Path(__file__).resolve().parent.parent / "published.toml"


def test_published_values_agree_or_are_explained():
    """Every published value agrees with theory within its tolerance, or a remark explains the difference."""
    published_rows = [
        row
        for document in smimbench.theory(SUITE, thresholds=False).documents
        for row in document["published"]
    ]
    assert len(published_rows) > 15
    for row in published_rows:
        assert row["within"] is not bool(row["remark"]), (
            f"{row['label']} at {row['alpha']}: {row['theory']}"
        )
