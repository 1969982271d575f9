"""How Sphinx builds these pages: `python -m sphinx -W -b html docs build/docs`.

The pages are Markdown (MyST), and notebooks that hold what they printed. Made anew by each build are the reference,
from the docstrings in the groups of `keras_vit/api.py`, and the pages of published weights, from their records.
"""

import inspect
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

sys.path.append(str(Path(__file__).parent / "generators"))

import weights_pages

import keras_vit
from keras_vit.version import __version__

HERE = Path(__file__).parent
REFERENCE = HERE / "reference"  # written anew by each build
MADE = {"weights": weights_pages.pages}  # too; gives `{name: Markdown}`

NO_CONTENTS = "---\nhtml_theme.sidebar_secondary.remove: true\n---\n\n"  # beside a page, whose tables take their place

project = "keras_vit"
author = "The keras_vit authors"
version = release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_reredirects"]
copybutton_exclude = ".linenos, .gp, .go"  # a doctest's prompts and output
redirects: dict[str, str] = {  # old page: the address that answers today
    "checkpoints": "weights.html",
    "compute": "choosing.html#count-flops",
    "converting": "weights.html",
    "weights/index": "../weights.html#families",
    "distillation": "training.html#learn-from-a-teacher",
    "hosts": "devices.html#share-a-model-with-jax",
    "interruptions": "runs.html#resume-a-run",
    "many_devices": "devices.html",
}
html_theme = "sphinx_book_theme"
html_title = f"keras_vit {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_show_search_summary = False  # a browser may not fetch other files from the file system
exclude_patterns = ["generators", "notebooks/*.py"]
nb_execution_mode = "off"  # notebooks are committed as they ran; docs/generators/notebooks.py runs them
nb_ipywidgets_js: dict = {}  # which would be loaded from a network
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
    return found | {"builders of encoders": list(keras_vit.encoder_builders.__all__)}


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


def write_pages(app):
    """The pages that are made of records and of figures."""
    for folder, pages in MADE.items():
        (HERE / folder).mkdir(exist_ok=True)
        for file in (HERE / folder).iterdir():
            file.unlink()
        for name, text in pages().items():
            (HERE / folder / f"{name}.md").write_text(NO_CONTENTS + text)


def _entry(name):
    what = getattr(keras_vit, name)
    if inspect.ismodule(what):
        names = getattr(what, "__all__", None) or [n for n, v in vars(what).items() if _is_own(v, what)]
        return "\n".join(_directive(f"keras_vit.{name}.{each}", getattr(what, each)) for each in names)
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


MORE = ("notebooks/index", "reference/index")  # of the contents


def read(app, page, source):
    """The contents of the index are its tables; of what stands outside docs/ only files of code and data are copied."""
    text = source[0]
    if page == "index":
        sections = re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
        listed = [(title, re.findall(r"^\| \[.*\]\((\w+)\.md\)", part, re.MULTILINE)) for title, part in sections]
        for title, pages in [*listed, ("Made from code and data", MORE)]:
            if pages:
                text += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", *pages, "```", ""])
    if page in ("weights", "encoders"):
        text = weights_pages.linked(text)
    if page == "weights":
        text += f"\n{weights_pages.contents()}"
    if not page.startswith("notebooks/"):
        folder = (HERE / page).parent
        text = re.sub(r"\[([^\]]*)\]\((\.\./[^)#]*)(#[^)]*)?\)", lambda link: _outside(link, folder), text)
    source[0] = text


def _outside(link, folder):
    target = (folder / link[2]).resolve()
    return link[0] if target.is_relative_to(HERE) or target.suffix in (".py", ".csv") else link[1]


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", read)
