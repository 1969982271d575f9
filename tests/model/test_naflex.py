"""Batches of patches with grids of their own: transformers' numbers, and those of every image alone.

`naflex.npz` has four photos, what transformers 5.24 makes of them (`Siglip2ImageProcessorPil`, 14 patches of 8 pixels),
and what its `Siglip2VisionModel` computes of that in float64, with the weights of `encoders/huggingface_siglip2`.
"""

import functools

import keras
import numpy as np
import pytest
from conftest import GOLDEN, make_tiny, numpy, randomise

import keras_vit
from keras_vit.checks import processor_flags
from keras_vit.config.position_tables import RESIZE_METHODS, resize_pos_embed
from keras_vit.layers import AddPositionEmbs, PatchMask

FOLDER = GOLDEN / "encoders" / "huggingface_siglip2"
KINDS = {
    "token": {"registers": 2, "layer_scale": "both", "class_tokens": 2},
    "gap": {"pooling": "gap", "registers": 2, "final_norm": "pooled", "position_embedding": "learned2d"},
    "prefix": {
        "pooling": "map",
        "class_token": True,
        "pool_prefix_tokens": True,
        "pre_norm": True,
        "patch_bias": False,
    },
    "attentive": {
        **{"pooling": "attentive", "norm": "rms", "patch_norm": True, "position_embedding": "none"},
        "pixel_statistics": ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    },
    "none": {"pooling": "none", "registers": 1},
}


@functools.cache
def expected():
    with np.load(GOLDEN / "naflex.npz") as arrays:
        return dict(arrays)


def photos():
    return [expected()[f"photo_{number}"] for number in range(4)]


def given(**changes):
    return {name: expected()[name] for name in ("patches", "mask", "grids")} | changes


@functools.cache
def siglip(pooling="map"):
    image_model = keras_vit.build(weights=FOLDER, input_shape=(None, None, 3), include_top=False, pooling=pooling)
    return keras_vit.naflex(image_model)


def drawn(side=4):
    """Patches of three images on a seed, with what pads them as large as the others."""
    grids, rng = np.array([[3, 2], [1, 7], [4, 2]], "int32"), np.random.default_rng(5)
    return {
        "patches": rng.uniform(-1, 1, (3, 9, side * side * 3)).astype("float32"),
        "mask": np.arange(9) < grids.prod(1, keepdims=True),
        "grids": grids,
    }


def alone(model, batch, number, side):
    """What the model of images gives for one image of a batch, with its prefix tokens and patches."""
    h, w = batch["grids"][number]
    patches = batch["patches"][number, : h * w].reshape(h, w, side, side, 3)
    return numpy(model(patches.swapaxes(1, 2).reshape(1, h * side, w * side, 3)))[0]


def test_photos_become_the_batch_of_transformers():
    """Pillow rounds to whole levels after each axis, which is two halves of a level of 2 / 255."""
    found = keras_vit.naflex_batch(siglip(), photos(), max_patches=14)
    np.testing.assert_array_equal(found["grids"], expected()["grids"])
    np.testing.assert_array_equal(found["mask"], expected()["mask"])
    assert len({tuple(grid) for grid in found["grids"]}) == 4
    np.testing.assert_allclose(found["patches"], expected()["patches"], atol=2.2 / 255)
    assert {name: array.dtype.name for name, array in found.items()} == {
        **{"patches": "float32", "mask": "bool", "grids": "int32"}
    }
    several = keras_vit.naflex_batch(siglip(), np.stack([photos()[0]] * 2).astype("float32"), max_patches=14)
    np.testing.assert_array_equal(several["patches"][1], found["patches"][0])


def test_batch_of_several_grids_has_the_numbers_of_transformers():
    for name, pooling in (("tokens", "none"), ("pooled", "map")):
        wanted = expected()[name]
        assert np.abs(numpy(siglip(pooling)(given())) - wanted).max() < 1e-5 * max(1, np.abs(wanted).max() / 5)
    np.testing.assert_allclose(siglip().predict(given(), verbose=0), expected()["pooled"], atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask": np.ones((4, 14), bool)},
        {"grids": np.array([[3, 4], [2, 7], [6, 2], [3, 3]], "int32")[:, ::-1]},
        {"grids": np.full((4, 2), 3, "int32")},
    ],
    ids=["mask", "swapped", "one grid"],
)
def test_mask_and_grids_count(wrong):
    assert np.abs(numpy(siglip()(given(**wrong))) - expected()["pooled"]).max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_every_image_has_the_numbers_that_it_has_alone(kind, tmp_path):
    model = randomise(make_tiny(**{"input_shape": (None, None, 3)} | KINDS[kind]))
    batch, padded = drawn(), keras_vit.naflex(model)
    found = numpy(padded(batch))
    for number, own in enumerate(found):
        wanted = alone(model, batch, number, 4)
        if kind == "none":
            assert not own[len(wanted) :].any()
            own = own[: len(wanted)]
        np.testing.assert_allclose(own, wanted, atol=2e-6)
    padded.save(tmp_path / "x.keras")
    again = keras.saving.load_model(tmp_path / "x.keras")
    assert isinstance(again, keras_vit.NaFlexModel)
    assert again.config == model.config
    np.testing.assert_array_equal(numpy(again(batch)), found)
    nothing = batch | {"mask": np.zeros((3, 9), bool)}
    assert np.isfinite(numpy(padded(nothing))).all()


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_positions_of_each_image_equal_those_resized_in_numpy(method):
    layer = AddPositionEmbs((3, 5), 4, num_prefix_tokens=1, resize_method=method)
    layer.build((None, 16, 8))
    grids = np.array([[3, 5], [5, 3], [6, 2], [1, 7], [2, 2], [3, 2]], "int32")
    found = numpy(layer(np.zeros((6, 16, 8), "float32"), grids=grids))
    for own, (h, w) in zip(found, grids.tolist(), strict=True):
        wanted = resize_pos_embed(numpy(layer.table), (h, w), (3, 5), method=method)[0]
        np.testing.assert_allclose(own[: 1 + h * w], wanted, atol=1e-6)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[0], numpy(layer.table)[0])  # the table's own grid


