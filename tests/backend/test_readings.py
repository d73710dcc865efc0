"""What an iteration reports is read together, from the host and from a device."""

import numpy as np
import pytest

from smimbench.interfaces import Info
from smimbench.run.loop import Readings
from tests.backend.launches import DEVICE
from tests.helpers import sequence


@pytest.mark.parametrize("mixed", [True, False])
def test_numbers_of_host_and_device_may_be_mixed(mixed):
    """An algorithm may report a float of the host next to arrays of a device, or an integration error on the device."""
    there = DEVICE.asarray(np.array([0.25]))
    info = Info(
        residual=0.5 if mixed else DEVICE.asarray(np.array(0.5)),
        predicted_overlap=np.array([0.125]) if mixed else there,
        self_overlap=there,
        integration_error=DEVICE.asarray(np.array(2e-3)),
    )
    watch = Readings(sequence("linear"))
    assert watch.read(info).residual == 0.5
    assert watch.latest.predicted_overlap == (0.125 if mixed else 0.25)
    assert watch.latest.self_overlap == 0.25
    assert watch.warnings() == [
        "posterior integrals were accurate to 2e-03 of their width only"
    ]


def test_accurate_integrals_need_no_warning():
    watch = Readings(sequence("linear"))
    watch.read(Info(residual=1.0, integration_error=1e-6))
    assert watch.warnings() == []
    for error in (2e-3, 5e-3, 1e-6):
        watch.read(Info(residual=1.0, integration_error=error))
    assert watch.warnings() == [
        "posterior integrals were accurate to 5e-03 of their width only"
    ]
    watch.read(Info(residual=1.0, integration_error=float("nan")))
    assert "nan" in watch.warnings()[0]
