"""Bad input by the thousand, repeatable: ``python tests/fuzz/job.py --cases 100000 --seed 1``.

A quarter each: suites put together by hypothesis from pieces that are nearly right, and shipped ones with a value or a key
changed; suites in other encodings, and suites, records, kept theory, ``run.json`` and ``.npz`` files with bytes changed; records
whose fields were changed and whose digest was made to fit, and packs, answers of theory and trajectories of another structure;
command lines. A case is a finding if anything but an error of smimbench's own comes out, if it takes more than ``SLOW`` seconds
of the processor or ``STUCK`` on the wall, if what it prints holds a control character or a formula, or if a file appears outside
the results folder. The process may take ``MEMORY`` bytes in all.
"""

import argparse
import contextlib
import csv
import functools
import hashlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from smimbench.cli import main  # noqa: E402
from smimbench.files import StoreError  # noqa: E402
from smimbench.report.results import Results  # noqa: E402
from smimbench.report.text_files import as_csv, as_markdown  # noqa: E402
from smimbench.run.campaign import plan_campaign  # noqa: E402
from smimbench.run.external import read_estimate  # noqa: E402
from smimbench.run.record import with_digest  # noqa: E402
from smimbench.run.store import Store, theory_folder  # noqa: E402
from smimbench.run.theory_solver import TheorySolver  # noqa: E402
from smimbench.suite import SuiteError  # noqa: E402
from smimbench.suite.reader import parse_suite  # noqa: E402
from tests.helpers import ATTENTION, SUITE  # noqa: E402

SLOW, STUCK = 20.0, 600.0
MEMORY = 6 << 30
CLOCKS = (
    (signal.SIGPROF, signal.ITIMER_PROF, SLOW),
    (signal.SIGALRM, signal.ITIMER_REAL, STUCK),
)
OWN = (SuiteError, StoreError)
NASTY = [
    "", "[/]", "$x_", "=1+1", "\x1b[2J", "\u202e", "a" * 5000, "../../x", "nan", "smimbench:gamp", "gamp", "softmax", "linear",
    -1, 0, 1, 2, 3, 1e-300, 1e-9, 0.5, 1.0, 1e9, 1e300, float("inf"), float("-inf"), float("nan"), 2**31, 2**63, 2**64, 10**400,
    True, None, [], {}, [[]], [1, "a"], {"name": "gamp"}, {"name": ["softmax"]},
]  # fmt: skip


class Late(BaseException):
    """A case took too long."""


def watched(case, *arguments):
    """What is wrong with a case: nothing, or the end of a traceback."""

    def late(*_):
        raise Late

    for which, when, limit in CLOCKS:
        signal.signal(which, late)
        signal.setitimer(when, limit)
    try:
        case(*arguments)
    except Late:
        return f"took more than {SLOW:g} s of the processor, or {STUCK:g} s"
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        return "".join(traceback.format_exc().splitlines(True)[-3:])
    finally:
        for _, when, _ in CLOCKS:
            signal.setitimer(when, 0)
    return None


# -- suites -----------------------------------------------------------------------------------------------------------

_nasty = st.sampled_from(NASTY)
_value = st.recursive(_nasty | st.floats() | st.integers() | st.text(max_size=20),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
                      max_leaves=6)  # fmt: skip


def _item(names, keys):
    known = st.fixed_dictionaries(
        {"name": st.sampled_from(names)}, optional={key: _value for key in keys}
    )
    return st.sampled_from(names) | known | _value


