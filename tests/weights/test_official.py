import numpy as np
import pytest
from conftest import GOLDEN, make_tiny, tiny_config

import keras_vit
from keras_vit.weights.families import from_file, recognize
from keras_vit.weights.read import CheckpointError

# A deliberate second copy of the layout's names: published (pre-Linen), and as today's code writes them (Linen).
BLOCK_3 = {
    "LayerNorm_0/scale": "LayerNorm_0/scale",
    "LayerNorm_0/bias": "LayerNorm_0/bias",
    "LayerNorm_2/scale": "LayerNorm_1/scale",
    "LayerNorm_2/bias": "LayerNorm_1/bias",
    "MlpBlock_3/Dense_0/kernel": "MlpBlock_0/Dense_0/kernel",
    "MlpBlock_3/Dense_0/bias": "MlpBlock_0/Dense_0/bias",
    "MlpBlock_3/Dense_1/kernel": "MlpBlock_0/Dense_1/kernel",
    "MlpBlock_3/Dense_1/bias": "MlpBlock_0/Dense_1/bias",
} | {
    f"MultiHeadDotProductAttention_1/{part}/{leaf}": f"MultiHeadDotProductAttention_0/{part}/{leaf}"
    for part in ("query", "key", "value", "out")
    for leaf in ("kernel", "bias")
}
REST = {"cls", "embedding/kernel", "embedding/bias", "Transformer/posembed_input/pos_embedding", "head/kernel"}
REST |= {"head/bias", "Transformer/encoder_norm/scale", "Transformer/encoder_norm/bias"}


@pytest.mark.parametrize(("layout", "names"), [("official", BLOCK_3), ("linen", BLOCK_3.values())])
def test_saved_names_and_shapes_are_those_of_the_layout(tmp_path, layout, names):
    keras_vit.save_checkpoint(make_tiny(), tmp_path / "x.npz", layout)
    arrays = dict(np.load(tmp_path / "x.npz"))
    blocks = {f"Transformer/encoderblock_{i}/{name}" for i in range(2) for name in names}
    assert set(arrays) == blocks | REST
    attention = next(name for name in names if name.endswith("query/kernel")).removesuffix("query/kernel")
    shapes = {
        name: arrays[f"Transformer/encoderblock_1/{attention}{name}"].shape for name in ("query/kernel", "out/kernel")
    }
    assert shapes == {"query/kernel": (12, 3, 4), "out/kernel": (3, 4, 12)}
    assert arrays[f"Transformer/encoderblock_0/{attention}key/bias"].shape == (3, 4)
    assert arrays["cls"].shape == (1, 1, 12)
    assert arrays["embedding/kernel"].shape == (4, 4, 3, 12)
    assert arrays["Transformer/posembed_input/pos_embedding"].shape == (1, 36, 12)
    assert {array.dtype.name for array in arrays.values()} == {"float32"}


@pytest.mark.parametrize(("layout", "shape"), [("official", (1, 1, 1, 32)), ("linen", (32,))])
def test_group_norms_have_the_shape_of_the_layout(tmp_path, layout, shape):
    config = tiny_config(resnet_stages=(), resnet_width_factor=0.5)
    model = keras_vit.build(config, input_shape=(config.stride * 2, config.stride * 2, 3), classes=2)
    with np.load(keras_vit.save_checkpoint(model, tmp_path / "x.npz", layout)) as written:
        assert written["gn_root/scale"].shape == shape


def test_old_group_norms_are_squeezed():
    arrays = {"gn_root/scale": np.ones((1, 1, 1, 32)), "block1/unit2/gn_proj/bias": np.ones((1, 1, 1, 64))}
    ours, _ = from_file("official", "", arrays)
    assert {path: array.shape for path, array in ours.items()} == {
        "resnet_root/norm/gamma": (32,),
        "resnet_stage_1_unit_2/norm_proj/beta": (64,),
    }


def test_heads_that_disagree_are_refused():
    prefix = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1"
    arrays = {f"{prefix}/query/kernel": np.ones((12, 3, 4)), f"{prefix}/out/kernel": np.ones((4, 3, 12))}
    with pytest.raises(CheckpointError, match="number of heads"):
        from_file("official", "", arrays)


def test_layouts_are_told_apart():
    assert recognize("npz", np.load(GOLDEN / "token.npz").files) == ("official", "")
    linen = ["Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel", "Transformer/posembed_input/pos_embedding"]
    assert recognize("npz", ["embedding/kernel", *linen]) == ("linen", "")
    assert recognize("npz", ["blocks.0.attn.qkv.weight"]) is None
