"""SAM's image encoder against a NumPy program, which gives the numbers of transformers 5.24.

On small random models that program, transformers and these files differed by at most 3.1e-6 of maps up to 4.3.
"""

import json

import keras
import numpy as np
import pytest
from checks import differing, is_same, on_every_backend
from conftest import images, numpy
from safetensors.numpy import load_file, save_file
from sam_in_numpy import CHANNELS, GRID, HEADS, LAYERS, MISTAKES, PATCH, WIDTH, WINDOW, Sam, weights

import keras_vit
from keras_vit.config.flops import parameter_count
from keras_vit.exporting.folding import fold
from keras_vit.weights.read import CheckpointError

CONFIG = {
    **{"model_type": "sam_vision_model", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "hidden_act": "gelu"},
    **{"num_attention_heads": HEADS, "mlp_ratio": 2.0, "patch_size": PATCH, "layer_norm_eps": 1e-6},
    **{"image_size": PATCH * GRID, "window_size": WINDOW, "global_attn_indexes": [1], "output_channels": CHANNELS},
    **{"use_rel_pos": True, "use_abs_pos": True, "qkv_bias": True, "mlp_dim": 2 * WIDTH},
}
AUTHORS = {"model_type": "sam_authors", "num_attention_heads": HEADS, "window_size": WINDOW, "global_attn_indexes": [1]}
SIDE, WIDE = PATCH * GRID, (48, 32, 3)
TOKENS = {"include_top": False, "pooling": "none"}
NEAR = 1e-5
WORDS = (("patch_embed.projection", "patch_embed.proj"), ("layers.", "blocks."), ("layer_norm", "norm"))
NECK = (("conv1", "0"), ("norm1", "1"), ("conv2", "2"), ("norm2", "3"))


def spelled(name, software):
    """A name of transformers' as the authors or timm have it."""
    for old, new in (*WORDS, *(("neck." + old, "neck." + new) for old, new in NECK)):
        name = name.replace(old, new)
    if software == "timm":
        return name.removeprefix("vision_encoder.").replace(".lin", ".fc")
    return name.replace("vision_encoder.", "image_encoder.")


def write(folder, software="transformers", **changes):
    """A folder with a small file, with what stands next to the encoder, and its arrays with transformers' names."""
    folder.mkdir(exist_ok=True)
    arrays = weights()
    named = arrays if software == "transformers" else {spelled(name, software): a for name, a in arrays.items()}
    beside = {} if software == "timm" else {"mask_decoder.iou_token.weight": np.ones((1, 4), "float32")}
    save_file(named | beside, folder / "model.safetensors")
    if software != "timm":
        config = CONFIG if software == "transformers" else AUTHORS
        (folder / "config.json").write_text(json.dumps(config | changes))
    return folder, arrays


def photo(*shape):
    return 0.8 * images(2, *(shape or (SIDE, SIDE, 3)))


def faults(folder):
    """Where a file's model puts out other numbers than the paper's equations."""
    found = {}
    for software in ("transformers", "authors", "timm"):
        place, arrays = write(folder / software, software)
        models = {"own": keras_vit.build(weights=place, **TOKENS)}
        models["open"] = keras_vit.build(weights=place, input_shape=(None, None, 3), **TOKENS)
        wanted = Sam(arrays)(photo())
        found |= differing({f"{software} {way}": (m(photo()), wanted) for way, m in models.items()}, NEAR)
        wide = keras_vit.with_input_shape(models["own"], WIDE)  # of 6 x 4 patches
        answers = wide(photo(*WIDE)), models["open"](photo(*WIDE))
        found |= differing({f"{software} other size": answers}, NEAR)
    return found


faults_elsewhere, test_files_compute_what_the_papers_say, test_they_do_so_on_other_backends = on_every_backend(faults)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_shows(mistake):
    right, wrong = (Sam(weights(), each)(photo()[:1]) for each in ("", mistake))
    assert np.abs(right - wrong).max() > 1e-4


@pytest.mark.parametrize("software", ["transformers", "authors", "timm"])
def test_files_are_written_as_they_were_read(software, tmp_path):
    place, _ = write(tmp_path / "read", software)
    model = keras_vit.build(weights=place, **TOKENS)
    layout = {"transformers": "huggingface_sam", "authors": "sam", "timm": "timm_sam"}[software]
    wanted = numpy(model(photo()))
    before = load_file(place / "model.safetensors")
    before.pop("mask_decoder.iou_token.weight", None)
    model.save(tmp_path / "model.keras")
    kept = keras.models.load_model(tmp_path / "model.keras")
    assert kept.config == model.config
    assert (kept.output_shape, kept.output_spec.kind) == ((None, GRID, GRID, CHANNELS), "map")
    for number, each in enumerate((model, kept)):
        file = keras_vit.save_checkpoint(each, tmp_path / f"{number}.safetensors", layout)
        assert is_same(before, load_file(file))
        again = keras_vit.build(weights=file, **TOKENS)
        np.testing.assert_array_equal(numpy(again(photo())), wanted)
        assert again.load_report == ()
    with pytest.raises(CheckpointError, match=f"'{layout}'"):
        keras_vit.save_checkpoint(model, tmp_path / "other.safetensors", "timm")
    with pytest.raises(CheckpointError, match="square"):
        keras_vit.save_checkpoint(keras_vit.with_input_shape(model, WIDE), tmp_path / "wide.safetensors", layout)


