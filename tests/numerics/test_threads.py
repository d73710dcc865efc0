import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from smimbench.numerics import map_in_threads


def blas_threads():
    return {
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_keep_their_order_and_multiply_with_one_thread(threads):
    with threadpool_limits(threads):
        parts = map_in_threads(lambda part: (part, blas_threads()), range(20))
        assert blas_threads() == {threads}
    assert parts == [(part, {1}) for part in range(20)]


def test_numpy_handles_errors_as_around_the_call():
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        map_in_threads(lambda part: 1.0 / np.zeros(part), [1, 2])
