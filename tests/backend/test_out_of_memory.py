"""A device that runs out of memory: the cell runs again with smaller chunks, says so, and finds the same."""

import numpy as np
import pytest

from smimbench.backend import device as device_module
from smimbench.backend.device import Backend, get_backend
from smimbench.backend.namespaces.cupy import CupyBackend
from smimbench.run import cell as runner
from smimbench.run.loop import LoopRun
from tests.helpers import SUITE, loaded


class OutOfMemoryError(MemoryError):
    """As CuPy calls it."""


class Device(Backend):
    """The host, playing a device."""

    def ran_out(self, error):
        """As on a GPU."""
        return CupyBackend.ran_out(self, error)

    def free_memory(self):
        """More than enough, so it seems."""
        return 1 << 40


@pytest.fixture
def device(monkeypatch):
    """Most samples that a device can hold the latents of at a time (a list, empty at first), and how many were tried."""
    found = Device("numpy", get_backend("numpy").xp)
    monkeypatch.setattr(runner, "get_backend", lambda *args, **kwargs: found)
    monkeypatch.setattr(device_module, "free_memory", lambda like: 1 << 40)
    monkeypatch.setattr(device_module, "LARGEST_CHUNK", 1 << 18)
    from smimbench_attention.models.sequence_multi_index import SequenceMultiIndex

    forward = SequenceMultiIndex.forward
    lengths = []

    def limited(self, inputs, signal):
        if limit and running:
            lengths.append(inputs.shape[0])
            if inputs.shape[0] > limit[0]:
                raise OutOfMemoryError("Out of memory allocating 1,000 bytes")
        return forward(self, inputs, signal)

    limit, running = [], []

    class LimitedRun(LoopRun):
        def __init__(self, *arguments):
            running.append(True)
            super().__init__(*arguments)

        def finished(self):
            run = super().finished()
            running.clear()
            return run

    draw = runner._instance

    def draw_without_limit(*arguments):
        running.clear()
        return draw(*arguments)

    monkeypatch.setattr(SequenceMultiIndex, "forward", limited)
    monkeypatch.setattr(runner, "LoopRun", LimitedRun)
    monkeypatch.setattr(runner, "_instance", draw_without_limit)
    return limit, lengths


def cell_of(tmp_path, algorithm):
    text = SUITE.replace("[0.5, 1.0]", "[20.0]")  # 600 samples
    (cell, *_) = loaded(tmp_path, text, [], [f"algorithm={algorithm}"]).cells()
    return cell


@pytest.mark.parametrize("algorithm", ["gamp", "adam"])
def test_it_runs_again_with_the_next_smaller_chunk(device, tmp_path, algorithm):
    limit, lengths = device
    cell = cell_of(tmp_path, algorithm)
    plain = runner.run_cell(cell)
    assert plain.status in ("ok", "not-converged"), plain.traceback
    assert "tries" not in plain.document["placement"]
    limit.append(100)
    careful = runner.run_cell(cell)
    assert careful.status == plain.status, careful.traceback
    tries = careful.document["placement"]["tries"]
    assert tries > 1
    assert f"1/{2 ** (tries - 1)} of their usual size" in careful.warnings[-1]
    assert max(lengths) > 100 >= lengths[-1]
    assert careful.timing.lost_seconds > plain.timing.lost_seconds
    np.testing.assert_allclose(careful.metrics["mse"], plain.metrics["mse"], rtol=1e-9)
    assert device_module.chunk_scale() == 1.0


def test_what_fits_nowhere_fails_in_words(device, tmp_path):
    limit, lengths = device
    limit.append(1)
    record = runner.run_cell(cell_of(tmp_path, "gamp"))
    assert record.status == "failed"
    assert record.reason.startswith("OutOfMemoryError: Out of memory")
    assert sorted(set(lengths), reverse=True) == list(
        dict.fromkeys(lengths)
    )  # smaller each time
    assert len(set(lengths)) == runner.MOST_TRIES


def test_any_other_error_is_none_of_it(device, tmp_path, monkeypatch):
    tried = []

    class BrokenRun(LoopRun):
        def __init__(self, *arguments):
            tried.append(1)
            raise MemoryError("of the host")

    monkeypatch.setattr(runner, "LoopRun", BrokenRun)
    assert (
        runner.run_cell(cell_of(tmp_path, "gamp")).reason == "MemoryError: of the host"
    )
    assert tried == [1]


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("cudaErrorMemoryAllocation: out of memory", True),
        ("CUBLAS_STATUS_ALLOC_FAILED", True),
        ("cudaErrorIllegalAddress", False),
    ],
)
def test_cuda_and_its_libraries_run_out_in_words_of_their_own(text, out):
    assert CupyBackend("cupy", np).ran_out(RuntimeError(text)) is out