def test_a_folder_of_the_whole_model_opens(tmp_path):
    place, arrays = write(tmp_path / "file")
    inner = {name: value for name, value in CONFIG.items() if name != "model_type"} | {"model_type": ""}
    config = {"model_type": "sam", "architectures": ["SamModel"], "vision_config": inner}
    (place / "config.json").write_text(json.dumps(config))
    model = keras_vit.build(weights=place, **TOKENS)
    np.testing.assert_allclose(numpy(model(photo())), Sam(arrays)(photo()), 0, 5 * NEAR)
    assert [line for line in model.load_report if not line.startswith("set aside")] == []


def test_blocks_can_be_looked_into_and_carry_heads(tmp_path):
    place, _ = write(tmp_path / "file")
    model = keras_vit.build(weights=place, **TOKENS)
    found = keras_vit.features(model, photo(), [1, LAYERS])
    assert found[LAYERS].shape == (2, GRID, GRID, WIDTH)
    with pytest.raises(ValueError, match="windowed"):
        keras_vit.attention_maps(model, photo())
    with pytest.raises(ValueError, match="exported model"):
        keras_vit.export(model, tmp_path / "map.onnx", "onnx")
    segmenter = keras_vit.segmenter(model, "upernet", classes=2, blocks=(1, 2, 3, 3))
    assert segmenter(photo()).shape == (2, SIDE, SIDE, 2)
    np.testing.assert_array_equal(keras_vit.features(segmenter, photo(), [LAYERS])[LAYERS], found[LAYERS])
    own = keras.Model(model.input, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(model.output)))
    own.compile("adam", "mse")
    losses = own.fit(photo(), np.ones((2, 2)), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_folded_encoder_computes_the_same(tmp_path):
    model = keras_vit.build(weights=write(tmp_path / "file")[0], **TOKENS)
    copy, folds = fold(model)
    assert folds.queries == LAYERS
    np.testing.assert_allclose(numpy(copy(photo())), numpy(model(photo())), 0, 5 * NEAR)


def test_config_and_counts_are_those_of_the_published_encoder():
    config = keras_vit.ViTConfig(16, 768, 12, 12, 3072, pooling="none", class_token=False, final_norm="none")
    config = config.replace(attention="windowed", window_size=14, global_blocks=(3, 6, 9, 12), neck_size=256)
    assert parameter_count(config, 1024, 0) == 89_670_912
    small = config.replace(hidden_size=12, num_heads=3, mlp_dim=24, num_layers=3, global_blocks=(2,), window_size=2)
    model = keras_vit.build(small, include_top=False, input_shape=(48, 80, 3))
    assert parameter_count(small, (48, 80), 0) == model.count_params()
    assert keras_vit.flops(model).total > keras_vit.flops(keras_vit.with_input_shape(model, (48, 48, 3))).total


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window_size": 4}, "window_size 4, and 3"),
        ({"global_attn_indexes": [0]}, r"global_blocks \(1,\), and \(2,\)"),
        ({"output_channels": 8}, "neck_size 8, and 7"),
        ({"num_attention_heads": 2}, "2 heads, and 3"),
        ({"use_rel_pos": False}, "without positions"),
        ({"mlp_dim": 48}, "mlp_dim 48"),
        ({"image_size": 64}, "image size"),
        ({"model_type": "sam2_vision_model"}, "sam2"),
        ({"architectures": ["ViTModel"]}, "architectures"),
    ],
)
def test_contradictions_of_config_and_tensors_are_refused(changes, words, tmp_path):
    place, _ = write(tmp_path / "file", **changes)
    with pytest.raises(CheckpointError, match=words):
        keras_vit.build(weights=place, **TOKENS)


def test_a_file_without_a_role_is_refused(tmp_path):
    place, arrays = write(tmp_path / "file")
    roles = {name.replace("layers.0.", "layers.{}.").replace("layers.1.", "layers.{}.") for name in arrays}
    for role in sorted(role for role in roles if "layers.2" not in role):
        gone = {role.format(number) for number in range(LAYERS)}
        save_file({name: array for name, array in arrays.items() if name not in gone}, place / "model.safetensors")
        with pytest.raises(CheckpointError):
            keras_vit.build(weights=place, **TOKENS)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention": "windowed"}, "window_size"),
        ({"window_size": 3}, "window_size"),
        ({"attention": "windowed", "window_size": 3, "global_blocks": (4,)}, "global_blocks"),
        ({"attention": "windowed", "window_size": 3, "class_token": True}, "on their grid"),
        ({"neck_size": 8, "pooling": "gap"}, "neck"),
    ],
)
def test_what_no_config_can_be_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.ViTConfig(8, 12, 3, 3, 24, **{"class_token": False, "pooling": "none"} | fields)
