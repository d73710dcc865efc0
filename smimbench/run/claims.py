"""Who is running which cell: claim files by which several runs into one folder share the work, without a lock and
without waiting for the dead.

A claim is a small file that is made by one process only (``O_EXCL``, also on network file systems) and touched as long as its
cell runs. One that was not touched for ``STALE`` seconds belongs to nobody. A claim decides who computes, never what counts: two
runs that both compute a cell write the same record.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from smimbench.files import unless

__all__ = ["STALE", "Claims"]

STALE = 60.0
"""Seconds after which an untouched claim belongs to nobody; doubled, the cells of a killed run are taken up that much later."""


class Claims:
    """Claims in the folder of a store.

    Parameters
    ----------
    folder : Path
        That of the records; claims are in ``claims/`` below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "claims"
        self.records = folder
        self._own: set[str] = set()
        self._touched = time.monotonic()

    def is_done(self, key: str) -> bool:
        """Whether there is a record by now."""
        return (self.records / f"{key}.json").exists()

    def take(self, key: str) -> bool:
        """Whether the cell is ours to run; a folder that cannot be written to is no reason not to."""
        if key in self._own:
            return True
        if self.is_done(key):
            return False
        path = self.folder / key
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            about = unless(FileNotFoundError, path.stat)
            if about is not None and time.time() - about.st_mtime > STALE:
                path.unlink(missing_ok=True)
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        except OSError:
            return True
        with os.fdopen(handle, "w") as file:
            file.write(f"{os.uname().nodename if hasattr(os, 'uname') else ''} {os.getpid()}\n")
        self._own.add(key)
        if self.is_done(key):  # it was finished between the two looks
            self.release(key)
            return False
        return True

    def touch(self) -> None:
        """Say that our cells are still running, now and then."""
        if time.monotonic() - self._touched > STALE / 6:
            self._touched = time.monotonic()
            for key in self._own:
                unless(OSError, os.utime, self.folder / key)

    def release(self, key: str) -> None:
        """Give a cell back: it is done, or it will not be run."""
        if key in self._own:
            self._own.discard(key)
            unless(OSError, (self.folder / key).unlink)

    def close(self) -> None:
        """Give all of them back, and the folder if it is empty."""
        for key in list(self._own):
            self.release(key)
        unless(OSError, self.folder.rmdir)
