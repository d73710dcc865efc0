"""Plugins that are broken, misspelled or claim a name twice are reported and harm nothing else."""

import os

import pytest

from smimbench.registry.registry import (
    BUILT_IN,
    Registry,
    RegistryError,
    get_registry,
    set_registry,
)
from tests.helpers import CHANNEL, importable, install_package


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that Python searches as it searches site-packages; what was imported from it is forgotten."""
    folder = tmp_path / "site"
    folder.mkdir()
    with importable(folder, monkeypatch):
        yield folder


def plugin_of(registry, name):
    """The plugin of a name, which must be there exactly once."""
    (found,) = [plugin for plugin in registry.plugins if plugin.name == name]
    return found


def built_in_names(registry):
    return {
        (entry.kind, entry.name)
        for entry in registry.entries()
        if entry.distribution == BUILT_IN
    }


def test_everything_that_ships_comes_through_entry_points():
    registry = Registry()
    assert {plugin.distribution for plugin in registry.plugins} >= {BUILT_IN}
    own = [plugin for plugin in registry.plugins if plugin.distribution == BUILT_IN]
    assert {plugin.name for plugin in own} == {"attention"}
    assert all(plugin.status == "loaded" and plugin.version for plugin in own)
    assert built_in_names(registry) >= {
        ("model", "attention-indexed"),
        ("model", "sequence-multi-index"),
        ("channel", "softmax"),
        ("channel", "linear"),
        ("prior", "wishart"),
        ("prior", "gaussian"),
        ("algorithm", "gamp"),
        ("algorithm", "adam"),
    }


def test_the_same_name_may_serve_different_models():
    registry = Registry()
    first = registry.get("channel", "softmax", "attention-indexed")
    second = registry.get("channel", "softmax", "sequence-multi-index")
    assert first.item is not second.item
    with pytest.raises(RegistryError, match="exists for several models") as caught:
        registry.get("channel", "softmax")
    assert "attention-indexed" in str(caught.value)
    assert "sequence-multi-index" in str(caught.value)


def test_without_installation_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    with pytest.raises(RegistryError, match="pip install"):
        Registry()


@pytest.mark.parametrize(
    "listed", [b"\xff\xfe[smimbench]\nx = x\n", b"[console_scripts]\nno equals sign\n"]
)
def test_an_unreadable_list_of_entry_points_names_its_package_and_hides_no_other(
    site, listed
):
    install_package(site, "aa-broken", {"broken": CHANNEL})
    install_package(site, "zz-sound", {"sound": CHANNEL})
    (site / "aa_broken-1.0.dist-info" / "entry_points.txt").write_bytes(listed)
    registry = Registry()
    (problem,) = plugin_of(registry, "aa-broken").problems
    assert problem.startswith("its entry_points.txt cannot be read: ")
    assert plugin_of(registry, "sound").status == "loaded"
    assert built_in_names(registry) == built_in_names(Registry(third_party=False))
    assert not any(plugin.failed for plugin in Registry(third_party=False).plugins)


def test_a_package_without_readable_metadata_has_the_name_of_its_folder(site):
    install_package(site, "odd", {"odd_channels": CHANNEL})
    (site / "odd-1.0.dist-info" / "METADATA").write_bytes(b"Name: \xff\n")
    plugin = plugin_of(Registry(), "odd_channels")
    assert (plugin.status, plugin.distribution) == ("loaded", "odd-1.0")


BROKEN = {
    "raises": ("raise RuntimeError('no license\\nfound')", "RuntimeError: no license found"),
    "imports_nothing": ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
    "syntax": ("def half(:\n", "SyntaxError"),
    "leaves": ("raise SystemExit(3)", "SystemExit: 3"),
    "says_nothing": ("raise ValueError", "ValueError: no message"),
    "misspelled": (CHANNEL.replace("register_channels", "register_chanels"), "did you mean 'smimbench_register_channels'"),
    "unmarked": (CHANNEL.replace("@hookimpl", ""), "must be decorated with @smimbench.hookimpl"),
    "no_hook": ("x = 1", "the plugin has no hook; implement one of smimbench_register_"),
    "no_argument": (CHANNEL.replace("(register):", "():").replace("register(Twice)", "Twice"), "take an argument, register"),
    "wrong_argument": (CHANNEL.replace("(register):", "(registry):"), "registry"),
    "instance": (CHANNEL.replace("register(Twice)", "register(Twice())"), "not a class"),
    "no_reference": (CHANNEL.replace('    reference: ClassVar[str] = "none"\n', ""), "channel Twice: the class lacks reference"),
    "no_posterior": (CHANNEL.replace("def posterior", "def _posterior"), "needs posterior or log_likelihood"),
    "no_forward": (CHANNEL.replace("def forward", "def _forward"), "channel Twice: the class lacks forward"),
    "bad_name": (CHANNEL.replace('"twice"', '"Two Times"'), "name must be lower-case"),
    "bad_version": (CHANNEL.replace("[int] = 1", '[int] = "1.0"'), "version must be an integer, got '1.0'"),
    "bad_capabilities": (CHANNEL.replace("= Capabilities(models=", "= dict(models="), "capabilities must be"),
    "twice_itself": (CHANNEL + "    register(type('Again', (Twice,), {}))\n", "registered twice by"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_is_kept_with_its_reason_and_harms_nothing(site, name):
    text, reason = BROKEN[name]
    install_package(site, "aa-broken", {f"broken_{name}": text})
    install_package(site, "zz-sound", {"sound": CHANNEL})
    registry = Registry()
    plugin = plugin_of(registry, f"broken_{name}")
    assert plugin.failed
    assert plugin.status == "failed"
    assert not plugin.entries
    assert len(plugin.problems) == 1
    assert reason in plugin.problems[0]
    assert "\n" not in plugin.problems[0]
    assert plugin_of(registry, "sound").status == "loaded"
    assert registry.get("channel", "twice").distribution == "zz-sound"
    assert built_in_names(registry) == built_in_names(Registry(third_party=False))


def test_a_package_that_fails_half_way_registers_nothing(site):
    text = (
        CHANNEL
        + "\n\n@hookimpl\ndef smimbench_register_priors(register):\n    raise OSError('disk')\n"
    )
    install_package(site, "half", {"half": text})
    registry = Registry()
    assert plugin_of(registry, "half").failed
    assert not [entry for entry in registry.entries() if entry.distribution == "half"]


def test_a_name_claimed_by_two_packages_needs_the_long_form(site):
    install_package(site, "first-pack", {"first_mod": CHANNEL})
    install_package(site, "second-pack", {"second_mod": CHANNEL.replace("2.0", "3.0")})
    registry = Registry()
    with pytest.raises(RegistryError) as caught:
        registry.get("channel", "twice", "sequence-multi-index")
    assert "first-pack:twice" in str(caught.value)
    assert "second-pack:twice" in str(caught.value)
    assert (
        registry.get("channel", "first-pack:twice", "sequence-multi-index").item().gain
        == 2.0
    )
    assert (
        registry.get("channel", "second-pack:twice", "sequence-multi-index").item().gain
        == 3.0
    )
    plugin = plugin_of(registry, "second_mod")
    assert plugin.status == "loaded, with problems"
    assert plugin.problems == [
        "channel 'twice' exists in first-pack and in second-pack: 'first-pack:twice' or 'second-pack:twice'"
    ]


def test_a_package_cannot_take_a_built_in_name_and_may_share_one_with_another_model(
    site,
):
    install_package(site, "thief", {"thief": CHANNEL.replace('"twice"', '"linear"')})
    install_package(site, "first-pack", {"first_mod": CHANNEL})
    install_package(
        site,
        "other",
        {"other_mod": CHANNEL.replace("sequence-multi-index", "attention-indexed")},
    )
    registry = Registry()
    assert (
        registry.get("channel", "linear", "sequence-multi-index").distribution
        == BUILT_IN
    )
    assert (
        registry.get("channel", "smimbench:linear", "sequence-multi-index").distribution
        == BUILT_IN
    )
    assert (
        registry.get("channel", "thief:linear", "sequence-multi-index").distribution
        == "thief"
    )
    (problem,) = plugin_of(registry, "thief").problems
    assert problem == (
        "channel 'linear' exists in smimbench and in thief: 'linear' means the one of smimbench, 'thief:linear' this one"
    )
    assert not plugin_of(registry, "other_mod").problems
    assert registry.get("channel", "twice", "attention-indexed").distribution == "other"
    entries = registry.entries("channel")
    assert [entry.distribution for entry in entries].index("first-pack") > max(
        i for i, entry in enumerate(entries) if entry.distribution == BUILT_IN
    )
    assert all(entry.summary for entry in entries)


def test_files_folders_and_packages_are_loaded_unless_third_parties_are_shut_out(
    site, tmp_path
):
    (tmp_path / "mine.py").write_text(CHANNEL)
    (tmp_path / "bad.py").write_text("1 / 0")
    package = tmp_path / "pack"
    package.mkdir()
    (package / "_parts.py").write_text(CHANNEL.replace('"twice"', '"thrice"'))
    (package / "__init__.py").write_text(
        "from ._parts import smimbench_register_channels\n"
    )
    install_package(
        site, "my-channels", {"my_channels": CHANNEL.replace('"twice"', '"again"')}
    )
    registry = Registry([str(tmp_path / "mine.py")])
    assert plugin_of(registry, "mine").origin == str(tmp_path / "mine.py")
    assert (
        registry.get("channel", "twice", "sequence-multi-index").item(gain=5.0).gain
        == 5.0
    )
    assert registry.get("channel", "mine:twice").distribution == "mine"
    registry = Registry([str(tmp_path), str(package)])
    assert [plugin_of(registry, name).status for name in ("mine", "pack", "bad")] == [
        "loaded",
        "loaded",
        "failed",
    ]
    assert plugin_of(registry, "bad").problems == [
        "ZeroDivisionError: division by zero"
    ]
    assert registry.get("channel", "pack:thrice")
    registry = Registry([str(tmp_path)], third_party=False)
    assert {plugin.distribution for plugin in registry.plugins} == {BUILT_IN}


@pytest.mark.parametrize("make", [None, "folder"])
def test_a_path_that_leads_nowhere_is_reported(tmp_path, make):
    path = tmp_path / "nothing"
    if make:
        path.mkdir()
    plugin = plugin_of(Registry([str(path)]), "nothing")
    assert plugin.failed
    assert str(path) in plugin.problems[0]


def test_the_environment_names_drop_ins(tmp_path, monkeypatch):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text(CHANNEL)
    two.write_text(CHANNEL.replace('"twice"', '"thrice"'))
    monkeypatch.setenv("SMIMBENCH_PLUGINS", f"{one}{os.pathsep}{two}")
    set_registry(None)
    try:
        names = {entry.name for entry in get_registry().entries("channel")}
        assert names >= {"twice", "thrice"}
        assert get_registry() is get_registry()
        monkeypatch.setenv("SMIMBENCH_NO_PLUGINS", "1")
        set_registry(None)
        assert not {entry.name for entry in get_registry().entries("channel")} & {
            "twice",
            "thrice",
        }
    finally:
        set_registry(None)


@pytest.mark.parametrize(
    ("kind", "name", "model", "words"),
    [
        (
            "channel",
            "sofmax",
            "attention-indexed",
            ["unknown channel 'sofmax'", "did you mean 'softmax'"],
        ),
        (
            "prior",
            "zzz",
            None,
            ["unknown prior 'zzz'", "choose from", "gaussian", "wishart"],
        ),
        (
            "prior",
            "wishart",
            "sequence-multi-index",
            ["belongs to model attention-indexed", "gaussian"],
        ),
        (
            "prior",
            "gaussian",
            "attention-indexed",
            ["belongs to model sequence-multi-index", "wishart"],
        ),
        (
            "channel",
            "nobody:softmax",
            "attention-indexed",
            ["unknown channel 'nobody:softmax'"],
        ),
    ],
)
def test_a_wrong_name_is_answered_with_what_would_be_right(kind, name, model, words):
    with pytest.raises(RegistryError) as caught:
        Registry(third_party=False).get(kind, name, model)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "    learning_rate = 0.02\n",
            "learning_rate = 0.02 has no effect, the default stays 0.1: write learning_rate: float",
        ),
        (
            "    steps: int = 3\n",
            "steps = 3 has no effect, the default stays None: write steps: ",
        ),
        (
            "    name, learning_rate = 'mine', 0.02\n",
            "learning_rate = 0.02 has no effect",
        ),
    ],
    ids=["no annotation", "no decorator", "with others"],
)
def test_a_default_that_the_dataclass_ignores_is_refused(tmp_path, body, said):
    decorator = "" if "steps" in body else "@dataclass(frozen=True)\n"
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport smimbench\nfrom smimbench_attention.algorithms.adam import Adam\n"
        f"{decorator}class Mine(Adam):\n{body}"
        "@smimbench.hookimpl\ndef smimbench_register_algorithms(register):\n    register(Mine)\n"
    )
    plugin = plugin_of(Registry([str(tmp_path / "mine.py")]), "mine")
    assert plugin.failed
    assert said in plugin.problems[0]
