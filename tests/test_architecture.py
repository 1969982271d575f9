"""The house: which room may import which, what knows Keras or a backend, how long things may be."""

import ast
import configparser
import contextlib
import dataclasses
import functools
import importlib
import inspect
import pydoc
import re
import sys
import textwrap
import types
import typing
from collections import Counter
from inspect import Parameter

import keras
import totals
from conftest import ROOT

import keras_vit
from keras_vit import api
from keras_vit.config import public_names
from keras_vit.config.variants import BUILDERS

sys.path.append(str(ROOT / "docs" / "generators"))
import house

PACKAGE = ROOT / "keras_vit"
# A module imports from lower lines and its own room; rooms of one line are strangers to each other.
TIERS = [
    {"synonyms", "renamed"},
    {"annotations", "checks", "version", "files", "silence"},
    {"config", "pages"},
    {"cache", "keras_private"},
    {"images", "text"},
    {"kernels", "dense", "selfsupervised"},
    {"layers"},
    {"model"},
    {"data", "weights"},
    {"builders", "analysis"},
    {"training", "encoder_builders", "text_builders"},
    {"dense_models"},
    {"exporting", "evaluation"},
    {"tasks"},
    {"runs"},
    {"embedding", "vtab_benchmark"},
    {"api"},
    {"cli"},
    {"__main__"},
]
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "common", "helpers", "misc", "core", "base"}
WITH_KERAS = {"weights.load", "weights.save"}  # of the rooms below; the rest needs none
NO_KERAS = {"synonyms", "renamed", "annotations", "checks", "version", "files", "cache", "silence", "__main__"}
NO_KERAS |= {"runs", "runs.options", "exporting", "exporting.formats"}  # what a command line knows of its options
NO_KERAS |= {"exporting.staging"}
NO_KERAS |= {"runs.run_files", "runs.finished_runs", "runs.messages"}  # and of a run that has finished
NO_KERAS |= {"runs.pretraining", "runs.pretraining.recipes"}
NO_KERAS |= {"runs.load", "exporting.onnx_session", "exporting.report", "exporting.request"}
NO_KERAS |= {"exporting.budget", "exporting.onnx_graph", "exporting.spec"}
NO_KERAS |= {f"exporting.formats.{name}" for name in ("format", "litert", "onnx", "openvino", "saved_model")}
NO_KERAS |= {"training", "training.hosts"}  # a launcher's facts, and:
NO_KERAS |= {"training.hosts.processes"}
NO_KERAS_ROOMS = {"text", "config", "pages", "cli", "tasks", "images", "embedding"}  # every module of them
BACKENDS = {"tensorflow", "jax", "torch"}
# Inside functions, for what is one backend's alone:
KNOW_A_BACKEND = {"kernels", "layers", "images", "model", "data", "training", "runs", "evaluation", "exporting"}
KNOW_A_BACKEND |= {"cli", "keras_private", "analysis", "dense"}
PRIVATE = re.compile(r"_[a-zA-Z]\w*")  # names, but no __dunder__ and no bare _
MOST_FILES, FEWEST_LINES = 16, 40  # of a folder; of a module that a single other one imports
DOCUMENTED = {
    "sys._getframe",
    "sys._current_frames",
    "os._exit",
    "pickle._Unpickler",
}  # public in spite of their underscores


def module_of(path):
    """`""` for the package itself, `"data"` for a room's `__init__`, else as `"data.image_folder"`."""
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


def test_picture_of_the_house_is_that_of_today():
    """With the floors of this file, and the imports that it finds."""
    assert house.floors() == list(map(sorted, TIERS))
    for number, rooms in enumerate(TIERS):
        modules = [module for module in filter(None, MODULES) if room_of(module) in rooms]
        others = {tier_of(room_of(other)) for module in modules for other in filter(None, ours_of(module))}
        assert house.needs(sorted(rooms), house.floors()[:number]) == others - {number}
    picture = house.svg()
    assert house.PICTURE.read_text() == picture, "run python docs/generators/house.py"


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


def test_module_takes_no_room_from_the_door_that_the_door_imports_all_for():
    """`from keras_vit import room` would import `api`, and so what waits for that module; the door keeps these."""
    kept = {*public_names.MODULES, "kernels", "keras_private"}
    taken = {name for module in set(MODULES) - {"", "api"} for name in from_the_door(TREES[module])}
    assert taken & {room_of(module) for module in MODULES} <= kept


def from_the_door(tree):
    return (
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "keras_vit"
        for alias in node.names
    )


def test_facts_files_images_and_options_do_not_import_keras():
    for module in filter(needs_no_keras, MODULES):
        imported = set(imports_of(module, only_at_import=True))
        assert not {room_of(name) for name in imported} & {"keras", *BACKENDS}, module
        assert all(map(needs_no_keras, ours_of(module, only_at_import=True))), module


