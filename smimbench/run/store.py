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
from typing import Any, TypeVar, cast

import numpy as np
from typing_extensions import TypedDict

from smimbench.files import (
    StoreError,
    canonical_json,
    counted,
    omit,
    pick,
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
    RunJson,
    check_model,
    digest_of,
    indented_json,
    json_value,
    read_record,
    with_digest,
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
    """Folder of records of finished cells.

    Parameters
    ----------
    folder : Path
        ``results/<suite>``; made on first write.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open the folder of records; ``complaints`` lists files that cannot be used."""
        self.folder = Path(folder)
        self.complaints: list[str] = []

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, record: Record) -> Path:
        """Store one record; a long trajectory is first written to an ``.npz`` file next to it."""
        document = {"format": FORMAT, **record.document}
        trajectory = document.get("trajectory")
        if trajectory and len(trajectory["iteration"]) > LONG:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **_columns_from_lists(trajectory))
            npz_bytes = buffer.getvalue()
            file_name = f"{record.file_stem}.npz"
            write_atomically(self.folder / file_name, npz_bytes)
            document["trajectory"] = {
                "file": file_name,
                "sha256": hashlib.sha256(npz_bytes).hexdigest(),
            }
        path = self.folder / f"{record.file_stem}.json"
        write_atomically(
            path, indented_json(with_digest(document)).encode(), durable_name=False
        )
        return path

    def sync(self) -> None:
        """Flush all record files to disk, so that a power cut does not lose them."""
        sync_folder(self.folder)

    def write_run_json(self, document: RunJson) -> None:
        """Write ``run.json`` (``document``), which holds what all cells share."""
        write_atomically(
            self.folder / "run.json",
            indented_json(with_digest(json_value(document))).encode(),
        )

    def read_run_json(self) -> RunJson:
        """Read ``run.json``; return an empty dict if it is missing, or, with a complaint, if it cannot be trusted."""
        try:
            return self.require_run_json()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self.complaints.append(f"{self.folder / 'run.json'}: {error}; not used")
        return cast(RunJson, {})

    def require_run_json(self) -> RunJson:
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
        check_model(RunJson, document, "a run.json of smimbench")
        return cast(RunJson, document)

    # -- reading ------------------------------------------------------------------------------------------------

    def load(
        self, *, set_aside: bool = False, check_digests: bool = True
    ) -> dict[str, Record]:
        """Load all records that can be trusted, keyed by file name without suffix; with ``set_aside``, others are moved
        aside, and without ``check_digests`` contents are not checked against their SHA-256.

        What records have in common is kept once, and trajectories are arrays.

        Parameters
        ----------
        set_aside : bool
            Move files that cannot be trusted into ``set-aside/``; otherwise they are only reported. Never deleted.
        check_digests : bool
            False for a dry run, which uses no number that a table shows: digests are not checked, trajectories are dropped.
        """
        self.complaints = []
        records: dict[str, Record] = {}
        shared_parts: dict[str, Any] = {}
        if not self.folder.is_dir():
            return records
        gc_was_enabled = gc.isenabled()
        gc.disable()  # nothing here is a cycle, and to look for one among all records again and again takes half of the time
        try:
            for file_name in sorted(os.listdir(self.folder)):
                if (
                    not file_name.endswith(".json")
                    or file_name.startswith(".")
                    or file_name == "run.json"
                ):
                    continue
                file_stem = file_name.removesuffix(".json")
                try:
                    record = self.read(file_stem, check_digests)
                    records[file_stem] = _compact_copy(
                        record, shared_parts, check_digests
                    )
                except (OSError, ValueError, KeyError, TypeError) as error:
                    reason = str(error) or type(error).__name__
                    self._complain(self.folder / file_name, reason, set_aside)
        finally:
            gc.freeze()  # later collections do not search these records either
            if gc_was_enabled:
                gc.enable()
        return records

    def read(self, stem: str, check_digests: bool = True) -> Record:
        """Read one record from its file, given the name without suffix (``stem``); ValueError or OSError if it cannot be
        trusted. Without ``check_digests`` it is not checked against its SHA-256.
        """
        record = read_record(self.folder / f"{stem}.json", check_digests=check_digests)
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
                columns = _read_verified_npz(path, trajectory.sha256)
            else:
                columns = _columns_from_lists(trajectory)
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

    def write_time(self, record: Record) -> float:
        """Time at which a record was written, in seconds since 1970; 0 if its file is gone."""
        path = self.folder / f"{record.file_stem}.json"
        return unless(OSError, os.path.getmtime, path) or 0.0

    def _complain(self, path: Path, reason: str, set_aside: bool) -> None:
        """Note that a file is not used and the reason, and move it aside if ``set_aside``."""
        file_complaint = f"{path}: {reason}; not used"
        if set_aside:
            file_complaint += f", moved to {move_aside(path, self.folder)}"
        self.complaints.append(file_complaint)

    def retire(self, file_stems: Iterable[str]) -> None:
        """Move records, given by file names without suffix, to ``set-aside/``, so that their cells run again; nothing is
        deleted.
        """
        for file_stem in file_stems:
            move_aside(self.folder / f"{file_stem}.json", self.folder)


