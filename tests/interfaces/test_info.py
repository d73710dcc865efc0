"""The small data types that pass between engine and items."""

from __future__ import annotations

import pickle

import pytest

from smimbench.interfaces import STORED_NAMES, Info


def test_a_report_has_its_former_names_too():
    former = Info(0.5, claimed=1, held=2, moved=3, strain=4, samples=7)
    assert former == Info(0.5, 1, 2, 3, 4, samples=7)
    assert former == Info(0.5, predicted_overlap=1, self_overlap=2, squared_step=3, log_information_ratio=4, samples=7)
    for name, old in STORED_NAMES.items():
        assert getattr(former, name) == getattr(former, old)


def test_one_entry_under_two_names_is_an_error():
    with pytest.raises(TypeError, match="'self_overlap' and 'held', which are one entry"):
        Info(0.0, held=1, self_overlap=1)
    with pytest.raises(TypeError, match="overlaps"):
        Info(0.0, overlaps=1)


def test_a_report_survives_pickling_and_replacement():
    info = Info(0.5, self_overlap=2, warning="coarse")
    assert pickle.loads(pickle.dumps(info)) == info
    changed = info._replace(warning=None)
    assert type(changed) is Info
    assert (changed.held, changed.warning) == (2, None)