_problem = st.fixed_dictionaries(
    {
        "model": _item(["sequence-multi-index", "attention-indexed"], ["tokens"]),
        "channel": _item(
            ["linear", "softmax", "hardmax"],
            ["noise", "beta", "layers", "skip", "components", "samples"],
        ),
        "prior": _item(["gaussian", "wishart"], ["rho"]),
    },
    optional={"label": _value, "grid": _value},
)
_run = [
    "tolerance",
    "max_iterations",
    "timeout",
    "metrics",
    "start",
    "target",
    "dtype",
    "tf32",
    "draw",
    "reference",
]
_axis = _value | st.sampled_from([[0.5], [1.0, 2.0], [12], 2])
_about = st.sampled_from(["title", "description", "reference", "plugins", "x"])
_algorithm = _item(
    ["gamp", "adam", "sgd", "ridge", "spectral"],
    ["steps", "learning_rate", "batch", "label"],
)
_grid = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("alpha", "dimension", "seeds", "seed", "max_cells"), _axis),
)
DOCUMENTS = st.fixed_dictionaries(
    {"problem": _problem | _value, "grid": _grid},
    optional={
        "suite": st.dictionaries(_about, _value, max_size=2) | _value,
        "algorithms": st.lists(_algorithm, max_size=3) | _value,
        "run": st.dictionaries(st.sampled_from(_run), _value, max_size=3),
    },
)


def toml(value):
    """A value as TOML writes it; what TOML has no word for becomes one that is wrong."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(str(k))} = {toml(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return str(value)


def read_suite(text, folder):
    """A suite is read and priced, or refused by an error of our own."""
    try:
        suite = parse_suite(folder / "fuzz.toml", text)
        plan_campaign(suite, Store(folder / "results" / "fuzz"), dry_run=True)
    except OWN:
        pass


# -- bytes ------------------------------------------------------------------------------------------------------------


WEDGES = [
    b"[" * 2000,
    b"9" * 5000,
    b"\x00",
    b"\xff\xfe",
    b"null",
    b"1e999",
    b"{}",
    b'"',
]
EDITS = (
    lambda data, i, j, dice: data[:i] + bytes([dice.randrange(256)]) + data[i + 1 :],
    lambda data, i, j, dice: data[:i] + data[min(j, i + 40) :],
    lambda data, i, j, dice: data[:i] + data[i : min(j, i + 200)] + data[i:],
    lambda data, i, j, dice: data[:i] + dice.choice(WEDGES) + data[i:],
    lambda data, i, j, dice: data[:i],
    lambda data, i, j, dice: (
        data[:i] + bytes([data[i] ^ 1 << dice.randrange(8)]) + data[i + 1 :]
    ),
)


def mutated(data, dice):
    """The same with a few bytes changed, left out, doubled or moved."""
    for _ in range(dice.choice([1, 1, 2, 4, 16])):
        if data:
            i, j = sorted((dice.randrange(len(data)), dice.randrange(len(data))))
            data = dice.choice(EDITS)(data, i, j, dice)
    return data


def changed(value, dice, nasty=None):
    """A document with one value replaced by something nasty, or one key by another or a misspelled one."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        if dice.random() < 0.15:
            return {
                (misspelled(name, dice) if name == key else name): inner
                for name, inner in value.items()
            }
        return {**value, key: changed(value[key], dice, nasty)}
    if isinstance(value, list) and value and dice.random() < 0.7:
        i = dice.randrange(len(value))
        return [*value[:i], changed(value[i], dice, nasty), *value[i + 1 :]]
    return dice.choice(
        nasty
        or [
            n
            for n in NASTY
            if n == n and n not in (float("inf"), float("-inf"), 10**400)
        ]
    )


def misspelled(word, dice):
    """A word with a letter left out, doubled, exchanged or of another kind."""
    i = dice.randrange(len(word) + 1)
    before, letters, after = word[:i], word[i : i + 2], word[i + 2 :]
    words = [
        before + letters[1:] + after,
        before + letters[:1] + word[i:],
        before + letters[::-1] + after,
    ]
    return dice.choice([*words, word.upper(), f"{word}\u0301", f"{word}.x"])


ENCODINGS = [
    lambda text: text.encode("utf-16"), lambda text: text.encode("utf-16-le"), lambda text: text.encode("utf-16-be"),
    lambda text: text.encode("utf-32"), lambda text: text.encode("utf-8-sig"), lambda text: text.encode("cp037"),
    lambda text: text.replace("small", "caf\u00e9").encode("latin-1"), lambda text: text.replace("\n", "\r").encode(),
    lambda text: text.replace("\n", "\r\n").encode(), lambda text: text.encode() + b"\x1a", lambda text: text.encode("utf-7"),
]  # fmt: skip


