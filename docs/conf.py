"""How Sphinx builds these pages: `python -m sphinx -W -b html docs build/docs`.

The pages are Markdown (MyST), and notebooks that hold what they printed. Made anew by each build are the reference,
from the docstrings by the tasks of `keras_vit/api.py`, and the pages of published weights, from their records.
"""

import os
import re
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

sys.path.append(str(Path(__file__).parent / "generators"))

import reference_pages
import weights_pages

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
    "searching": "embedding.html",
    "checkpoints": "weights.html",
    "compute": "choosing.html#count-flops",
    "converting": "weights.html",
    "weights/index": "../weights.html#families",
    "distillation": "training.html#learn-from-a-teacher",
    "hosts": "devices.html#share-a-model-with-jax",
    "interruptions": "runs.html#resume-a-run",
    "many_devices": "devices.html",
    "reference/the_model": "build_a_model.html",
    "reference/how_much_a_model_computes": "count_the_compute.html",
    "reference/images_in_names_out": "prepare_images_and_read_answers.html",
    "reference/looking_inside": "look_inside_a_model.html",
    "reference/the_paper_s_ablations": "repeat_the_paper_s_studies.html",
    "reference/weights": "load_and_save_weights.html",
    "reference/from_a_folder_of_photos_to_a_trained_model": "fine_tune_on_a_folder_of_photos.html",
    "reference/recipes_and_what_they_are_made_of": "follow_a_published_recipe.html",
    "reference/many_devices_and_hosts_on_JAX": "choose_devices_and_check_memory.html",
    "reference/to_a_server_or_a_phone": "export_and_accelerate.html",
    "reference/the_same_answers_sooner_on_this_machine": "export_and_accelerate.html",
    "reference/millions_of_photos": "embed_and_search_many_photos.html",
    "reference/training_by_a_teacher": "train_by_a_teacher_or_without_labels.html",
    "reference/training_without_labels": "train_by_a_teacher_or_without_labels.html",
    "reference/builders_of_encoders": "build_an_encoder.html",
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


def write_reference(app):
    """The pages that are made of docstrings."""
    reference_pages.write(REFERENCE)


def write_pages(app):
    """The pages that are made of records and of figures."""
    for folder, pages in MADE.items():
        (HERE / folder).mkdir(exist_ok=True)
        for file in (HERE / folder).iterdir():
            file.unlink()
        for name, text in pages().items():
            (HERE / folder / f"{name}.md").write_text(NO_CONTENTS + text)


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
    return link[0] if target.is_relative_to(HERE) or target.suffix in (".py", ".csv", ".sh", ".yaml") else link[1]


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", read)
