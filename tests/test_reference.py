"""The reference of the documentation: every public name once, in the groups of `api.py`. `.ci/run` builds it."""

import runpy

from conftest import ROOT

import keras_vit


def test_reference_has_every_public_name_once():
    groups = runpy.run_path(str(ROOT / "docs" / "conf.py"))["groups"]()
    names = [name for names in groups.values() for name in names]
    assert names == keras_vit.api.__all__
    assert len(groups) > 8
    assert all(groups.values())


def test_reference_is_written_for_names_and_what_modules_have(tmp_path):
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    conf["write_reference"].__globals__["REFERENCE"] = tmp_path / "reference"
    conf["write_reference"](None)
    model = (tmp_path / "reference" / "the_model.rst").read_text()
    for line in (".. autofunction:: keras_vit.build", ".. autoclass:: keras_vit.layers.AxialBlock", "Ti/16, S/16"):
        assert line in model
    studies = (tmp_path / "reference" / "the_paper_s_ablations.rst").read_text()
    assert ".. autofunction:: keras_vit.studies.shape_study" in studies
