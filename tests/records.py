"""Records made by hand, and what of a record must not depend on where and when it was made."""

import json

from smimbench.run.record import json_value, record_from
from smimbench.suite.cells import key_of

ITEM = {"name": "any", "version": 1}
CELL = {
    "problem": {"model": ITEM, "channel": ITEM, "prior": ITEM},
    "algorithm": ITEM,
    "alpha": 0.1,
    "dimension": 30,
    "replicate": 0,
    "seed": 0,
    "backend": "numpy",
}
ELSEWHERE = ("timing", "machine", "versions", "digest", "format")


def record(*, cell=None, timing=None, **changes):
    """A record in which these fields, and these parts of its cell and its times, differ from the usual ones."""
    cell = {**CELL, **(cell or {})}
    usual = {
        "key": key_of(cell),
        "cell": cell,
        **dict.fromkeys(("problem", "algorithm", "reason"), ""),
        "status": "ok",
        "metrics": {},
        "timing": {"machine": "here", **(timing or {})},
        "machine": {},
        "versions": {},
    }
    return record_from(json_value({**usual, **changes}))


def numbers(document):
    """Everything of a record's JSON that must not depend on where and when it was made."""
    kept = {k: v for k, v in document.items() if k not in ELSEWHERE}
    steps = kept.get("trajectory") or {}
    kept["trajectory"] = {k: v for k, v in steps.items() if k != "seconds"}
    return json.dumps(kept, sort_keys=True, default=str)


def numbers_in(store):
    """The same of all records in a store, by key."""
    documents = [store.read(stem).document for stem in store.load()]
    return {document["key"]: numbers(document) for document in documents}


def records_in(folder):
    """Files of the records in a results folder."""
    return sorted(path for path in folder.glob("*.json") if path.name != "run.json")