def move_aside(path: Path, folder: Path) -> Path:
    """Move a file, and the trajectory next to it, to ``set-aside/`` under new names."""
    new_path = folder / ASIDE / f"{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}"
    try:
        new_path.parent.mkdir(parents=True, exist_ok=True)
        # Another run may have moved them already.
        trajectory_file = path.with_suffix(".npz")
        unless(
            FileNotFoundError, os.replace, trajectory_file, new_path.with_suffix(".npz")
        )
        unless(FileNotFoundError, os.replace, path, new_path)
    except OSError as error:
        raise StoreError(
            f"cannot move {path} to {new_path.parent}: {error.strerror or error}"
        ) from error
    return new_path


def _compact_copy(
    record: Record, shared_parts: dict[str, Any], keep_trajectory: bool
) -> Record:
    """Return a record that takes less memory, by using the equal parts of earlier records (``shared_parts``), and without its
    trajectory unless ``keep_trajectory``.
    """

    def shared_table(table: T) -> T:
        """Return the equal JSON table (dict) of an earlier record if there is one, otherwise this table."""
        return shared_parts.setdefault(repr(table), table)  # type: ignore[no-any-return]

    cell: Any = {
        shared_parts.setdefault(setting, setting): setting_value
        for setting, setting_value in record.cell.items()
    }
    cell |= {
        setting: shared_table(cell[setting]) for setting in ("problem", "algorithm")
    }
    trajectory: Any = record.trajectory if keep_trajectory else None
    if isinstance(trajectory, dict):
        # Rows of different lengths stay lists: ``Store.trajectory`` complains of them.
        trajectory = unless(ValueError, _columns_from_lists, trajectory) or trajectory
    return replace(
        record,
        cell=cell,
        trajectory=trajectory,
        machine=shared_table(record.machine),
        versions=shared_table(record.versions),
        document={},
    )


def _check_columns(columns: Columns, metrics: Mapping[str, Sequence[object]]) -> None:
    """Raise ValueError unless the arrays are valid columns of a trajectory, with as many components as the ``metrics`` of
    the record.
    """
    if not len(columns.get("iteration", ())):
        raise ValueError("the trajectory must have at least one recorded iteration")
    for column_name, column in columns.items():
        if (
            column.ndim != (1 if column_name in SCALARS else 2)
            or column.dtype != np.float64
        ):
            raise ValueError(
                "each column of the trajectory must hold one number, or one per component, for every iteration"
            )
        if len(column) != len(columns["iteration"]):
            raise ValueError("all columns of the trajectory must have the same length")
        if column_name in metrics and column.shape[1] != len(metrics[column_name]):
            raise ValueError(
                "the trajectory must have as many components as the metrics of its record"
            )


def _columns_from_lists(trajectory: Mapping[str, object]) -> Columns:
    """Convert the columns of a trajectory from lists to arrays; null becomes NaN."""
    return {
        column_name: np.asarray(column_list, dtype=float)
        for column_name, column_list in trajectory.items()
    }


def _read_verified_npz(path: Path, sha256: str) -> Columns:
    """Read the arrays of an ``.npz`` file; ValueError if its SHA-256 is not ``sha256`` or it unpacks to too much memory."""
    if path.exists() and not path.is_file():
        raise ValueError(
            "the trajectory must be in a regular file, not in a folder or device"
        )
    npz_bytes = path.read_bytes()
    if hashlib.sha256(npz_bytes).hexdigest() != sha256:
        raise ValueError(
            "the trajectory's file was changed after it was written (its SHA-256 does not match)"
        )
    return read_npz(io.BytesIO(npz_bytes))


