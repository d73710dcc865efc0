"""Tests that ``verify`` names every file in which a digit was changed: ``python tools/checks/flips.py --flips 500``.

Each flip changes one digit of one file (records, trajectories, ``run.json``, tables, packs, and the points, thresholds, nodes and
predictions of theory). ``verify`` has to name the file, and must not write anything. Every second flip of a file whose numbers
can be computed again is given a new digest that fits, and changes a number by more than 1e-8 of it (what is less is rounding), so
that only computing it again can tell. ``tests/run/test_verification.py`` does a few of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from jobs import options, write_suite  # isort: skip - puts the source tree on the path

from smimbench.cli import main as smimbench
from smimbench.report.packed import _text_of
from smimbench.run import theory_solver
from smimbench.run.record import indented_json, one_line_json, with_digest

ALGORITHMS = ('name = "gamp"', 'name = "ridge"', 'name = "adam"\nsteps = 2400')
DIGIT = re.compile(rb"[0-9]")


def command(*words: object) -> tuple[int, str]:
    """Run a command of smimbench and return its exit code and output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        try:
            smimbench([str(word) for word in words])
        except SystemExit as ended:
            return int(ended.code or 0), output.getvalue()
    return 0, output.getvalue()


def prepare(folder: Path) -> Path:
    """Run a suite with its theory, keeping a pack and all nodes, and return the folder of its results."""
    file = write_suite(folder / "flips.toml", 2, *ALGORITHMS)
    results = ("--results", folder / "results")
    theory_solver.SLOW = 0.0  # every node is kept
    command("run", file, *results, "--workers", "1", "--quiet")
    command("theory", file, *results, "--quiet")
    command(
        "show", file, *results, "--pack", folder / "results" / "pack.json", "--quiet"
    )
    return folder / "results" / "flips"


def kind_of(path: Path, folder: Path) -> str:
    """Return the kind of a file in a results ``folder``: record, trajectory, node, point, ..."""
    if path.suffix == ".npz":
        return "trajectory"
    if path.name in ("run.json", "rows.json", "pack.json"):
        return path.stem
    if path.parent == folder:
        return "record"
    return "node" if path.parent.parent.name == "nodes" else path.name.partition("-")[0]


def flipped(data: bytes, dice: random.Random) -> bytes:
    """Return the bytes of a file with one random digit changed (of an ``.npz``: one byte)."""
    places = [match.start() for match in DIGIT.finditer(data)]
    place = dice.choice(places)
    digit = dice.choice(
        [other_digit for other_digit in b"0123456789" if other_digit != data[place]]
    )
    return data[:place] + bytes([digit]) + data[place + 1 :]


def resealed(kind: str, data: bytes, dice: random.Random) -> bytes | None:
    """Return the bytes of a file of this kind with one digit of a number changed that can be computed again, and a digest
    that fits; None if there is no such number.
    """
    document = json.loads(data)
    del document["digest"]
    if kind == "record":
        numbers = [(document["metrics"], name) for name in document["metrics"]]
    elif kind in ("point", "curve", "floor", "own", "thresholds", "node"):
        numbers = [(document, "answer")]
    elif kind == "pack":
        numbers = [
            (record["metrics"], name)
            for record in document["records"]
            for name in record["metrics"]
        ]
    else:
        return None
    numbers_by_name, name = dice.choice(numbers)
    text = json.dumps(numbers_by_name[name])
    places = [
        match.start(1)
        for match in re.finditer(
            r"[-\d.][\d.]*?(\d)(?=[\d.]*(?:e-?\d+)?[\],}]|$)", text
        )
    ]
    if not places:
        return None
    for place in dice.sample(
        places, min(len(places), 100)
    ):  # most digits are beyond what another computation gives
        digit = dice.choice(
            [other_digit for other_digit in "0123456789" if other_digit != text[place]]
        )
        with contextlib.suppress(ValueError):
            changed = json.loads(text[:place] + digit + text[place + 1 :])
            if not is_rounding(numbers_by_name[name], changed):
                numbers_by_name[name] = changed
                if kind == "record":
                    return indented_json(with_digest(document)).encode()
                if kind == "pack":
                    return _text_of(
                        {
                            **document,
                            "records": [
                                with_digest(record) for record in document["records"]
                            ],
                        }
                    )
                return one_line_json(with_digest(document)).encode()
    return None