def read_file(data, folder):
    """A file is read as a suite that was never run, or refused in one line."""
    (folder / "fuzz.toml").write_bytes(data)
    run_line(
        [
            "show",
            str(folder / "fuzz.toml"),
            "--json",
            "--results",
            str(folder / "results"),
        ]
    )


def change_structure(file, dice):
    """Another structure in a pack, an answer of theory or a trajectory, with the digest that belongs to it."""
    if file.suffix == ".npz":
        with np.load(file) as packed:
            arrays = dict(packed)
        name = dice.choice(list(arrays))
        odd = [
            np.zeros(3),
            np.zeros((2, 2)),
            np.array(["a"]),
            np.array(1.0),
            np.zeros((len(arrays[name]), 5)),
            None,
        ]
        found = dice.choice([*odd, arrays[name][:-1]])
        arrays = {key: value for key, value in arrays.items() if key != name} | (
            {} if found is None else {name: found}
        )
        np.savez(file, **arrays)
        for path in file.parent.glob("*.json"):
            record = json.loads(path.read_text())
            if (record.get("trajectory") or {}).get("file") == file.name:
                record["trajectory"]["sha256"] = hashlib.sha256(
                    file.read_bytes()
                ).hexdigest()
                write_resealed(path, record)
        return
    document = json.loads(file.read_text())
    part = dice.choice([name for name in document if name != "digest"])
    document[part] = changed(document[part], dice)
    write_resealed(file, document)


def write_resealed(file, document):
    """A document with the digest that belongs to it, where it can have one."""
    if isinstance(document, dict):
        with contextlib.suppress(ValueError, TypeError):
            document = with_digest(document)
    file.write_text(json.dumps(document))


@contextlib.contextmanager
def restored(*files):
    """Afterwards the files are what they were."""
    kept = {path: path.read_bytes() for path in files}
    yield
    for path, data in kept.items():
        path.write_bytes(data)


def read_npz(file):
    """An estimate is read, or refused by an error of our own."""
    with contextlib.suppress(*OWN):
        read_estimate(file, (1, 30))


def read_store(folder, cache=None):
    """Everything that readers do with records: load, trajectories, rows, tables that harm nobody who opens them."""
    store = Store(folder)
    for record in store.load().values():
        store.trajectory(record)
    cache = cache or TheorySolver(theory_folder(store))
    suite = _parsed(folder.parent.parent / f"{folder.name}.toml")
    document = Results(suite, store, ("numpy",), cache).table.document()
    written = as_csv(document["rows"], document["extrapolated"])
    tame(as_markdown(document["rows"], document["extrapolated"]))
    tame(written)
    for row in csv.reader(io.StringIO(written)):
        for cell in row:
            if cell[:1] in ("=", "@", "\t") or (
                cell[:1] in ("+", "-") and not _is_number(cell)
            ):
                raise AssertionError(f"a formula in CSV: {cell!r:.200}")


@functools.cache
def _parsed(file):
    return parse_suite(file, file.read_text())


