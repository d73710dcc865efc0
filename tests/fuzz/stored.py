"""Stored results changed by the hundred, repeatable: ``python tests/fuzz/stored.py --cases 500 --seed 1``.

So many packs (of both formats), and so many records and trajectories. Bytes are changed, or one value of the document becomes
something nasty under digests that fit. ``show``, ``compare`` and ``verify`` then end with an exit code of their own: no
traceback, no 70, nothing that steers a terminal.
"""

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from smimbench.run.record import with_digest  # noqa: E402
from tests.fuzz.job import (  # noqa: E402
    NASTY,
    change_structure,
    mutated,
    prepare,
    restored,
    run_line,
    watched,
)

FORMS = (["--json"], ["--csv"], ["--markdown"], ["--full"], [])


NEAR = {
    bool: (lambda value, dice: not value,),
    int: (
        lambda value, dice: dice.choice([0, -1, 1, value + 1, 2**31, 2**63, 10**30]),
    ),
    float: (
        lambda value, dice: dice.choice(
            [0.0, -value, 2 * value, 1e300, -1e300, 1e-300, math.inf, math.nan, None]
        ),
    ),
    str: (
        lambda value, dice: dice.choice(
            ["", value + "x", value[1:], "\x1b[2J", "nan", "gamp", "a" * 5000]
        ),
    ),
    list: (
        lambda value, dice: [],
        lambda value, dice: value[:-1],
        lambda value, dice: value * 2,
        lambda value, dice: [value],
        lambda value, dice: [None] * len(value),
    ),
    dict: (
        lambda value, dice: {},
        lambda value, dice: {key: value[key] for key in list(value)[1:]},
        lambda value, dice: {f"{key}x": inner for key, inner in value.items()},
    ),
    type(None): (lambda value, dice: dice.choice([0, 1.0, "", [], {}, [[]], True]),),
}
"""Other values of the type of a value, which a schema alone may let through."""


def changed_somewhere(document, dice):
    """The document with one of its values changed, each as likely: into another of its type, or into something nasty."""
    places = [(None, None)]
    holders = [document]
    while holders:
        holder = holders.pop()
        inner = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for name, value in inner:
            places.append((holder, name))
            if isinstance(value, dict | list):
                holders.append(value)
    holder, name = dice.choice(places)
    value = document if holder is None else holder[name]
    new = (
        dice.choice(NASTY)
        if dice.random() < 0.3
        else dice.choice(NEAR[type(value)])(value, dice)
    )
    if holder is None:
        return new
    holder[name] = new
    return document


def change_pack(file, dice):
    """One value of a pack of either format becomes something else, under digests that fit as far as there are any."""
    pack = json.loads(file.read_text())
    name = dice.choice(
        ["document", "run", *["places"] * 4]
        if pack["packed"] == 2
        else ["run", "theory", *["records"] * 2]
    )
    pack[name] = changed_somewhere(pack[name], dice)
    if pack["packed"] == 2:
        file.write_text(json.dumps(with_digest(pack)))
        return
    if isinstance(pack["records"], list):
        pack["records"] = [
            with_digest(record) if isinstance(record, dict) else record
            for record in pack["records"]
        ]
    if isinstance(pack["theory"], dict):
        for kind, answers in pack["theory"].items():
            if isinstance(answers, list):
                pack["theory"][kind] = [
                    with_digest(answer) if isinstance(answer, dict) else answer
                    for answer in answers
                ]
    file.write_text(json.dumps(with_digest(pack)))


def change_file(file, dice):
    """Bytes of a file are changed, or its structure under a digest that fits."""
    if dice.random() < 0.25:
        file.write_bytes(mutated(file.read_bytes(), dice))
    elif file.name.startswith("pack"):
        change_pack(file, dice)
    elif file.suffix == ".npz":
        change_structure(file, dice)
    else:
        document = changed_somewhere(json.loads(file.read_text()), dice)
        if isinstance(document, dict):
            document = with_digest(document)
        file.write_text(json.dumps(document))


def job(cases, number, folder):
    """So many cases of each kind, and what was found."""
    dice, done, findings = random.Random(number), Counter(), []
    results = folder / "results"
    table = results / "small" / "table" / "rows.json"
    packs = [results / "pack.json", results / "pack2.json"]
    packs[1].write_bytes(table.read_bytes())
    stores = [results / "small", results / "long"]
    records = [path for store in stores for path in store.glob("*.json")]
    kinds = {
        "packs": packs,
        "records and trajectories": [*records, *stores[1].glob("*.npz")],
    }
    for kind, files in kinds.items():
        for _ in range(cases):
            suffix = dice.choice(sorted({path.suffix for path in files}))
            file = dice.choice([path for path in files if path.suffix == suffix])
            place = str(file if kind == "packs" else file.parent)
            verb = dice.choice(["show", "show", "compare", "verify"])
            cells = dice.choice(["0"] * 9 + ["1"])
            words = {
                "show": [place, *dice.choice(FORMS)],
                "compare": [place, place],
                "verify": [
                    place,
                    "--cells",
                    cells,
                    *dice.choice([[], ["--no-theory"]]),
                ],
            }[verb]
            beside = file.parent.glob("*.json") if file.suffix == ".npz" else ()
            with restored(file, *beside):
                change_file(file, dice)
                problem = watched(run_line, [verb, *words])
                done[kind] += 1
                if problem:
                    findings.append(
                        f"{kind}: {verb} {words} {file.read_bytes()[-1500:]!r}\n{problem}"
                    )
                    print(findings[-1], end="\n\n", flush=True)
    return done, findings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary))
        counts, found = job(chosen.cases, chosen.seed, Path(temporary))
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{kinds}, {time.monotonic() - begin:.0f} s, {len(found)} findings")
    sys.exit(1 if found else 0)