def test_no_module_needs_one_backend():
    for module in MODULES:
        may_know = room_of(module) in KNOW_A_BACKEND
        assert not {room_of(name) for name in imports_of(module, only_at_import=may_know)} & BACKENDS, module


def test_no_module_reads_what_is_private_elsewhere():
    """Neither of another package nor of another module of ours: what Keras hides is used by `keras_private` alone."""
    found = {module: [*private_reads(tree), *private_imports(tree)] for module, tree in TREES.items()}
    assert found.pop("keras_private")
    assert {module: names for module, names in found.items() if names} == {}


def private_reads(tree):
    """`x._name` of anything but `self`, `cls` and `super()`, and of these what the module does not define itself."""
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    defined |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and stores(node)}
    defined |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and stores(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            ours = ast.unparse(node.value) in ("self", "cls", "super()") and node.attr in defined
            if not ours and ast.unparse(node) not in DOCUMENTED:
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "getattr",
            "setattr",
            "hasattr",
            "delattr",
        ):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if PRIVATE.fullmatch(name) and not (ast.unparse(node.args[0]) in ("self", "cls") and name in defined):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def stores(node):
    return isinstance(node.ctx, ast.Store)


def private_imports(tree):
    """Imports of `_name`, of `a._b`, and of what Keras and TensorFlow keep to themselves without an underscore."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in (module + alias.name for alias in node.names):
                hidden = name.startswith(("keras.src.", "tensorflow.python."))  # no underscore, but private
                if hidden or any(PRIVATE.fullmatch(part) for part in name.split(".")):
                    yield f"line {node.lineno}: import of {name}"


def test_private_reads_and_imports_are_found():
    code = """
import keras._tf_keras
from keras.src import backend
from keras_vit.version import __version__, _DISTRIBUTION
class Layer:
    def __init__(self):
        self._ours, self.__class__ = 1, Layer
    def call(self, other):
        super()._theirs
        return self._ours, self._theirs, self._parts._ours, other._ours, getattr(other, "_name"), getattr(self, "_ours")
"""
    tree = ast.parse(code)
    lines = [int(found.split(":")[0].removeprefix("line ")) for found in (*private_imports(tree), *private_reads(tree))]
    assert sorted(lines) == [2, 3, 4, 9, *[10] * 5]


def test_no_class_overrides_what_keras_keeps_private(tiny):
    """Not by accident either: a private name of ours must be none that Keras' class has, defines or assigns."""
    checked = [found for found in classes_of_keras() if found.__module__ != "keras_vit.keras_private"]
    assert type(tiny) in checked  # which became a functional model as it was built
    assert [f"{ours.__name__}: {both}" for ours in checked if (both := shared_private_names(ours))] == []
    overriding = type(
        "Overriding", (keras.optimizers.Optimizer,), {"__module__": "keras_vit", "_clip_gradients": 1, "_ours": 2}
    )
    assert shared_private_names(overriding) == {"_clip_gradients"}


def classes_of_keras():
    """Our classes that derive from one of Keras."""
    for module in filter(lambda module: module != "__main__", MODULES):
        name = f"keras_vit.{module}".removesuffix(".")
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, type) and value.__module__ == name and any(map(is_of_keras, value.__mro__)):
                yield value


def is_of_keras(found):
    return found.__module__.split(".")[0] == "keras"


def shared_private_names(ours):
    """Private names that a class has of its own and a base has too that is not of this package."""
    theirs = [base for base in ours.__mro__ if not base.__module__.startswith(("keras_vit", "builtins"))]
    return private_names(ours) & set().union(*map(private_names, theirs))


@functools.cache
def private_names(found):
    """What a class defines, and what its methods assign to `self`."""
    names = set(vars(found))
    with contextlib.suppress(OSError):  # of a class without a source
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(found)))):
            if isinstance(node, ast.Attribute) and stores(node) and ast.unparse(node.value) == "self":
                names.add(node.attr)
    return {name for name in names if PRIVATE.fullmatch(name)}


def test_files_have_names_of_their_own_subject():
    for path in (*SOURCES, *TESTS):
        assert path.stem not in FORBIDDEN_NAMES, path


def test_folder_keeps_its_total_of_lines():
    """A total of `totals.csv` goes up only in a commit that says why; `python tests/totals.py` takes it down."""
    most, lines = totals.read(), totals.lines_of_folders()
    assert {folder: count for folder, count in lines.items() if count > most.get(folder, 0)} == {}


