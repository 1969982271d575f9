"""The reference: a page for each task, with a table of its names, and what the docstrings say of each.

`docs/conf.py` writes the pages into `docs/reference` at every build. Tasks and their order are the comments of
`keras_vit/api.py`: the first line above some names is the title of their page, and the next says what they are for.
"""

import dataclasses
import inspect
import re
from pathlib import Path

import keras_vit

NO_CONTENTS = ":html_theme.sidebar_secondary.remove: true\n"  # beside a page, whose table takes their place
BUILDER = re.compile(r"Builds (?P<kind>\w+) (?P<name>\S+), as `keras_vit\.(?P<build>build\w*)\(")  # a docstring's start
HEAD = """\
Reference
=========

All names that `import keras_vit` brings, by task. In a Python session `help(keras_vit.build)` says the same.

Examples are run by a test. Beside what they make themselves, they use ``np`` (NumPy), ``keras`` and:

.. code-block:: python

   model = keras_vit.ViTTi16(num_layers=2, input_shape=(32, 48, 3), classes=3)  # random weights
   images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 48, 3)).astype("float32")
   photos = Path("photos")  # 30 JPEGs in photos/disc, photos/stripes and photos/tiles

"""


@dataclasses.dataclass(frozen=True)
class Group:
    """The names for one task.

    Args:
        title: the heading of its page.
        about: a sentence on what the names are for.
        names: the most important first.
    """

    title: str
    about: str
    names: tuple[str, ...]

    @property
    def page(self) -> str:
        return re.sub(r"\W+", "_", self.title.lower()).strip("_")


def groups() -> list[Group]:
    """The groups of `keras_vit.api`, and behind the first one the encoders."""
    text = inspect.getsource(keras_vit.api).partition("__all__ = [\n")[2].partition("]\n")[0]
    found = []
    for title, about, names in re.findall(r" +# (.*)\n +# (.*)\n((?: +\"\w+\",\n)+)", text):
        found.append(Group(title, about, tuple(re.findall(r"\w+", names))))
    encoders = "DINOv2, CLIP, SigLIP and others, with a builder for each size."
    return [found[0], Group("Build an encoder", encoders, tuple(keras_vit.encoder_builders.__all__)), *found[1:]]


def write(folder: Path) -> None:
    """Writes the pages, and an index of them, in place of all that the folder has."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    index = [HEAD, *_table((f":doc:`{group.title} <{group.page}>`", group.about) for group in groups())]
    index += [".. toctree::", "   :hidden:", "", *(f"   {group.page}" for group in groups()), ""]
    (folder / "index.rst").write_text("\n".join(index))
    for group in groups():
        (folder / f"{group.page}.rst").write_text("\n".join(_page(group)))


def _page(group: Group) -> list[str]:
    """Lines of reStructuredText: the table, every name with its docstring, and the builders, which share one."""
    values = dict(pair for name in group.names for pair in _values(name))
    shared = {name: found for name, value in values.items() if (found := BUILDER.match(inspect.getdoc(value) or ""))}
    own = {name: value for name, value in values.items() if name not in shared}
    rows = [(f":py:obj:`{name} <keras_vit.{name}>`", _about(value)) for name, value in own.items()]
    lines = [NO_CONTENTS, group.title, "=" * len(group.title), "", group.about, ""]
    if shared and own:
        rows.append((f":ref:`{len(shared)} builders <builders>`", f"{', '.join(list(shared)[:3])}, ..."))
    lines += _table(rows) if rows else []
    lines += [_directive(f"keras_vit.{name}", value) for name, value in own.items()]
    return [*lines, *_builders(shared, with_title=bool(own))]


def _builders(found: dict[str, re.Match], with_title: bool) -> list[str]:
    """One entry for the builders of each family, with what they build."""
    families: dict[tuple[str, str], dict[str, str]] = {}
    for name, match in found.items():
        family = match["name"].partition("/")[0] if match["kind"] == "encoder" else match["kind"]
        families.setdefault((match["build"], family), {})[name] = match["name"]
    lines = [".. _builders:", "", "Builders by name", "----------------", ""] if found and with_title else []
    for (build, _), names in families.items():
        first, *others = (f"keras_vit.{name}(**arguments)" for name in names)
        made = ", ".join(f'``"{name}"``' for name in names.values())
        lines += [f".. py:function:: {first}", *(f"              {other}" for other in others), ""]
        lines += [f"   Builds {made}. Takes the other arguments of :py:obj:`keras_vit.{build}`.", ""]
    return lines


def _values(name: str) -> list[tuple[str, object]]:
    """A public name and what it is; of a module the same of each of its names."""
    value = getattr(keras_vit, name)
    if not inspect.ismodule(value):
        return [(name, value)]
    names = getattr(value, "__all__", None) or [each for each, found in vars(value).items() if _is_own(found, value)]
    return [(f"{name}.{each}", getattr(value, each)) for each in names]


def _is_own(value: object, module: object) -> bool:
    return getattr(value, "__module__", None) == module.__name__ and not value.__name__.startswith("_")


def _about(value: object) -> str:
    """The first line of a docstring, or what a table of the package has."""
    if callable(value):
        return (inspect.getdoc(value) or "").splitlines()[0]
    return f"{len(value)} by name: {', '.join(list(map(str, value))[:3])}, ..."


def _directive(path: str, value: object) -> str:
    if inspect.isclass(value):
        members = "   :no-members:\n" if issubclass(value, Exception) else ""
        return f".. autoclass:: {path}\n{members}"
    if callable(value):
        return f".. autofunction:: {path}\n"
    return f".. data:: {path}\n\n   {type(value).__name__} of {len(value)}: {', '.join(map(str, value))}.\n"


def _table(rows) -> list[str]:
    """Lines of a table of two columns, of which the first keeps its words on one line."""
    lines = [".. list-table::", "   :class: reference", "   :widths: auto", ""]
    for first, second in rows:
        lines += [f"   * - {first}", f"     - {second}"]
    return [*lines, ""]
