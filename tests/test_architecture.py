"""The house: which room may import which, what knows Keras or a backend, how long things may be."""

import ast
import configparser
import re
import typing
from collections import Counter

import pytest
from conftest import ROOT

import keras_vit

PACKAGE = ROOT / "keras_vit"
# A module imports from lower lines and its own room; rooms of one line are strangers to each other.
TIERS = [
    {"checks", "version", "files", "silence"},
    {"variants", "posembed"},
    {"recipes", "datasets", "keras_private"},
    {"layers", "preprocessing", "augmentation", "images"},
    {"model", "data"},
    {"weights", "evaluation", "distillation", "training"},
    {"builders", "exporting"},
    {"runs"},
    {"api"},
    {"cli"},
    {"__main__"},
]
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "common", "helpers", "misc", "core", "base"}
WITH_KERAS = {"weights.load", "weights.save"}  # of the rooms below; the rest needs none
NO_KERAS = {"checks", "version", "files", "silence", "variants", "posembed", "datasets", "preprocessing", "__main__"}
NO_KERAS |= {"runs", "runs.options", "exporting", "exporting.formats"}  # what a command line knows of its options
NO_KERAS_ROOMS = {"recipes", "cli", "images"}  # every module of them
BACKENDS = {"tensorflow", "jax", "torch"}
# Inside functions, for what is one backend's alone:
KNOW_A_BACKEND = {"layers", "augmentation", "images", "model", "data", "training", "runs", "evaluation", "exporting"}
KNOW_A_BACKEND |= {"cli"}
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 400, 45  # of a function without its docstring


def module_of(path):
    """`""` for the package itself, `"data"` for a room's `__init__`, else as `"data.folder"`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}
TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def room_of(module):
    return module.split(".")[0]


def tier_of(room):
    return next((index for index, rooms in enumerate(TIERS) if room in rooms), None)


def needs_no_keras(module):
    room = room_of(module)
    return module in NO_KERAS or room in NO_KERAS_ROOMS or (room == "weights" and module not in WITH_KERAS)


def imports_of(module, only_at_import=False):
    """Names of modules imported anywhere in a module, or as it is imported; `from a import b` as `a.b` if it is one."""
    tree = TREES[module]
    for node in tree.body if only_at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: imports are absolute"
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if inner(f"{node.module}.{alias.name}") in MODULES else node.module


def inner(name):
    """Name of a module without the package's, `None` for a stranger's."""
    return name.removeprefix("keras_vit").removeprefix(".") if room_of(name) == "keras_vit" else None


def ours_of(module, only_at_import=False):
    """Modules of the package that a module imports."""
    return {inner(name) for name in imports_of(module, only_at_import)} & set(MODULES)


def test_every_room_has_a_place():
    rooms = {room_of(module) for module in MODULES} - {""}
    assert rooms == set().union(*TIERS)
    assert sum(map(len, TIERS)) == len(rooms)
    assert set(MODULES) >= NO_KERAS | WITH_KERAS


def test_module_imports_from_lower_rooms_and_its_own_only():
    wrong = []
    for module in filter(None, MODULES):
        room = room_of(module)
        for other in ours_of(module):
            if room_of(other) != room and not (other and tier_of(room_of(other)) < tier_of(room)):
                wrong.append(f"{module} imports {other or 'keras_vit, the door, whose names are those of lower rooms'}")
    assert not wrong


def test_imports_have_no_circle():
    """Not even by an import inside a function; a room's `__init__` counts as imported before its modules."""
    graph = {module: set(ours_of(module)) - {module} for module in MODULES}
    waiting = dict(graph)
    while waiting:
        free = {module for module, needs in waiting.items() if not needs & set(waiting)}
        assert free, f"a circle among {sorted(waiting)}"
        waiting = {module: needs for module, needs in waiting.items() if module not in free}


def test_facts_files_images_and_options_do_not_import_keras():
    for module in filter(needs_no_keras, MODULES):
        imported = set(imports_of(module, only_at_import=True))
        assert not {room_of(name) for name in imported} & {"keras", *BACKENDS}, module
        assert all(map(needs_no_keras, ours_of(module, only_at_import=True))), module


def test_no_module_needs_one_backend_or_private_keras():
    for module in MODULES:
        may_know = room_of(module) in KNOW_A_BACKEND
        assert not {room_of(name) for name in imports_of(module, only_at_import=may_know)} & BACKENDS, module
        assert not any(name.startswith("keras.src") for name in imports_of(module)), module


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=lambda path: path.name)
def test_file_is_short_and_has_a_telling_name(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES
    assert path.stem not in FORBIDDEN_NAMES


def test_no_name_of_a_module_stands_twice_in_a_room():
    names = Counter((room_of(module), module.rpartition(".")[2]) for module in MODULES)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_other_file_is_shipped():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = setup["options.package_data"]["keras_vit"].replace("\n", "").split(",")
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern.strip())}
    others = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert others - set(SOURCES) == shipped


def test_functions_are_short():
    long = []
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
                if (lines := node.end_lineno - node.lineno + 1 - docstring) > MOST_LINES_OF_A_FUNCTION:
                    long.append(f"{module}.{node.name}: {lines} lines")
    assert long == []


def test_module_says_what_it_is_for():
    for module, tree in TREES.items():
        docstring = ast.get_docstring(tree)
        assert docstring, module
        assert len(docstring.splitlines()) <= 8, module


def test_package_holds_no_lambda_layer_assert_or_unsafe_load():
    for module, path in MODULES.items():
        assert not re.search(r"Lambda\(|safe_mode=False|^\s*assert ", path.read_text(), re.MULTILINE), module


def test_public_names_exist_and_are_documented():
    for name in keras_vit.__all__:
        value = getattr(keras_vit, name)
        assert name.isupper() or value.__doc__, name


def test_public_functions_are_annotated():
    for name in keras_vit.__all__:
        function = getattr(keras_vit, name)
        if not isinstance(function, type) and callable(function):
            missing = set(function.__code__.co_varnames[: function.__code__.co_argcount]) - set(
                typing.get_type_hints(function)
            )
            assert not missing, f"{name}: {missing}"
