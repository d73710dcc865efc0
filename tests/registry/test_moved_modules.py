"""A plugin written for smimbench 0.1 says what to do, and harms nothing else."""

import pytest

from smimbench.registry.registry import KINDS, PLURALS, Registry


@pytest.mark.parametrize("plural", PLURALS.values())
def test_plugin_that_imports_the_former_packages_is_told_the_new_one(tmp_path, plural):
    plugin = tmp_path / "stale.py"
    plugin.write_text(f"from smimbench_{plural} import anything\n")
    registry = Registry([str(plugin)])
    stale = next(p for p in registry.plugins if p.distribution == "stale")
    assert stale.failed
    assert (
        f"smimbench_{plural} is now smimbench_attention.{plural}" in stale.problems[0]
    )
    assert {entry.kind for entry in registry.entries()} == {*KINDS}
