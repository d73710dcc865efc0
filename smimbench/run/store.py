"""Stores records on disk: one immutable file per finished cell, long trajectories as ``.npz``, and ``run.json``.

Many workers, many machines and a network file system need no lock: a file's name is the content address of its cell,
and it appears whole or not at all.

Records are named by what was run, so all settings of a suite (itself, and what ``--set`` and ``--only`` made of it) share them.
``run.json`` and the figures belong to one: those of the suite as it is written lie in ``results/SUITE``, all others in
``results/SUITE/settings/NAME``.
"""

from __future__ import annotations

import gc
import hashlib
import io
import json
import os
import re
import shlex
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

import numpy as np

from smimbench.files import (
    StoreError,
    canonical_json,
    read_json,
    read_npz,
    sync_folder,
    unless,
    write_atomically,
)
from smimbench.interfaces import Array
from smimbench.problem.problem import CODE_KEYS, Specification
from smimbench.registry.registry import KINDS
from smimbench.run.record import (
    FORMAT,
    Changes,
    LongTrajectory,
    Record,
    SharedDocument,
    check_model,
    digest_of,
    plain,
    read_record,
    sealed,
    text_of,
)
from smimbench.suite.cells import Cell, Suite, is_same_setup

T = TypeVar("T")
Columns = dict[str, Array]

LONG = 300
"""Iterations above which a trajectory goes to a file of its own; doubled, records get twice as long to read as text."""
SCALARS = ("iteration", "seconds", "residual", "samples", "damping")
"""Columns of a trajectory that have one number for each iteration; the others have one for each component."""
FOLDER = "settings"
"""Folder for ``run.json`` and the figures of settings other than those of the suite as it is written."""
TRIALS = "tuning"
"""Folder for the records of ``smimbench tune``."""
ASIDE = "set-aside"
"""Folder for files that cannot be trusted."""