def trials_of(store: Store) -> Store:
    """Return the store of the trials of ``smimbench tune``, separate from the cells (runs) that a suite compares."""
    return Store(store.folder / TRIALS)


def scores_of(store: Store) -> Store:
    """Return the store of scored estimates, separate from the cells (runs) that smimbench ran."""
    return Store(store.folder / "scored")


def theory_folder(store: Store) -> Path:
    """Folder of stored theory results, which all suites under the same ``--results`` share."""
    suite_folder = store.folder.parent if store.folder.name == TRIALS else store.folder
    return suite_folder.parent / "theory"


@dataclass(frozen=True)
class Settings:
    """Settings with which a suite was run: their folder, the content of its ``run.json``, and the store of the records."""

    folder: Path
    store: Store
    run_json: RunJson

    @property
    def suite(self) -> str:
        """Name of the suite."""
        return str(self.run_json.get("suite", self.store.folder.name))

    @property
    def options(self) -> str:
        """Command-line options of these settings; empty for the unchanged suite."""
        return options_text(self.run_json)


def changes_of(suite: Suite) -> Changes:
    """Return the ``--set`` and ``--only`` options of a suite, as ``run.json`` stores them."""
    return {
        "overrides": list(suite.overrides),
        "only": [
            f"{condition_key}={condition_value}"
            for condition_key, condition_value in suite.only
        ],
    }


def options_of(suite: Suite) -> str:
    """Return the ``--set`` and ``--only`` options that changed a suite, as on the command line."""
    return options_text(changes_of(suite))


def options_text(changes: Changes) -> str:
    """Return the ``--set`` and ``--only`` options that ``run.json`` names (``changes``), as on the command line."""
    return " ".join(
        f"{option} {shlex.quote(option_text)}"
        for option, option_text in _sorted_options(changes)
    )


def _sorted_options(changes: Changes) -> list[tuple[str, str]]:
    """Sort the options that ``run.json`` names (``changes``), so that their order on the command line does not matter.

    Of a key that is set twice the last counts, of what is appended everything.
    """
    text_of_key: dict[str, str] = {}
    for option_text in changes.get("overrides", []):
        option_key = option_text.partition("=")[0].strip()
        text_of_key[option_text if option_key.endswith("+") else option_key] = (
            option_text
        )
    override_options = [
        ("--set", text_of_key[option_key]) for option_key in sorted(text_of_key)
    ]
    return override_options + [
        ("--only", option_text) for option_text in sorted(set(changes.get("only", [])))
    ]


def settings_folder(suite: Suite, store: Store) -> Path:
    """Return the folder of ``run.json`` and figures of a suite in a store; each set of ``--set`` and ``--only`` options has
    its own.
    """
    option_pairs = _sorted_options(changes_of(suite))
    if not option_pairs:
        return store.folder
    options_text = " ".join(
        f"{option[2:]} {option_value}" for option, option_value in option_pairs
    )
    values_text = " ".join(option_value for _, option_value in option_pairs)
    folder_name = re.sub(r"[^A-Za-z0-9.=+-]+", "_", values_text)[:24]
    digest = hashlib.sha256(options_text.encode()).hexdigest()[:8]
    return store.folder / FOLDER / f"{folder_name}.{digest}"


def settings_under(folder: Path) -> list[Settings]:
    """Find all settings with which suites were run, in the folder of a run, of a suite, or of all results."""
    folder_settings = _read_settings(folder)
    if folder_settings is not None:
        return [folder_settings]
    if (suite_settings := settings_of_suite(folder)) or not folder.is_dir():
        return suite_settings
    suite_folders = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    return [
        folder_settings
        for suite_folder in suite_folders
        for folder_settings in settings_of_suite(suite_folder)
    ]


def settings_of_suite(folder: Path) -> list[Settings]:
    """Return all settings with which a suite was run, from the suite's folder, the suite without ``--set`` and
    ``--only`` first.
    """
    changed_settings_folder = folder / FOLDER
    folders = [
        folder,
        *(
            sorted(changed_settings_folder.iterdir())
            if changed_settings_folder.is_dir()
            else ()
        ),
    ]
    return [settings for settings in map(_read_settings, folders) if settings]


