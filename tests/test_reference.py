"""The reference of the documentation: every public name once, by the tasks of `api.py`. `.ci/run` builds it."""

import sys

import pytest
from conftest import ROOT

import keras_vit
from keras_vit.config.variants import ENCODERS

sys.path.append(str(ROOT / "docs" / "generators"))
import reference_pages


def test_reference_has_every_public_name_once():
    first, encoders, *others = reference_pages.groups()
    names = [name for group in (first, *others, encoders) for name in group.names]
    assert names == keras_vit.api.__all__
    assert len({group.page for group in (first, encoders, *others)}) == len(others) + 2 > 15
    assert all(group.names and group.about.endswith(".") for group in others)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """`{name: text}` of the pages that are written."""
    folder = tmp_path_factory.mktemp("docs") / "reference"
    reference_pages.write(folder)
    return {path.stem: path.read_text() for path in folder.iterdir()}


def test_page_has_a_table_and_what_the_docstrings_say(pages):
    model = pages["build_a_model"]
    table, _, entries = model.partition(".. autofunction:: keras_vit.build\n")
    assert "* - :py:obj:`build <keras_vit.build>`\n     - Builds a Vision Transformer.\n" in table
    for line in ("              keras_vit.ViTB16(**arguments)\n", "Ti/16, S/16", ".. autoclass:: keras_vit.ViTConfig"):
        assert line in entries
    assert "autofunction:: keras_vit.ViTB16" not in model  # its docstring is that of `build`
    encoders = pages["build_an_encoder"]
    for name in keras_vit.encoder_builders.__all__:
        assert encoders.count(f" keras_vit.{name}(**arguments)\n") == 1
    assert encoders.count("py:function") == len({name.split("/")[0] for name in ENCODERS})


def test_pages_have_what_modules_have(pages):
    assert ".. autoclass:: keras_vit.layers.AxialBlock" in pages["use_single_layers"]
    assert ".. autofunction:: keras_vit.studies.shape_study" in pages["repeat_the_paper_s_studies"]


def test_index_leads_to_every_page(pages):
    for group in reference_pages.groups():
        assert f":doc:`{group.title} <{group.page}>`\n     - {group.about}\n" in pages["index"]
        assert f"   {group.page}\n" in pages["index"]
