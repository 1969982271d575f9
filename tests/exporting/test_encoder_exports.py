"""A model of each family of encoders, from a folder that its own software wrote, in every format within its bounds."""

import functools

import pytest
from pictures import picture
from weights.encoder_folders import FOLDERS, built, expected

import keras_vit
from keras_vit.exporting.formats import FORMATS
from keras_vit.layers.positions import RelativeBias

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")]
INT8 = ("timm_dinov3_gated", "huggingface_beit", "timm_eva02_packed")


@functools.lru_cache(maxsize=1)
def model_of(folder):
    end = "logits" if "logits" in expected(folder) else "pooled"
    return built(folder, end, **({"pooling": "token"} if folder == "timm_mae" else {}))  # which pools nothing


def exported(folder, form, path, count=6, **more):
    model = model_of(folder)
    photos = [picture(*model.input_shape[1:], seed) for seed in range(count)]
    report = keras_vit.export(model, path / f"x{FORMATS[form].extension}", form, images=photos, **more)
    assert {drift.output.split()[0] for drift in report.drift} >= {"features"}
    for drift in report.drift:
        assert drift.max_difference <= drift.bound
        assert drift.deviation > 1e-3 or drift.output.startswith("scores")  # numbers that could be wrong
    return report


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_family_is_the_same_in_every_format(folder, form, tmp_path):
    exported(folder, form, tmp_path)


@pytest.mark.parametrize("folder", FOLDERS)
def test_family_is_the_same_at_any_size(folder, tmp_path):
    """But a spline through offsets is made for one size, and no graph of any size is written with one."""
    biases = [layer for layer in model_of(folder).layers if isinstance(layer, RelativeBias)]
    if any(layer.resize_method == "geometric_cubic" for layer in biases):
        with pytest.raises(ValueError, match="spline"):
            exported(folder, "onnx", tmp_path, options={"image_size": "any"})
    else:
        exported(folder, "onnx", tmp_path, options={"image_size": "any"})


@pytest.mark.parametrize("folder", INT8)
@pytest.mark.parametrize("form", FORMATS)
def test_family_is_near_in_int8(folder, form, tmp_path):
    if form == "openvino":
        pytest.importorskip("nncf")
    exported(folder, form, tmp_path, count=40, precision="int8")