def tame(text):
    """Raise AssertionError if a terminal would do anything but print it."""
    steers = {
        *map(chr, (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
    }
    if found := [
        c
        for c in {*text} - {*"\t\r\n"}
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in steers
    ]:
        raise AssertionError(
            f"characters that steer a terminal are shown: {found[:5]!r}"
        )


def _is_number(text):
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return False


# -- command lines ----------------------------------------------------------------------------------------------------

COMMANDS = [
    "show", "list", "info", "data", "score", "theory", "compare", "report", "run", "plugins", "verify", "doctorx",
]  # fmt: skip
WORDS = [
    "--json", "--csv", "--markdown", "--dry-run", "--shard", "1/2", "0/0", "--set", "grid.alpha=[0.5]", "grid.alpha=nan",
    "problem.prior=1", "x", "=", "--only", "alpha=1", "algorithm=gamp", "problem=", "--output", "out/x", "--results", "res",
    "quickstart", "small.toml", "--budget", "1y", "2h", "--cell-memory", "-1", "--alpha", "0.5", "nan", "--no-figure",
    "--quiet", "--workers", "0", "--estimate", "small.npz", "--label", "[/]", "channels", "softmax", "gamp", "-", "--",
    "--plugins", "nowhere", "--backend", "numpy", "cupyx", "--cells", "--seed", "--full", "", "\x1b[0m",
]  # fmt: skip
WHOLE = [
    "show small.toml", "show results/small", "show small.toml --json", "show small.toml --csv", "show long.toml --markdown",
    "theory small.toml --alpha 0.5 --json", "run small.toml --no-figure --quiet", "data small.toml --output out/x.npz",
    "score small.toml --estimate small.npz --label mine", "compare results/small results/long", "info gamp --json",
    "list channels --json", "plugins --json",
]  # fmt: skip
"""Commands that end well as they stand (``score`` lacks its file)."""


def run_line(words):
    """A command ends with an exit code of ours, and with one line if it is not a good one."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as leaving:
            code = leaving.code
    if code not in (0, 1, 2, 75) or "Traceback" in err.getvalue():
        raise AssertionError(f"{words}: exit code {code}: {err.getvalue()[-500:]}")
    tame(out.getvalue() + err.getvalue())


# -- the job ----------------------------------------------------------------------------------------------------------


def job(cases, number, folder):
    """So many cases; how many of each kind, and what was found."""
    done: Counter = Counter()
    findings: list[str] = []
    dice = random.Random(number)

    def note(kind, problem, case):
        done[kind] += 1
        if problem:
            findings.append(f"{kind}: {case!r:.2000}\n{problem}")
            print(findings[-1], end="\n\n", flush=True)

    def suite(kind, document):
        text = toml(document)
        if isinstance(document, dict):
            text = "\n".join(
                f"{json.dumps(key)} = {toml(value)}" for key, value in document.items()
            )
        note(kind, watched(read_suite, text, folder), text)

    drawn = max(1, cases // 32)

    @seed(number)
    @settings(max_examples=drawn, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(DOCUMENTS)
    def drawn_suites(document):
        suite("suites by structure", document)
        for _ in range(3):
            suite("suites by structure", changed(document, dice, NASTY))

    drawn_suites()
    shipped = [
        tomllib.loads(path.read_text())
        for path in sorted((ROOT / "suites").glob("*.toml"))
    ]
    while done["suites by structure"] + done["shipped suites"] < cases // 4:
        document = changed(dice.choice(shipped), dice, NASTY)
        suite(
            "shipped suites",
            changed(document, dice, NASTY) if dice.random() < 0.3 else document,
        )

    stores = [folder / "results" / name for name in ("small", "long")]
    by_bytes = [
        path
        for store in stores
        for path in (*store.glob("*.json"), *store.glob("*.npz"))
    ]
    by_bytes += sorted((folder / "results" / "theory").rglob("*.json"))
    estimate = io.BytesIO()
    np.savez(estimate, estimate=np.zeros((1, 30)))
    for _ in range(cases // 4):
        kind = dice.choice(["suite", "file", "npz"])
        if kind == "suite":
            text = dice.choice([SUITE, ATTENTION])
            data = (
                dice.choice(ENCODINGS)(text) if dice.random() < 0.3 else text.encode()
            )
            data = mutated(data, dice) if dice.random() < 0.8 else data
            note("suites by bytes", watched(read_file, data, folder), data)
        elif kind == "npz":
            data = mutated(estimate.getvalue(), dice)
            (folder / "fuzz.npz").write_bytes(data)
            note("npz by bytes", watched(read_npz, folder / "fuzz.npz"), data)
        else:
            file = dice.choice(by_bytes)
            store = file.parent if file.parent in stores else stores[0]
            with restored(file):
                data = mutated(file.read_bytes(), dice)
                file.write_bytes(data)
                note(
                    f"kept files by bytes ({file.suffix[1:]})",
                    watched(read_store, store),
                    (file.name, data),
                )
                if file.name == "run.json":
                    note(
                        "run.json by bytes",
                        watched(run_line, ["show", str(store)]),
                        data,
                    )
    cache = TheorySolver(folder / "results" / "theory")
    for _ in range(cases // 4):
        file = dice.choice(
            [
                path
                for store in stores
                for path in store.glob("*.json")
                if path.name != "run.json"
            ]
        )
        document = json.loads(file.read_bytes())
        for _ in range(dice.choice([1, 1, 2])):
            document = changed(document, dice)
        with restored(file):
            write_resealed(file, document)
            note("records by fields", watched(read_store, file.parent, cache), document)
    pack, trajectories = folder / "results" / "pack.json", [*stores[1].glob("*.npz")]
    structured = [
        *sorted((folder / "results" / "theory").glob("*.json")),
        pack,
        *trajectories,
    ]
    for _ in range(cases // 8):
        file = dice.choice([pack, *trajectories, *structured])
        place = str(pack if file == pack else stores[file.suffix == ".npz"])
        form = dice.choice([["--json"], ["--csv"], ["--markdown"], ["--full"]])
        words = (
            ["compare", place, place] if dice.random() < 0.2 else ["show", place, *form]
        )
        with restored(*structured, *stores[1].glob("*.json")):
            change_structure(file, dice)
            shown = (file.name, file.read_bytes()[-3000:])
            note(
                "other structures under a digest that fits",
                watched(run_line, words),
                shown,
            )
    os.chdir(folder)
    while sum(done.values()) < cases:
        words = [
            dice.choice(COMMANDS),
            *(dice.choice(WORDS) for _ in range(dice.randrange(6))),
        ]
        if dice.random() < 0.5:
            words = dice.choice(WHOLE).split()
            for _ in range(dice.choice([1, 1, 2])):
                where = dice.randrange(1, len(words) + 1)
                words[where : where + dice.randrange(2)] = [dice.choice(WORDS)]
        if words[0] in ("run", "verify"):
            words += ["--dry-run"] if words[0] == "run" else ["--help"]
        if words[0] in ("theory", "run", "data") and "quickstart" in words:
            words[words.index("quickstart")] = "small.toml"
        note("command lines", watched(run_line, words), words)
    return done, findings


def prepare(folder):
    """Two suites that were run, one with a trajectory in a file of its own, so that there is something to change."""
    small = SUITE.replace("[0.5, 1.0]", "[0.5]")
    (folder / "small.toml").write_text(small)
    (folder / "long.toml").write_text(
        small.partition("[[alg")[0] + '[[algorithms]]\nname = "adam"\nsteps = 2400\n'
    )
    here = os.getcwd()
    os.chdir(folder)
    for name in ("small", "long"):
        run_line(
            ["run", f"{name}.toml", "--results", "results", "--no-figure", "--quiet"]
        )
    run_line(
        [
            "show",
            "small.toml",
            "--results",
            "results",
            "--pack",
            "results/pack.json",
            "--json",
        ]
    )
    os.chdir(here)


def outside(folder):
    """Files other than what the job itself and the results folders may make."""
    allowed = {"results", "out", "small.toml", "long.toml", "fuzz.toml", "fuzz.npz"}
    # A word after --output names a file, whose folder is made: "[/]" is the file "]" in the folder "[".
    allowed |= {Path(word).parts[0] for word in WORDS if word}
    allowed.add("theory")  # of --results "", which is this folder
    return [path.name for path in folder.iterdir() if path.name not in allowed]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        prepare(place)
        counts, found = job(chosen.cases, chosen.seed, place)
        for name in outside(place):
            found.append(f"written outside: {name!r}")
            print(found[-1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{sum(counts.values())} cases ({', '.join(f'{n} {k}' for k, n in counts.items())}), "
          f"{time.monotonic() - begin:.0f} s, {peak:.0f} MB, {len(found)} findings")  # fmt: skip
    sys.exit(1 if found else 0)
