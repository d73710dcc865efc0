"""Whether times may be judged on this machine."""

import os

import pytest

JUDGED = not os.environ.get("SMIMBENCH_NO_TIME_LIMITS")
# Where nothing is judged it is enough that everything runs; a size that is asked for is measured all the same.
SMOKE = not JUDGED and "SMIMBENCH_BENCH_NUMBERS" not in os.environ


@pytest.fixture
def judge():
    """Whether times may be judged here; a shared machine says no by SMIMBENCH_NO_TIME_LIMITS=1."""
    return JUDGED
