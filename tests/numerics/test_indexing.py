"""Scatter at a mask against NumPy's assignment, on every backend."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from smimbench.backend.arrays import to_host
from smimbench.numerics.indexing import put_at_mask
from tests.conftest import assert_placed


@pytest.mark.parametrize(
    "mask",
    [[True, False, True, True], [False] * 4, [True] * 4, [False, False, True, False]],
)
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_put_is_assignment(backend, rng, mask, ndim):
    shape = [4, 3, 2][:ndim]
    whole = rng.standard_normal(shape)
    mask = np.array(mask)
    part = rng.standard_normal(whole[mask].shape)
    here = (
        backend.xp.asarray(array, device=backend.device)
        for array in (whole, mask, part)
    )
    asked = put_at_mask(*here)
    assert_placed(asked, backend, tuple(shape))
    whole[mask] = part
    assert_array_equal(to_host(asked), whole)