class Store:
    """A folder of records of finished cells.

    Parameters
    ----------
    folder : Path
        ``results/<suite>``; made on first write.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.complaints: list[str] = []

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, record: Record) -> Path:
        """Store one record; a long trajectory is first written to an ``.npz`` file next to it."""
        document = {"format": FORMAT, **record.document}
        trajectory = document.get("trajectory")
        if trajectory and len(trajectory["iteration"]) > LONG:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **_from_lists(trajectory))
            data, file = buffer.getvalue(), f"{record.file_stem}.npz"
            write_atomically(self.folder / file, data)
            document["trajectory"] = {
                "file": file,
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        path = self.folder / f"{record.file_stem}.json"
        write_atomically(path, text_of(sealed(document)).encode(), durable_name=False)
        return path

    def sync(self) -> None:
        """Make all record files durable, so that a power cut does not lose them."""
        sync_folder(self.folder)

    def write_shared(self, document: SharedDocument) -> None:
        """Write ``run.json``, which holds what all cells share."""
        write_atomically(
            self.folder / "run.json", text_of(sealed(plain(document))).encode()
        )

    def read_shared(self) -> SharedDocument:
        """Read ``run.json``; empty if there is none, or, with a complaint, if it cannot be trusted."""
        try:
            return self.check_shared()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self.complaints.append(f"{self.folder / 'run.json'}: {error}; not used")
        return cast(SharedDocument, {})

    def check_shared(self) -> SharedDocument:
        """Read ``run.json`` and raise an error if it cannot be trusted.

        Raises
        ------
        OSError
            If there is none.
        ValueError
            If it was changed after it was written, or is something else.
        """
        document: object = read_json(self.folder / "run.json")
        if not isinstance(document, dict) or "digest" not in document:
            raise ValueError("this is not a run.json written by smimbench")
        if digest_of(document) != document.pop("digest"):
            raise ValueError(
                "the file was changed after it was written (its digest does not match); the same 'smimbench run' writes it again"
            )
        check_model(SharedDocument, document, "a run.json of smimbench")
        return cast(SharedDocument, document)

    # -- reading ------------------------------------------------------------------------------------------------

    def load(
        self, *, set_aside: bool = False, digests: bool = True
    ) -> dict[str, Record]:
        """Load all records that can be trusted, keyed by file stem.

        What records have in common is kept once, and trajectories are arrays.

        Parameters
        ----------
        set_aside : bool
            Move files that cannot be trusted into ``set-aside/``; otherwise they are only reported. Never deleted.
        digests : bool
            False for a dry run, which uses no number that a table shows: digests are not checked, trajectories are dropped.
        """
        self.complaints = []
        records: dict[str, Record] = {}
        shared: dict[str, Any] = {}
        if not self.folder.is_dir():
            return records
        collecting = gc.isenabled()
        gc.disable()  # nothing here is a cycle, and to look for one among all records again and again takes half of the time
        try:
            for name in sorted(os.listdir(self.folder)):
                if (
                    not name.endswith(".json")
                    or name.startswith(".")
                    or name == "run.json"
                ):
                    continue
                stem = name.removesuffix(".json")
                try:
                    record = self.read(stem, digests)
                    records[stem] = _compacted(record, shared, digests)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    reason = str(error) or type(error).__name__
                    self._complain(self.folder / name, reason, set_aside)
        finally:
            if collecting:
                gc.enable()
        return records

    def read(self, stem: str, digests: bool = True) -> Record:
        """Read one record from its file; ValueError or OSError if it cannot be trusted."""
        record = read_record(self.folder / f"{stem}.json", digests=digests)
        if record.file_stem != stem:
            raise ValueError(
                "the file was renamed: its name does not match the key of its cell"
            )
        return record

    def trajectory(self, record: Record) -> Columns | None:
        """Return the trajectory of a record, from its ``.npz`` file if it is long; None, with a complaint, if that is damaged."""
        trajectory = record.trajectory
        if not trajectory:
            return None
        path = self.folder / f"{record.file_stem}.json"
        try:
            if isinstance(trajectory, LongTrajectory):
                path = self.folder / trajectory.file
                columns = _unpacked_npz(path, trajectory.sha256)
            else:
                columns = _from_lists(trajectory)
            _check_columns(columns, record.metrics)
            return columns
        except FileNotFoundError:
            reason: object = "is missing"
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            zipfile.BadZipFile,
            NotImplementedError,
        ) as error:
            reason = error
        self.complaints.append(f"{path}: trajectory {reason}")
        return None

    def written(self, record: Record) -> float:
        """Time at which a record was written, in seconds since 1970; 0 if its file is gone."""
        path = self.folder / f"{record.file_stem}.json"
        return unless(OSError, os.path.getmtime, path) or 0.0

    def _complain(self, path: Path, reason: str, set_aside: bool) -> None:
        line = f"{path}: {reason}; not used"
        if set_aside:
            line += f", moved to {move_aside(path, self.folder)}"
        self.complaints.append(line)

    def retire(self, stems: Iterable[str]) -> None:
        """Move records to ``set-aside/``, so that their cells run again; nothing is deleted."""
        for stem in stems:
            move_aside(self.folder / f"{stem}.json", self.folder)


def move_aside(path: Path, folder: Path) -> Path:
    """Move a file, and the trajectory next to it, to ``set-aside/`` under new names."""
    target = folder / ASIDE / f"{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Another run may have moved them already.
        npz = path.with_suffix(".npz")
        unless(FileNotFoundError, os.replace, npz, target.with_suffix(".npz"))
        unless(FileNotFoundError, os.replace, path, target)
    except OSError as error:
        raise StoreError(
            f"cannot move {path} to {target.parent}: {error.strerror or error}"
        ) from error
    return target


def _compacted(record: Record, shared: dict[str, Any], trajectories: bool) -> Record:
    """Return a record that takes less memory, by sharing equal parts with earlier records (``shared``)."""

    def common(table: T) -> T:
        return shared.setdefault(repr(table), table)  # type: ignore[no-any-return]

    cell: Any = {shared.setdefault(key, key): v for key, v in record.cell.items()}
    cell |= {key: common(cell[key]) for key in ("problem", "algorithm")}
    trajectory: Any = record.trajectory if trajectories else None
    if isinstance(trajectory, dict):
        # Rows of different lengths stay lists: ``Store.trajectory`` complains of them.
        trajectory = unless(ValueError, _from_lists, trajectory) or trajectory
    return replace(
        record,
        cell=cell,
        trajectory=trajectory,
        machine=common(record.machine),
        versions=common(record.versions),
        document={},
    )


def _check_columns(arrays: Columns, metrics: Mapping[str, Sequence[object]]) -> None:
    """Raise ValueError unless the arrays are valid columns of a trajectory."""
    if not len(arrays.get("iteration", ())):
        raise ValueError("the trajectory has no iterations")
    for name, values in arrays.items():
        if values.ndim != (1 if name in SCALARS else 2) or values.dtype != np.float64:
            raise ValueError("the trajectory has a column of the wrong shape")
        if len(values) != len(arrays["iteration"]):
            raise ValueError("the trajectory has columns of different lengths")
        if name in metrics and values.shape[1] != len(metrics[name]):
            raise ValueError(
                "the trajectory has a different number of components than its record"
            )


def _from_lists(trajectory: Mapping[str, object]) -> Columns:
    """Convert the columns of a trajectory from lists to arrays; null becomes NaN."""
    return {key: np.asarray(values, dtype=float) for key, values in trajectory.items()}


def _unpacked_npz(path: Path, sha256: str) -> Columns:
    """Read the arrays of an ``.npz`` file; ValueError if its SHA-256 differs or it unpacks to too much memory."""
    if path.exists() and not path.is_file():
        raise ValueError("the trajectory is not in a regular file")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError("the trajectory's file was changed after it was written")
    return read_npz(io.BytesIO(data))


def trials_of(store: Store) -> Store:
    """Return the store of the trials of ``smimbench tune``, separate from the cells that a suite compares."""
    return Store(store.folder / TRIALS)


def scores_of(store: Store) -> Store:
    """Return the store of scored estimates, separate from the cells that smimbench ran."""
    return Store(store.folder / "scored")


def theory_folder(store: Store) -> Path:
    """Folder of stored theory results, which all suites under the same ``--results`` share."""
    home = store.folder.parent if store.folder.name == TRIALS else store.folder
    return home.parent / "theory"


@dataclass(frozen=True)
class Settings:
    """Settings with which a suite was run, from its ``run.json``, and the store of its records."""

    folder: Path
    store: Store
    shared: SharedDocument

    @property
    def suite(self) -> str:
        """Name of the suite."""
        return str(self.shared.get("suite", self.store.folder.name))

    @property
    def words(self) -> str:
        """Command-line options of these settings; empty for the unchanged suite."""
        return words_of(self.shared)


def changes_of(suite: Suite) -> Changes:
    """Return the ``--set`` and ``--only`` options of a suite, in the form that ``run.json`` stores."""
    return {
        "overrides": list(suite.overrides),
        "only": [f"{key}={value}" for key, value in suite.only],
    }


def options_of(suite: Suite) -> str:
    """Command-line options that changed a suite, as text."""
    return words_of(changes_of(suite))


def words_of(shared: Changes) -> str:
    """Command-line options that ``run.json`` names, as text."""
    return " ".join(
        f"{option} {shlex.quote(text)}" for option, text in _sorted_options(shared)
    )


def _sorted_options(shared: Changes) -> list[tuple[str, str]]:
    """Sort the options that ``run.json`` names, so that their order on the command line does not matter.

    Of a key that is set twice the last counts, of what is appended everything.
    """
    by_key: dict[str, str] = {}
    for text in shared.get("overrides", []):
        key = text.partition("=")[0].strip()
        by_key[text if key.endswith("+") else key] = text
    overrides = [("--set", by_key[key]) for key in sorted(by_key)]
    return overrides + [
        ("--only", text) for text in sorted(set(shared.get("only", [])))
    ]


def settings_folder(suite: Suite, store: Store) -> Path:
    """Folder of ``run.json`` and figures of a suite, one for each set of ``--set`` and ``--only`` options."""
    options = _sorted_options(changes_of(suite))
    if not options:
        return store.folder
    text = " ".join(f"{option[2:]} {value}" for option, value in options)
    values = " ".join(value for _, value in options)
    name = re.sub(r"[^A-Za-z0-9.=+-]+", "_", values)[:24]
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return store.folder / FOLDER / f"{name}.{digest}"


def settings_under(folder: Path) -> list[Settings]:
    """Find all settings with which suites were run, in the folder of a run, of a suite, or of all results."""
    settings = _read_settings(folder)
    if settings is not None:
        return [settings]
    if (of_suite := settings_of_suite(folder)) or not folder.is_dir():
        return of_suite
    suites = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    return [settings for suite in suites for settings in settings_of_suite(suite)]


def settings_of_suite(folder: Path) -> list[Settings]:
    """All settings under which a suite was run, unchanged settings first."""
    changed = folder / FOLDER
    folders = [folder, *(sorted(changed.iterdir()) if changed.is_dir() else ())]
    return [settings for settings in map(_read_settings, folders) if settings]


def _read_settings(folder: Path) -> Settings | None:
    try:
        shared = Store(folder).check_shared()
    except (OSError, ValueError):
        return None
    records = folder.parent.parent if folder.parent.name == FOLDER else folder
    return Settings(folder, Store(records), shared)


def why_none(folder: Path) -> str:
    """Reason why no runs were found under a folder."""
    try:
        Store(folder).check_shared()
    except ValueError as error:
        return f"run.json cannot be used: {error}"
    except OSError:
        pass
    return "not a results folder (it has no readable run.json)"


# -- records made by other code --------------------------------------------------------------------------------------------


class OtherVersion(TypedDict):
    """Number of stored cells that another version, or other code, of an item made."""

    item: str
    then: int
    now: int
    cells: int


def other_versions(
    cells: Sequence[Cell], records: Iterable[Record]
) -> list[OtherVersion]:
    """Count records of the cells that were made with another version, or other code, of an item.

    Returns
    -------
    list of dict
        ``item``, its version ``then`` and ``now`` (equal where only its code differs), and the number of ``cells``.
    """
    counts: Counter[tuple[str, int, int]] = Counter()
    for cell, record in made_by_other_code(cells, records):
        current = _items(cell.identity())
        for kind, recorded in _items(record.cell).items():
            item = current[kind]
            if any(recorded.get(key) != item.get(key) for key in CODE_KEYS):
                name = f"{kind} {recorded['name']!r}"
                counts[name, recorded["version"], item["version"]] += 1
    return [
        {"item": item, "then": recorded, "now": current, "cells": count}
        for (item, recorded, current), count in counts.items()
    ]


def made_by_other_code(
    cells: Sequence[Cell], records: Iterable[Record]
) -> list[tuple[Cell, Record]]:
    """Return records of the cells that were made with another version, or other code, of an item, in the order of the cells.

    Files have no order of their own: the last bits of means, and the questions of theory, depend on the order of runs.
    """
    keys = {cell.key for cell in cells}
    unmatched = [record for record in records if record.key not in keys]
    if not unmatched:
        return []
    candidates: dict[str, list[tuple[dict[str, Any], int]]] = {}
    for place, cell in enumerate(cells):
        identity = json.loads(canonical_json(cell.identity()))
        name = _without_parameters(identity)
        candidates.setdefault(name, []).append((identity, place))
    matched = []
    for record in unmatched:
        for identity, place in candidates.get(_without_parameters(record.cell), ()):
            if is_same_setup(identity, record.cell):
                matched.append((place, record))
                break
    matched.sort(key=lambda pair: pair[0])
    return [(cells[place], record) for place, record in matched]


def _items(cell: Mapping[str, Any]) -> dict[str, Specification]:
    """Return the items of a cell, keyed by kind."""
    problem = cell["problem"]
    items = {kind: problem[kind] for kind in KINDS if kind in problem}
    return {**items, "algorithm": cell["algorithm"]}


def _without_parameters(cell: Mapping[str, object]) -> str:
    """Return the grid point, settings and item names of a cell, without parameters of items."""
    left_out = ("problem", "algorithm", "metrics")
    settings = {key: cell[key] for key in cell if key not in left_out}
    return canonical_json([settings, [item["name"] for item in _items(cell).values()]])


def changed_code(versions: Sequence[OtherVersion]) -> list[str]:
    """Return one line for each item whose code has changed without a new version."""
    lines = []
    for change in versions:
        if change["then"] == change["now"]:
            count = f"{change['cells']} cell{'' if change['cells'] == 1 else 's'}"
            lines.append(
                f"{change['item']} has other code under the same version {change['now']} than when {count} "
                "of this suite ran: they are kept apart; raise its version when its numbers change"
            )
    return lines
