"""How Sphinx builds these pages: `python -m sphinx -W -b html docs build/docs`.

The pages are Markdown (MyST). The reference is made of the docstrings, in the groups of `keras_vit/api.py`.
"""

import inspect
import os
import re
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_vit
from keras_vit.version import __version__

HERE = Path(__file__).parent
REFERENCE = HERE / "reference"  # written anew by each build

project = "keras_vit"
author = "The keras_vit authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "sphinx_book_theme"
html_title = f"keras_vit {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
default_role = "code"  # of single backticks in docstrings
autodoc_typehints = "none"  # the docstrings say what is taken
autodoc_default_options = {"members": True, "exclude-members": "build, call, compute_output_shape, get_config"}
napoleon_custom_sections = [("Call arguments", "params_style"), ("Warns", "returns_style")]
napoleon_use_rtype = False
napoleon_use_ivar = True


def groups():
    """`{title: names}` of the public names, as the comments of `api.py` part them."""
    text = inspect.getsource(keras_vit.api).partition("__all__ = [")[2]
    found = {}
    for line in text.splitlines():
        if comment := re.match(r"\s+# (.*)", line):
            title = comment[1]
            found[title] = []
        elif name := re.match(r'\s+"(\w+)"', line):
            found[title].append(name[1])
    return found


def write_reference(app):
    """One page for each group, and the list of them."""
    REFERENCE.mkdir(exist_ok=True)
    for file in REFERENCE.iterdir():
        file.unlink()
    pages = []
    for title, names in groups().items():
        page = re.sub(r"\W+", "_", title).strip("_")
        pages.append(page)
        heading = title[0].upper() + title[1:]
        entries = [_entry(name) for name in names]
        (REFERENCE / f"{page}.rst").write_text("\n".join([heading, "=" * len(heading), "", *entries]))
    toctree = ["Reference", "=========", "", ".. toctree::", "", *(f"   {page}" for page in pages), ""]
    (REFERENCE / "index.rst").write_text("\n".join(toctree))


def _entry(name):
    what = getattr(keras_vit, name)
    if inspect.ismodule(what):
        names = getattr(what, "__all__", None) or [n for n, v in vars(what).items() if _is_own(v, what)]
        return "\n".join(_directive(f"{what.__name__}.{each}", getattr(what, each)) for each in names)
    return _directive(f"keras_vit.{name}", what)


def _is_own(value, module):
    return getattr(value, "__module__", None) == module.__name__ and not value.__name__.startswith("_")


def _directive(path, what):
    if inspect.isclass(what):
        bases = "   :no-members:\n" if issubclass(what, Exception) else ""
        return f".. autoclass:: {path}\n{bases}"
    if callable(what):
        return f".. autofunction:: {path}\n"
    return f".. data:: {path}\n\n   {type(what).__name__} of {len(what)}: {', '.join(map(str, what))}.\n"


def read(app, page, source):
    """The contents of the index are its tables; of what stands outside docs/ only files of code are copied."""
    text = source[0]
    if page == "index":
        sections = re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
        listed = [(title, re.findall(r"^\| \[.*\]\((\w+)\.md\)", part, re.MULTILINE)) for title, part in sections]
        for title, pages in [*listed, ("API", ["reference/index"])]:
            if pages:
                text += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", *pages, "```", ""])
    source[0] = re.sub(r"\[([^\]]*)\]\((\.\./[^)#]*)(?:#[^)]*)?\)", _outside, text)


def _outside(link):
    return link[0] if (HERE / link[2]).suffix == ".py" else link[1]


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("source-read", read)
