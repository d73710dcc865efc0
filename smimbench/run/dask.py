"""Cells on a Dask cluster; its workers need smimbench and the same plugins, not the results folder."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from smimbench.backend.device import BackendError
from smimbench.registry.registry import Registry, set_registry
from smimbench.run.cell import lost_record, run_cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smimbench.suite.cells import Cell

__all__ = ["on_dask"]


def on_dask(cells: Sequence[Cell], address: str, threads: int, registry: Registry) -> Iterator[dict[str, Any]]:
    """Run on a Dask cluster. A cell whose worker dies is tried again elsewhere by Dask, and is a failed cell in the end."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise BackendError("dask: is not installed; pip install 'smimbench[dask]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise BackendError(f"dask: no scheduler answers at {address} ({error})") from None
    with client:
        waiting = {
            client.submit(
                _work_anywhere,
                cell,
                threads,
                registry.paths,
                registry.third_party,
                key=f"smimbench-{cell.key}",
                pure=False,
            ): cell
            for cell in cells
        }
        for future in as_completed(waiting):
            failure = future.exception()
            yield (
                future.result()
                if failure is None
                else lost_record(waiting[future], threads, f"the cluster lost it: {failure!r}")
            )


def _work_anywhere(cell: Cell, threads: int, paths: tuple[str, ...], third_party: bool) -> dict[str, Any]:
    return run_cell(cell, threads=threads, registry=_same_registry(paths, third_party))


@functools.lru_cache(maxsize=1)
def _same_registry(paths: tuple[str, ...], third_party: bool) -> Registry:
    """The registry of the sender, made once per worker process."""
    registry = Registry(paths, third_party=third_party)
    set_registry(registry)
    return registry
