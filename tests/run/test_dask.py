"""Cells on a Dask cluster on loopback, whose workers and scheduler die."""

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from smimbench.backend.device import BackendError
from smimbench.registry.registry import Registry
from smimbench.run import dask
from smimbench.run.campaign import run_cells
from smimbench.run.store import Store
from smimbench.suite.reader import load_suite
from tests.helpers import ROOT, SUITE, call_outside, environment, loaded, write_suite
from tests.records import numbers_in

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("distributed") is None,
        reason="distributed is not installed",
    ),
    pytest.mark.usefixtures("started_workers"),
]
PLUGIN = ROOT / "tests" / "faulty_algorithms.py"
CLUSTER = """
import logging, sys, time
from distributed import LocalCluster
logging.disable(logging.CRITICAL)
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
    print(cluster.scheduler_address, *(w.process.process.pid for w in cluster.workers.values()), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def cluster(tmp_path, request):
    """Address of a scheduler, the processes of its workers, and its own."""
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    words = [sys.executable, script, str(getattr(request, "param", 2))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
                               start_new_session=True, cwd=tmp_path)  # fmt: skip
    address, *workers = process.stdout.readline().split()
    yield address, list(map(int, workers)), process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_a_cluster_whose_workers_die_makes_the_serial_records(
    tmp_path, cluster, monkeypatch
):
    address, workers, process = cluster
    cells = loaded(tmp_path, SUITE.replace("seeds     = 2", "seeds     = 3")).cells()
    run_cells(cells, Store(tmp_path / "serial"))
    serial = numbers_in(Store(tmp_path / "serial"))
    killed = []

    def kill(record):
        if len(killed) < 2:
            os.kill(workers[len(killed)], signal.SIGKILL)  # its nanny starts another
            killed.append(record.key)

    run_cells(cells, Store(tmp_path / "dask"), dask=address, on_record=kill)
    assert len(killed) == 2
    assert numbers_in(Store(tmp_path / "dask")) == serial

    monkeypatch.setattr(dask, "PATIENCE", 4.0)

    # A scheduler that dies in the middle is one line, and finished cells are kept.
    def end(record):
        os.killpg(process.pid, signal.SIGKILL)

    with pytest.raises(
        BackendError, match="does not respond any more; finished cells are stored"
    ):
        run_cells(cells, Store(tmp_path / "half"), dask=address, on_record=end)
    assert len(Store(tmp_path / "half").load()) >= 1
    done = call_outside(
        "run",
        tmp_path / "small.toml",
        "--dask",
        address,
        "--results",
        tmp_path / "r",
        "--quiet",
    )
    assert done.returncode == 2
    assert "dask: no scheduler answers at" in done.stderr
    assert (
        len(done.stderr.strip().splitlines()) == 1
    )  # older versions of distributed print an empty line of their own


@pytest.mark.slow
def test_a_worker_that_has_lived_long_runs_the_code_of_today(
    tmp_path, cluster, monkeypatch
):
    """The plugin's file changes between two runs: the second must not get the numbers of the first under its version."""
    address, _, _ = cluster
    plugin, found = tmp_path / "mine.py", []
    text = PLUGIN.read_text().replace("WrongShape, Vandal", "Vandal")
    suite = write_suite(
        tmp_path, SUITE.partition("[[alg")[0] + '[[algorithms]]\nname = "quiet"\n'
    )
    for version in (1, 2):
        new = text.replace(
            "version: ClassVar[int] = 1", f"version: ClassVar[int] = {version}"
        )
        plugin.write_text(
            new.replace("return state * 0.5", f"return state * 0.5**{version}")
        )
        os.utime(plugin, (time.time() + 10 * version,) * 2)
        monkeypatch.setattr(
            "smimbench.registry.registry._process_registry", Registry([str(plugin)])
        )
        cells = load_suite(suite).cells()[:1]
        found += run_cells(cells, Store(tmp_path / f"r{version}"), dask=address)
    assert [record.status for record in found] == ["ok", "ok"]
    assert [record.cell["algorithm"]["version"] for record in found] == [1, 2]
    assert found[0].metrics["mse"] != found[1].metrics["mse"]
    # A worker without the plugin, or with another version of it, says so and computes nothing.
    plugin.write_text(text)
    (record,) = run_cells(cells, Store(tmp_path / "r3"), dask=address)
    assert record.status == "failed"
    assert re.search("is version 1 .* the cell needs version 2", record.reason)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [0], indirect=True)
def test_a_cluster_without_workers_is_one_line(tmp_path, monkeypatch, cluster):
    monkeypatch.setattr(dask, "PATIENCE", 1.0)
    cells = loaded(tmp_path).cells()
    with pytest.raises(BackendError, match=r"no worker at .* for 1 s"):
        run_cells(cells, Store(tmp_path / "r"), dask=cluster[0])


def test_a_record_that_goes_before_it_is_fetched_was_lost_and_is_no_traceback():
    from distributed import client
    from distributed.comm.core import CommClosedError

    # Older versions of distributed cancel as asyncio does.
    cancelled = getattr(
        client, "FutureCancelledError", lambda *words: asyncio.CancelledError(*words)
    )("key", "lost")
    for error in (CommClosedError("reset by peer"), cancelled, TimeoutError()):

        def result(timeout, error=error):
            raise error

        record, why = dask._record_or_error(
            SimpleNamespace(status="finished", result=result)
        )
        assert record is None
        assert type(why).__name__ in dask.LOST_ERRORS


@pytest.mark.slow
def test_the_cells_of_a_run_share_a_process_that_is_idle_between_them(
    tmp_path, monkeypatch
):
    """Beside a Dask worker: the same run meets the same process, another run a new one, and none is left for ever."""
    idle = {}
    monkeypatch.setattr(dask, "_IDLE", idle)
    cell = loaded(tmp_path).cells()[0]
    version = dask.machine.versions().get("smimbench")

    def work(run):
        dask._run_on_worker(cell, 1, (), frozenset(), version, dask.Limits(), run)
        return list(idle)[-1].workers[0].process

    monkeypatch.setattr(dask, "IDLE_TIMEOUT", 60.0)
    first = work("a")
    assert work("a") is first
    first.kill()  # while it rests: the next cell gets another, and knows nothing of it
    second = work("a")
    assert second is not first
    assert work("b") is not second
    monkeypatch.setattr(dask, "IDLE_TIMEOUT", 0.1)
    assert work("a") is second
    assert second.wait(20) is not None
    ((other, (run, timer)),) = idle.items()
    assert run == "b"
    timer.cancel()
    other.end()