def test_head_learns_and_with_it_the_model_of_images():
    """In mixed precision too, which is near, and whose half-precision masks have no infinity."""
    batch, labels = drawn(), np.array([0, 1, 2])
    keras.utils.set_random_seed(1)
    model = make_tiny(input_shape=(None, None, 3), classes=3, pooling="map")
    padded = keras_vit.naflex(model)
    padded.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = padded.fit(batch, labels, epochs=9, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_allclose(numpy(padded(batch))[1], alone(model, batch, 1, 4), atol=1e-5)
    for policy in ("mixed_bfloat16", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        try:
            half = keras_vit.build(model.config, input_shape=(None, None, 3), classes=3)
        finally:
            keras.config.set_dtype_policy("float32")
        half.set_weights(model.get_weights())
        half = keras_vit.naflex(half)
        found = numpy(half(batch))
        if np.isnan(found).all() and processor_flags() & {"amx_bf16", "avx512_fp16"}:
            pytest.skip(f"{policy} on a processor with AMX: {first_nan(half, batch)} gives NaN, and why is not known")
        np.testing.assert_allclose(found, numpy(padded(batch)), atol=0.1)


def first_nan(model, batch):
    """The path of the first layer that puts out a NaN."""
    call, found = keras.layers.Layer.__call__, []

    def watched(layer, *args, **kwargs):
        output = call(layer, *args, **kwargs)
        found.extend(layer.path for each in keras.tree.flatten(output) if np.isnan(numpy(each)).any())
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.layers.Layer, "__call__", watched)
        model(batch)
    return next(iter(found), "no layer")


def test_zero_shot_and_lora_are_kept_and_weights_written(tmp_path):
    model = randomise(make_tiny(input_shape=(None, None, 3), include_top=False, pooling="map", classes=None))
    classifier = keras_vit.zero_shot(model, np.eye(3, 12), ["a", "b", "c"], logit_scale=1.0)
    keras_vit.add_lora(classifier, rank=2)
    padded = keras_vit.naflex(classifier)
    assert padded.class_names == ("a", "b", "c")
    np.testing.assert_allclose(numpy(padded(drawn()))[0], alone(classifier, drawn(), 0, 4), atol=1e-5)
    path = keras_vit.save_checkpoint(siglip(), tmp_path / "x.safetensors", "huggingface_siglip2")
    assert path.stat().st_size > 80_000


def test_what_patches_cannot_have_is_refused():
    for fields in (
        {"rotary": "axial", "hidden_size": 24},
        {"position_embedding": "sincos2d"},
        {"patch_dropout_rate": 0.5},
        {"distilled": True},
        {"relative_bias": "shared"},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(fields))}=(.|\n)*batches_by_size"):
            keras_vit.naflex(make_tiny(**fields))
    padded = siglip()
    for function in (
        *(keras_vit.naflex, keras_vit.freeze, lambda model: keras_vit.add_lora(model, 2)),
        lambda model: keras_vit.estimate_memory(model, 8),
        lambda model: keras_vit.evaluate(model, FOLDER),
        lambda model: keras_vit.export(model, "x.onnx"),
        lambda model: keras_vit.with_input_shape(model, (24, 24, 3)),
        lambda model: next(keras_vit.batches_by_size(model, photos())),
    ):
        with pytest.raises(TypeError, match=r"NaFlexModel.* that `naflex` was given"):
            function(padded)
    with pytest.raises(TypeError, match="NaFlexModel"):
        keras_vit.finetune(FOLDER, "out", model=padded)
    with pytest.raises(ValueError, match=r"\[image\]"):
        keras_vit.naflex_batch(padded, photos()[0])
    with pytest.raises(ValueError, match="no images"):
        keras_vit.naflex_batch(padded, [])
    with pytest.raises(TypeError, match="str"):
        keras_vit.naflex_batch("model", photos())
    moved = keras_vit.build(weights=FOLDER, input_shape=(16, 32, 3), include_top=False)
    with pytest.warns(UserWarning, match="resized again"):
        keras_vit.naflex(moved)


def test_padding_is_told_in_float32_whatever_the_precision():
    there, bias = PatchMask(1, dtype="mixed_float16")(np.array([[1, 1, 0]]))
    np.testing.assert_array_equal(numpy(there)[0, :, 0], [1, 1, 1, 0])
    np.testing.assert_array_equal(numpy(bias)[0, 0, 0], np.array([0, 0, 0, -1e9], "float32"))
