"""What a file has and a model has not: its end may be left out, its pooling and channels not; where it can be saved."""

import re

import pytest
from conftest import GOLDEN

import keras_vit
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.read import CheckpointError


def test_strict_leaves_out_the_end_alone_and_attention_pooling_is_the_files():
    def opened(name, **arguments):
        return keras_vit.build(weights=GOLDEN / "encoders" / name, **arguments)

    tokens = {"include_top": False, "pooling": "none", "strict": True}
    assert opened("timm_dinov3", **tokens).load_report == ("pooling none, where the file says token",)
    assert any("set aside pooling" in line for line in opened("huggingface_siglip", **tokens).load_report)
    with pytest.raises(CheckpointError, match=r"`strict=True`(?s:.*)new head"):
        opened("timm_dinov3", strict=True, classes=9)
    for name, pooling, words in (("huggingface_siglip", "gap", "pooling='map'"), ("timm_dinov3", "map", "another")):
        with pytest.raises(CheckpointError, match=f"pools by attention(?s:.*){words}"):
            opened(name, include_top=False, pooling=pooling)
    for channels in (1, 4):
        with pytest.raises(ValueError, match=rf"statistics of pixels(?s:.*)=\(\d+, \d+, {channels}\), 3 means"):
            opened("huggingface_radio", include_top=False, input_shape=(32, 32, channels))


def test_layouts_that_are_offered_write_the_model(tmp_path):
    model = keras_vit.build(weights=GOLDEN / "encoders" / "huggingface_dinov2_registers", include_top=False)
    with pytest.raises(CheckpointError, match="Layouts with a place for all: ") as refused:
        keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", "dinov2")
    offered = re.findall(r"'(\w+)'", str(refused.value).partition("place for all")[2])
    assert {"timm", "dinov2_registers", "tips"} <= {*offered}
    for name in offered:
        assert keras_vit.save_checkpoint(model, tmp_path / f"{name}{LAYOUTS[name].suffix}", name).exists()
