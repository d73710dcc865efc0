"""The asv benchmarks run on this commit, notice a bias of 2%, and their site needs no network."""

import importlib.util
import io
import json
import re
import sys
import tarfile

import pytest

from tests.helpers import ROOT

FOLDER = ROOT / "suites" / "asv"
# asv's own rule: a result is worse if it grows by more than this (asv.conf.json).
CONFIG = json.loads(
    "\n".join(
        line
        for line in (ROOT / "asv.conf.json").read_text().splitlines()
        if not line.strip().startswith("//")
    )
)
THRESHOLD = CONFIG["regressions_thresholds"][".*track_.*"]


@pytest.fixture(scope="module")
def benchmarks():
    """The folder as the package that asv makes of it, under a name of its own."""
    found = {}
    spec = importlib.util.spec_from_file_location(
        "asv_of_smimbench",
        FOLDER / "__init__.py",
        submodule_search_locations=[str(FOLDER)],
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["asv_of_smimbench"] = package
    for name in (
        "cases",
        "iteration",
        "theory",
        "accuracy",
        "identities",
        "kernels",
        "products",
        "gate",
        "commands",
    ):
        found[name] = importlib.import_module(f"asv_of_smimbench.{name}")
    yield found
    for name in [name for name in sys.modules if name.startswith("asv_of_smimbench")]:
        del sys.modules[name]


def flagged(before, after):
    return after > (1 + THRESHOLD) * before


def quickstart(benchmarks):
    return next(
        name for name in benchmarks["cases"].problems() if name.startswith("quickstart")
    )


@pytest.mark.slow
def test_every_channel_and_prior_is_discovered(benchmarks):
    """Also those in no suite, and those of a plugin, which asv's processes load as any other does."""
    from smimbench.registry.registry import Registry, get_registry, set_registry

    cases = benchmarks["cases"]
    set_registry(Registry([str(ROOT / "plugins" / "examples" / "drop_in.py")]))
    cases._plans.cache_clear()
    try:
        found = {
            (p.model.name, p.channel.name, p.prior.name)
            for p, _, _ in cases._plans().values()
        }
        mine = next(
            name
            for name in cases.problems()
            if name.startswith("installed") and "drop_in" in name
        )
        registry = get_registry()
        for kind, position in (("channel", 1), ("prior", 2)):
            for entry in registry.entries(kind):
                for model in registry.entries("model"):
                    if entry.supports_model(model.name):
                        assert any(
                            f[0] == model.name and f[position] == entry.name
                            for f in found
                        ), entry
        part = benchmarks["kernels"].Kernels()
        part.setup(mine)
        part.time_posterior(mine)
        step = benchmarks["iteration"].Iteration()
        step.setup(mine, "gamp")
        step.time_step(mine, "gamp")
    finally:
        set_registry(None)
        cases._plans.cache_clear()


def test_every_kind_of_benchmark_runs(benchmarks):
    problem = quickstart(benchmarks)
    step = benchmarks["iteration"].Iteration()
    step.setup(problem, "gamp")
    step.time_step(problem, "gamp")
    with pytest.raises(NotImplementedError):
        step.setup(problem, "no-such-algorithm")
    with pytest.raises(NotImplementedError):
        step.setup("no such problem", "gamp")
    kernels = benchmarks["kernels"].Kernels()
    kernels.setup(problem)
    for name in ("forward", "posterior", "adjoint", "denoise"):
        getattr(kernels, f"time_{name}")(problem)
    curve = benchmarks["theory"].StateEvolution()
    curve.setup(problem)
    curve.time_point(problem)


def test_steps_and_products_take_turns(benchmarks, monkeypatch):
    products = benchmarks["products"]
    monkeypatch.setattr(products, "SECONDS", 0.01)
    for setting in ("matrices, d = 100", "adam, d = 80"):
        share = products.Products()
        share.setup(setting)
        assert 0.1 < share.track_step_over_products(setting) < 100
    other = products.Other()
    other.setup()
    other.time_products_between_components()
    other.time_tiny_cell()
    streamed = products.Streamed()
    streamed.setup()
    streamed.time_pass()


@pytest.mark.slow
def test_no_part_of_an_iteration_fails_on_any_problem(benchmarks):
    """Theory alone has no instance: it is no problem of a benchmark."""
    for problem in benchmarks["cases"].problems():
        kernels = benchmarks["kernels"].Kernels()
        kernels.setup(problem)
        for name in ("forward", "adjoint", "denoise"):
            getattr(kernels, f"time_{name}")(problem)


def test_the_gate_is_a_part_of_what_is_followed(benchmarks):
    gate = benchmarks["gate"]
    assert set(gate.PROBLEMS) <= set(benchmarks["cases"].problems())
    benchmark = gate.Accuracy()
    benchmark.params = (gate.PROBLEMS[:1],)
    found = benchmark.setup_cache()
    assert list(found) == [gate.PROBLEMS[0]]
    assert 0.5 < benchmark.track_error_over_theory(found, gate.PROBLEMS[0]) < 2
    # A cache of its own: asv knows it by the line of its function.
    assert gate.Accuracy.setup_cache is not benchmarks["accuracy"].Accuracy.setup_cache
    timed = sum(len(owner.params[0]) * sum(name.startswith(("time_", "track_")) for name in dir(owner))
                for owner in (gate.Kernels, gate.Accuracy))  # fmt: skip
    assert timed <= 40  # about four seconds each, process included, are three minutes
    assert "--bench ^gate" in (FOLDER / "README.md").read_text()


@pytest.mark.slow
def test_commands_are_typed(benchmarks, tmp_path):
    commands = benchmarks["commands"]
    assert "quickstart" in commands.suites()
    assert {"gamp", "softmax", "wishart", "mse", "attention-indexed"} <= set(
        commands.items()
    )
    took = commands.typed("--help", tmp_path)
    assert took.status == 0
    assert 0 < took.cpu < 60
    assert took.peak > 10  # Linux counts what the parent held when it began
    assert took.lines > 20
    assert took.wide == 0
    assert commands.typed("no-such-command", tmp_path).status == 2


def shorter(found, y, omega, V):
    return found._replace(mean=omega + 0.98 * (found.mean - omega))


@pytest.mark.parametrize(
    ("suite", "kind", "track", "levels", "bias"),
    [
        *(
            (
                suite,
                "Denoiser",
                "track_slope",
                None,
                lambda f, *_, k=k: f._replace(estimate=k * f.estimate),
            )
            for suite in ("quickstart", "spectral")
            for k in (1.02, 0.98)
        ),
        (
            "quickstart",
            "Denoiser",
            "track_claimed_error",
            [10.0],
            lambda f, *_: f._replace(V=1.02 * f.V),
        ),
        ("spectral", "Posterior", "track_slope", [0.5], shorter),
    ],
)
def test_a_bias_of_two_percent_is_flagged(
    benchmarks, monkeypatch, suite, kind, track, levels, bias
):
    problem = next(
        name for name in benchmarks["cases"].problems() if name.startswith(suite)
    )
    benchmark = getattr(benchmarks["identities"], kind)

    def measured():
        for level in levels or benchmark.params[1]:
            one = benchmark()
            one.setup(problem, level)
            yield getattr(one, track)(problem, level)

    before = list(measured())
    assert not any(map(flagged, before, measured()))
    parts = benchmarks["cases"].Case(problem).problem
    channel = getattr(parts.channel, "channel", parts.channel)
    owner, method = (
        (type(parts.prior), "denoise")
        if kind == "Denoiser"
        else (type(channel), "posterior")
    )
    plain = getattr(owner, method)
    monkeypatch.setattr(
        owner,
        method,
        lambda self, *given, **more: bias(plain(self, *given, **more), *given),
    )
    assert all(map(flagged, before, measured()))


INDEX = """<html><head>
<script src="https://code.jquery.com/jquery-3.3.1.min.js" integrity="sha256-x" crossorigin="anonymous"></script>
<script src="https://cdnjs.cloudflare.com/ajax/libs/flot/0.8.3/jquery.flot.min.js" onerror="fail()"></script>
<link rel="stylesheet" href="https://cdn.jsdelivr.net/npm/bootstrap@3.1.1/dist/css/bootstrap.min.css" integrity="sha256-y">
<script language="javascript" type="text/javascript"
        src="asv.js">
</script>
</head><body><a href="https://github.com/airspeed-velocity/asv/">asv</a></body></html>
"""


def publish_module():
    spec = importlib.util.spec_from_file_location(
        "asv_publish", ROOT / "suites" / "asv" / "publish.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def publisher(monkeypatch, tmp_path):
    """The script, with npm replaced by archives that are made here."""
    module = publish_module()

    def archive(name, version, expected, cache):
        path = tmp_path / f"{name}.tgz"
        wanted = next(files for other, _, _, files in module.PACKAGES if other == name)
        with tarfile.open(path, "w:gz") as tar:
            for inside in wanted:
                body = f"/* {name} {inside} */".encode()
                info = tarfile.TarInfo(f"package/{inside}")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
        return path

    monkeypatch.setattr(module, "fetch", archive)
    return module


def published(tmp_path, text=INDEX):
    html = tmp_path / "html"
    (html / "graphs" / "summary").mkdir(parents=True)
    (html / "index.html").write_text(text)
    (html / "index.json").write_text('{"project": "</script>smimbench"}')
    (html / "graphs" / "summary" / "a.json").write_text("[1, 2]")
    return html


def test_the_site_loads_nothing_from_outside(publisher, tmp_path):
    html = published(tmp_path)
    publisher.pack(html, tmp_path)
    page = (html / "index.html").read_text()
    loaded = re.findall(r'<script[^>]*src="([^"]+)"', page) + re.findall(
        r'<link[^>]*href="([^"]+)"', page
    )
    assert loaded[:3] == [
        "vendor/js/jquery.min.js",
        "vendor/js/jquery.flot.js",
        "data.js",
    ]
    assert all((html / name).exists() for name in loaded if name != "asv.js")
    assert not [name for name in loaded if name.startswith("http")]
    assert "integrity" not in page
    data = (html / "data.js").read_text()
    assert "</script>" not in data
    found = json.loads(
        data.removeprefix("window.ASV_DATA = ").rstrip(";\n").replace("<\\/", "</")
    )
    assert json.loads(found["graphs/summary/a.json"]) == [1, 2]
    assert set(found) == {"index.json", "graphs/summary/a.json"}
    publisher.pack(html, tmp_path)
    assert (html / "index.html").read_text() == page


def test_an_archive_with_another_hash_is_refused(tmp_path, monkeypatch):
    module = publish_module()
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho changed > jquery-3.3.1.tgz\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent), prepend=":")
    with pytest.raises(SystemExit, match=r"another jquery 3\.3\.1"):
        module.fetch("jquery", "3.3.1", "sha512-none", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="npm is needed once"):
        module.fetch("jquery", "3.3.1", "sha512-none", tmp_path / "cache")
