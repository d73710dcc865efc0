"""The small data types that pass between engine and items."""

import pickle

from smimbench.interfaces import Info


def test_a_report_survives_pickling_and_replacement():
    info = Info(0.5, self_overlap=2, warning="coarse")
    assert pickle.loads(pickle.dumps(info)) == info
    changed = info._replace(warning=None)
    assert type(changed) is Info
    assert (changed.self_overlap, changed.warning) == (2, None)
