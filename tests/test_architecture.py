"""The house: which room may import which, how long a file may be, and what no code may contain."""

import ast
import re

import pytest
from conftest import ROOT

import keras_vit

TIERS = [
    {"variants", "posembed"},
    {"recipes", "datasets"},
    {"layers", "preprocessing", "augmentation", "accumulation"},
    {"weights"},
    {"vit", "builders"},
    {"distillation", "data"},
    {"evaluation"},
    {"training"},
    {"exporting"},
    {"api"},
    {"cli"},
    {"__main__"},
]
SOURCES = sorted((ROOT / "keras_vit").rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "common", "helpers", "misc", "core", "base"}
WITH_KERAS = {"weights.load", "weights.save", "weights.deferred"}  # of the rooms below; the rest needs none
NO_KERAS = {"variants", "posembed", "datasets", "preprocessing", "__main__"}
NO_KERAS_ROOMS = {"recipes", "cli"}  # every module of them
BACKENDS = {"tensorflow", "jax", "torch"}
# Inside functions, for what is one backend's alone:
KNOW_A_BACKEND = {"layers", "augmentation", "accumulation", "data", "training", "evaluation", "exporting", "cli"}


def module_of(path):
    return ".".join(path.relative_to(ROOT / "keras_vit").with_suffix("").parts)


def needs_no_keras(module):
    room = room_of(module)
    return module in NO_KERAS or room in NO_KERAS_ROOMS or (room == "weights" and module not in WITH_KERAS)


def imports_of(path, only_at_import=False):
    """Names of modules imported anywhere in a file, or as it is imported; `from a import b` as `a` and `a.b`."""
    tree = ast.parse(path.read_text())
    for node in tree.body if only_at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(module):
    return module.split(".")[0]


def tier_of(room):
    return next((index for index, rooms in enumerate(TIERS) if room in rooms), None)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_module_imports_from_lower_tiers_and_its_own_room_only(path):
    room = room_of(module_of(path))
    if room == "__init__":
        return
    assert tier_of(room) is not None, f"{room} has no tier: add it to the map"
    for name in imports_of(path):
        if name.startswith("keras_vit."):
            other = room_of(name.removeprefix("keras_vit."))
            allowed = other == room or tier_of(other) < tier_of(room) or {room, other} <= {"vit", "builders"}
            allowed = allowed or {room, other} == {"posembed", "variants"}
            assert allowed, f"{room} imports {other}"


@pytest.mark.parametrize("path", [p for p in SOURCES if needs_no_keras(module_of(p))], ids=module_of)
def test_facts_files_and_downloads_do_not_import_keras(path):
    imported = set(imports_of(path, only_at_import=True))
    assert not {room_of(name) for name in imported} & {"keras", *BACKENDS}
    inside = {name.removeprefix("keras_vit.") for name in imported if name.startswith("keras_vit.")}
    assert all(
        needs_no_keras(name) for name in inside if (ROOT / "keras_vit" / f"{name.replace('.', '/')}.py").exists()
    )


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_no_module_needs_one_backend_or_private_keras(path):
    may_know = room_of(module_of(path)) in KNOW_A_BACKEND
    for name in imports_of(path, only_at_import=may_know):
        assert room_of(name) not in BACKENDS
    assert not any(name.startswith("keras.src") for name in imports_of(path))


def test_every_module_without_keras_exists():
    assert {module_of(path) for path in SOURCES} >= NO_KERAS | WITH_KERAS


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda p: p.name)
def test_file_is_at_most_400_lines_and_has_a_telling_name(path):
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in FORBIDDEN_NAMES


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_module_says_what_it_is_for(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert len(docstring.splitlines()) <= 8


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_package_holds_no_lambda_layer_assert_or_unsafe_load(path):
    source = path.read_text()
    assert not re.search(r"Lambda\(|safe_mode=False|^\s*assert ", source, re.MULTILINE)


def test_public_names_exist_and_are_documented():
    for name in keras_vit.__all__:
        value = getattr(keras_vit, name)
        assert name.isupper() or value.__doc__, name