def _read_settings(folder: Path) -> Settings | None:
    """Read the settings in the ``run.json`` of a folder; None if it cannot be trusted or there is none."""
    try:
        run_json = Store(folder).require_run_json()
    except (OSError, ValueError):
        return None
    records = folder.parent.parent if folder.parent.name == FOLDER else folder
    return Settings(folder, Store(records), run_json)


def why_no_runs(folder: Path) -> str:
    """Return the reason why no runs were found under a folder."""
    try:
        Store(folder).require_run_json()
    except ValueError as error:
        return f"run.json cannot be used: {error}"
    except OSError:
        pass
    return "not a results folder (it has no readable run.json)"


# -- records made by other code --------------------------------------------------------------------------------------------


class OtherVersion(TypedDict):
    """Number of stored cells that were run with another version, or other code, of an item (model, channel, algorithm, ...): its
    version ``then`` and ``now``.
    """

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
    counts_by_version: Counter[tuple[str, int, int]] = Counter()
    for cell, record in pairs_of_other_code(cells, records):
        current_items = _items_by_kind(cell.identity())
        for item_kind, recorded_item in _items_by_kind(record.cell).items():
            item = current_items[item_kind]
            if any(
                recorded_item.get(code_key) != item.get(code_key)
                for code_key in CODE_KEYS
            ):
                item_text = f"{item_kind} {recorded_item['name']!r}"
                counts_by_version[
                    item_text, recorded_item["version"], item["version"]
                ] += 1
    return [
        {"item": item, "then": old_version, "now": new_version, "cells": cell_count}
        for (item, old_version, new_version), cell_count in counts_by_version.items()
    ]


def pairs_of_other_code(
    cells: Sequence[Cell], records: Iterable[Record]
) -> list[tuple[Cell, Record]]:
    """Pair cells (runs) with records that were made with another version, or other code, of an item, in the order of the cells.

    Files have no order of their own: the last bits of means, and the questions of theory, depend on the order of runs.
    """
    current_keys = {cell.key for cell in cells}
    unmatched_records = [record for record in records if record.key not in current_keys]
    if not unmatched_records:
        return []
    cells_of_setup: dict[str, list[tuple[dict[str, Any], int]]] = {}
    for cell_index, cell in enumerate(cells):
        cell_identity = json.loads(canonical_json(cell.identity()))
        setup_key = _setup_without_parameters(cell_identity)
        cells_of_setup.setdefault(setup_key, []).append((cell_identity, cell_index))
    indexed_records = []
    for record in unmatched_records:
        for cell_identity, cell_index in cells_of_setup.get(
            _setup_without_parameters(record.cell), ()
        ):
            if is_same_setup(cell_identity, record.cell):
                indexed_records.append((cell_index, record))
                break
    indexed_records.sort(key=lambda pair: pair[0])
    return [(cells[cell_index], record) for cell_index, record in indexed_records]


def _items_by_kind(cell: Mapping[str, Any]) -> dict[str, Specification]:
    """Return the items (model, channel, ..., algorithm) of a stored cell, a run, keyed by kind."""
    problem = cell["problem"]
    return {**pick(problem, KINDS), "algorithm": cell["algorithm"]}


def _setup_without_parameters(cell: Mapping[str, object]) -> str:
    """Return grid point, settings and item names of a stored cell (run) as JSON text, without parameters of items."""
    other_fields = omit(cell, "problem", "algorithm", "metrics")
    names = [item["name"] for item in _items_by_kind(cell).values()]
    return canonical_json([other_fields, names])


def changed_code_remarks(versions: Sequence[OtherVersion]) -> list[str]:
    """Return one line for each item (model, channel, ...) whose code has changed without a new version."""
    remarks = []
    for version_change in versions:
        if version_change["then"] == version_change["now"]:
            count_text = counted(version_change["cells"], "cell")
            remarks.append(
                f"{version_change['item']} has other code under the same version {version_change['now']} than when {count_text} "
                "of this suite ran: they are kept apart; raise its version when its numbers change"
            )
    return remarks