def is_rounding(original: object, changed: object) -> bool:
    """Whether no number of two JSON values differs by more than rounding in another computation would explain."""
    if isinstance(original, dict) and isinstance(changed, dict):
        return original.keys() == changed.keys() and all(
            is_rounding(original[key], changed[key]) for key in original
        )
    if isinstance(original, list) and isinstance(changed, list):
        return len(original) == len(changed) and all(
            map(is_rounding, original, changed)
        )
    if isinstance(original, float) and isinstance(changed, float):
        return math.isclose(original, changed, rel_tol=1e-8, abs_tol=1e-10)
    return original == changed


def state_of(results: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a results folder."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(results.rglob("*"))
        if path.is_file()
    }


def flip(path: Path, folder: Path, dice: random.Random, *, seal: bool) -> str | None:
    """Change a digit of a file, verify the folder, and put the file back; return what went wrong (not named, or something
    was written), or None. With ``seal`` the digest is made to fit.
    """
    original, kind = path.read_bytes(), kind_of(path, folder)
    data = resealed(kind, original, dice) if seal else flipped(original, dice)
    if data is None:
        return "skipped"
    path.write_bytes(data)
    state_before = state_of(folder.parent)
    verified_path = path if kind == "pack" and seal else folder
    cells = 99 if seal and kind in ("record", "pack") else 0
    options = () if seal and kind != "record" else ("--no-theory",)
    exit_code, output = command(
        "verify",
        verified_path,
        "--results",
        folder.parent,
        "--cells",
        cells,
        "--json",
        *options,
    )
    state_after = state_of(folder.parent)
    path.write_bytes(original)
    if state_after != state_before:
        return f"{path.name}: verify wrote something"
    try:
        is_named = any(path.name in line for line in json.loads(output)["wrong"])
    except ValueError:
        is_named = False
    if kind == "run" and exit_code == 2:  # the folder is refused for it
        is_named = True
    position = next(
        (
            i
            for i, (old_byte, new_byte) in enumerate(zip(original, data))
            if old_byte != new_byte
        ),
        0,
    )
    context = f"{original[max(0, position - 30) : position + 10]!r} to {data[max(0, position - 30) : position + 10]!r}"
    return (
        None
        if is_named and exit_code
        else f"{path.name} ({kind}{', new digest' if seal else ''}): {context} not named"
    )


def flips(folder: Path, count: int, dice: random.Random) -> tuple[Counter, list[str]]:
    """Change ``count`` digits, over all kinds of files; return how many of each kind, and the changes that were not named."""
    files = [
        file_path
        for file_path in sorted(folder.parent.rglob("*"))
        if file_path.is_file() and file_path.suffix in (".json", ".npz")
    ]
    kinds: dict[str, list[Path]] = {}
    for path in files:
        kinds.setdefault(kind_of(path, folder), []).append(path)
    counts: Counter = Counter()
    failures, sealed_count = [], 0
    while sum(counts.values()) < count:
        for kind, paths in kinds.items():
            seal = counts[kind] % 2 == 1 and kind not in ("trajectory", "run", "rows")
            outcome = "skipped"
            for _ in range(
                10 if seal else 1
            ):  # a digit may be below rounding, or belong to no number
                outcome = flip(dice.choice(paths), folder, dice, seal=seal)
                if outcome != "skipped":
                    break
            sealed_count += seal and outcome != "skipped"
            if outcome == "skipped":
                outcome = flip(dice.choice(paths), folder, dice, seal=False)
            counts[kind] += 1
            if outcome:
                failures.append(outcome)
                print(outcome, flush=True)
    print(f"{sealed_count} under a digest that fits")
    return counts, failures


def main() -> int:
    """Make all changes and print the outcome; return 1 if ``verify`` did not name one."""
    arguments = options(__doc__, flips=500, seed=0)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepare(Path(temporary))
        counts, failures = flips(folder, arguments.flips, random.Random(arguments.seed))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(
        f"{sum(counts.values())} flips ({kinds}) in {time.monotonic() - begin:.0f} s: {len(failures)} not named"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
