"""FLOPs of heads by what their convolutions and dense layers are given and give, with other products by hand."""

import math

import keras
import numpy as np
import pytest
from conftest import make_tiny, tiny_config

import keras_vit
from keras_vit import layers
from keras_vit.config.flops import block, flops

H, W, D = 3, 5, 12
TAP = np.ones((1, H, W, D), "float32")
TAPS, WIDE = [TAP] * 4, [np.ones((1, H, W, 2 * D), "float32")] * 4
TOKENS, IMAGES = np.ones((1, 1 + 4 + H * W, D), "float32"), np.ones((1, H * 4, W * 4, 3), "float32")
DPT = {"channels": (4, 6, 8, 10), "features": 14, "outputs": 3}
MASKS = 2 * (16 * H * W) * D * 4  # each pixel of the map by each query
CASES = {
    "linear": (layers.LinearHead(7), [TAP], 0),
    "linear4": (layers.LinearHead(7, upsample=2), TAPS, 0),
    "dpt": (layers.DPTHead(**DPT), TAPS, 0),
    "dpt of depth anything": (layers.DPTHead(**DPT, exact_sizes=True, end="depth_of_image"), TAPS, 0),
    "dpt of classes": (layers.DPTHead(**DPT, readout=True, end="classes", first_units=2), WIDE, 0),
    "dpt of maps": (layers.DPTHead(**DPT, before="norm", unit_norm=True, end="classes_of_map"), TAPS, 0),
    "upernet": (layers.UPerNetHead(7, 8), TAPS, 0),
    "upernet, multi-level": (layers.UPerNetHead(7, 8, neck="multi_level", neck_channels=6), TAPS, 0),
    "upernet of one size": (layers.UPerNetHead(7, 8, neck="none", auxiliary=(5, 7)), TAPS, 0),
    "setr": (layers.SETRHead(7, 8, 2, auxiliary=((4, 7),)), [TAP], 0),
    "masks": (layers.MaskHead(7, 4, patch_size=4), [TOKENS, IMAGES], MASKS),
    "boxes": (layers.BoxHead(7, 4), TOKENS, 0),
    "boxes of texts": (
        layers.OpenBoxHead(7, 6, 4, objectness=True),
        [TOKENS[:, : 1 + H * W], IMAGES],
        2 * H * W * 6 * 7,
    ),
    "points": (layers.KeypointHead(7), [TAP], 0),
    "points, classic": (layers.KeypointHead(7, "classic", 8), [TAP], 0),
}


@pytest.mark.parametrize("case", CASES)
def test_head_has_the_flops_of_its_convolutions_and_dense_layers(case, monkeypatch):
    head, maps, products = CASES[case]
    head(maps)  # is built
    counted = []

    def watch(kind, transposed=False):
        plain = kind.call

        def call(layer, x, *args, **kwargs):
            found = plain(layer, x, *args, **kwargs)
            places = math.prod((x if transposed else found).shape[1:-1])
            counted.append(2 * places * math.prod(layer.kernel.shape))
            return found

        monkeypatch.setattr(kind, "call", call)

    for kind in (keras.layers.Dense, keras.layers.Conv2D, keras.layers.DepthwiseConv2D):
        watch(kind)
    watch(keras.layers.Conv2DTranspose, transposed=True)
    head(maps)
    assert len(counted) >= 1
    assert head.flops(H, W) == sum(counted) + products


def test_mask_transformer_has_the_flops_of_blocks_on_patches_and_classes():
    head = layers.MaskTransformerHead(7, hidden_size=8, num_heads=2)
    head([TAP])
    tokens, patches = H * W + 7, H * W
    blocks = 2 * block(tiny_config(hidden_size=8, num_heads=2, mlp_dim=32), tokens, tokens).total
    dense = 2 * (patches * D * 8 + patches * 8 * 8 + 7 * 8 * 8)
    assert head.flops(H, W) == blocks + dense + 2 * patches * 8 * 7


def test_model_has_the_flops_of_its_encoder_and_head_at_each_size():
    encoder = make_tiny(include_top=False, classes=None, pooling="none", num_layers=4, input_shape=(20, 28, 3))
    model = keras_vit.segmenter(encoder, "dpt", classes=3)
    for size, grid in ((None, (5, 7)), ((24, 40), (6, 10))):
        whole, alone = flops(model, size), flops(encoder, size)
        assert (whole.head, whole.mlp, alone.head) == (model.head.flops(*grid), alone.mlp, 0)
    assert keras_vit.training_exaflops(model, 1e9) == 3e9 * flops(model).total / 1e18