def test_folder_can_be_read_aloud():
    """At most 16 files, and none so short that it belongs into the only one that imports it."""
    counts = Counter(path.parent for path in SOURCES)
    assert {str(folder): count for folder, count in counts.items() if count > MOST_FILES} == {}
    importers = {module: set() for module in MODULES}
    for module in MODULES:
        for other in ours_of(module):
            importers[other].add(module)
    fragments = []
    for module, path in MODULES.items():
        own_subject = path.stem == "__init__" or path.with_suffix(".pyi").exists()  # whose names a stub has
        short = not own_subject and len(path.read_text().splitlines()) < FEWEST_LINES
        if short and len(importers[module] - {module}) == 1:
            fragments.append(module)
    assert fragments == []


def test_every_other_file_is_shipped():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = setup["options.package_data"]["keras_vit"].replace("\n", "").split(",")
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern.strip())}
    others = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert PACKAGE / "py.typed" in others  # by which type checkers know that there are types (PEP 561)
    assert others - set(SOURCES) == shipped


def test_module_says_what_it_is_for():
    for module, tree in TREES.items():
        docstring = ast.get_docstring(tree)
        assert docstring, module
        assert len(docstring.splitlines()) <= 8, module


def test_package_holds_no_lambda_layer_assert_or_unsafe_load():
    for module, path in MODULES.items():
        assert not re.search(r"Lambda\(|safe_mode=False|^\s*assert ", path.read_text(), re.MULTILINE), module


def test_ranges_have_a_dtype():
    """Keras makes them int16 where `floatx` is float16, for which TensorFlow has no kernel and which ends at 32,767."""
    for module, path in MODULES.items():
        assert not re.search(r"\bops\.arange\((?!.*dtype=)", path.read_text()), module


def test_public_names_exist_and_are_documented():
    assert dir(keras_vit) == sorted([*keras_vit.__all__, "__version__"])
    for name in keras_vit.__all__:
        value = getattr(keras_vit, name)
        assert name.isupper() or value.__doc__, name


def test_import_of_the_package_knows_where_each_public_name_is():
    names = {**public_names.MODULES, **public_names.PLACES}
    assert sorted(names) == sorted(api.__all__)
    for name, place in names.items():
        found = importlib.import_module(f"keras_vit.{place}")
        found = found if name in public_names.MODULES else getattr(found, name)
        assert getattr(keras_vit, name) is getattr(api, name) is found


def test_import_of_the_package_brings_all_that_registers_with_keras():
    """So that a saved model reloads after it; and not the rooms above, which come when they are asked for."""
    brought, waiting = set(), list(public_names.REGISTERED)
    while waiting:
        if (module := waiting.pop()) not in brought:
            brought.add(module)
            waiting += ours_of(module, only_at_import=True)
    registered = {module for module, path in MODULES.items() if "@keras.saving.register_ker" in path.read_text()}
    assert registered <= brought
    assert len(brought) < 105
    assert {room_of(module) for module in brought}.isdisjoint({"weights", "exporting", "evaluation", "runs", "data"})


def test_public_functions_are_annotated():
    """With every argument and the result, by names that can be looked up; so are methods of public classes."""
    missing = {}
    for name, function in public_functions().items():
        assert typing.get_type_hints(function), name
        signature = inspect.signature(function)
        found = [
            parameter.name for parameter in signature.parameters.values() if parameter.annotation is Parameter.empty
        ]
        found += ["return"] if signature.return_annotation is Parameter.empty else []
        if found := [name for name in found if name not in ("self", "cls")]:
            missing[name] = found
    assert missing == {}


def public_functions():
    """`{name: function}`: those of the package and of `keras_vit.layers`, and the methods of public classes."""
    found = {}
    for module in (keras_vit, keras_vit.layers):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type):
                found |= {method.__qualname__: method for method in public_methods(value)}
            elif callable(value) and not isinstance(value, types.ModuleType):
                found[name] = value
    assert {"build", "ViTB16", "SGD.__init__", "Evaluation.classes", "TransformerBlock.call"} <= set(found)
    return found


def public_methods(found):
    """Functions of a class and of its bases of this package: methods, properties, and what is called by `()`."""
    for base in found.__mro__:
        if base.__module__.startswith("keras_vit"):
            for name, value in vars(base).items():
                function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                named = name == "__call__" or not name.startswith("_")
                named |= name == "__init__" and not dataclasses.is_dataclass(base)  # whose fields have types anyway
                if named and inspect.isfunction(function) and function.__module__ == base.__module__:
                    yield function


def test_builders_show_the_arguments_of_build():
    config, *arguments = inspect.signature(keras_vit.build).parameters.values()
    assert config.name == "config"
    for name in BUILDERS:
        builder = getattr(keras_vit, name)
        assert [*inspect.signature(builder).parameters.values()] == arguments
        assert f"{name}(include_top: bool = True, weights: " in pydoc.plain(pydoc.render_doc(builder))
