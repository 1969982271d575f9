"""Depths, and Dense Prediction Transformers of depths and classes: published heads against their own software.

golden/dense/heads holds heads of random weights as their software names them, what enters them from each tap, and what
it puts out: DINOv2 b8931f7, DINOv3 6876159, Depth Anything V2 a561b84, and transformers 5.24. What else may be switched
is held to a NumPy program that gives these numbers too.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from checks import is_same
from conftest import images, numpy, randomise
from dpt_in_numpy import MISTAKES, Head
from safetensors.numpy import load_file, save_file
from test_segmenter import NEAR, encoder, golden, write_head

import keras_vit
from keras_vit import dense
from keras_vit.layers import DepthOutput, DPTHead
from keras_vit.weights.families import HEAD_LAYOUTS
from keras_vit.weights.metadata.map_heads import facts_of_config
from keras_vit.weights.read import CheckpointError

RANGE = {"depth_range": (0.001, 10.0)}
NAMES = {
    "dinov2_depth_linear": RANGE,
    "dinov3_depth_linear": RANGE,
    "hf_dpt_depth": {},
    "authors_depth_anything_v2": {},
}
SMALL = {"channels": (3, 4, 5, 6), "features": 8, "outputs": 2}
SWITCHES = {  # of heads of each software
    "huggingface_dpt": {"readout": True, "first_units": 2},
    "huggingface_dpt_classes": {
        **{"readout": True, "first_units": 2, "unit_bias": False, "unit_norm": True},
        **{"end": "classes", "auxiliary": 3},
    },
    "dinov2_dpt": {"readout": True, "unit_bias": False, "before": "relu"},
    "dinov3_dpt": {"tap_norm": True, "unit_bias": False, "before": "relu"},
    "depth_anything": {"first_units": 2, "exact_sizes": True, "end": "depth_of_image"},
    "huggingface_depth_anything": {"first_units": 2, "exact_sizes": True, "end": "depth_of_image", "end_width": 6},
    "mmseg_dpt": {"readout": True, "unit_bias": False, "unit_norm": True, "before": "norm", "end": "classes_of_map"},
}
ALIKE = ("huggingface_dpt", "dinov2_dpt", "huggingface_depth_anything", "mmseg_dpt")  # to others, and written by night


def depths_of(model, taps, tokens):
    """What the head of a model and the layer of depths after it make of maps of taps."""
    joined = model.get_layer("taps").class_token
    if joined:
        pairs = zip(taps, tokens, strict=True)
        taps = [np.concatenate([tap, np.broadcast_to(each[:, None, None], tap.shape)], -1) for tap, each in pairs]
    return numpy(model.get_layer("depths")(model.head(taps)))


def faults_of_heads(folder):
    """Where heads of files put out other depths than their own software, from the same taps."""
    found = {}
    for name, arguments in NAMES.items():
        arrays = golden(name)
        taps = sorted(key[:-1] for key in arrays if key.startswith("tap_") and key.endswith("_b"))
        sizes = {"hidden_size": arrays[f"{taps[0]}b"].shape[-1], "num_layers": len(taps)}
        patch = 14 if "anything" in name else 8
        config = keras_vit.ViTConfig(patch, **sizes, num_heads=2, mlp_dim=8, activation="gelu")
        inner = keras_vit.build(config, include_top=False, pooling="none", input_shape=(2 * patch, 2 * patch, 3))
        model = keras_vit.depth_estimator(inner, weights=write_head(name, folder / name), **arguments)
        for size in [size for size in "ab" if f"head_{size}" in arrays]:
            maps = [arrays[f"{tap}{size}"] for tap in taps]
            tokens = [arrays.get(f"{tap.replace('tap', 'class')}{size}") for tap in taps]
            wanted = arrays[f"head_{size}"]
            error = np.abs(depths_of(model, maps, tokens) - wanted).max()
            if not error <= NEAR * max(1, np.abs(wanted).max() / 5):
                found[f"{name} {size}"] = float(error)
    return found


def test_heads_of_files_compute_what_their_software_does(tmp_path):
    assert faults_of_heads(tmp_path) == {}


def faults_elsewhere():
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        return faults_of_heads(Path(folder))


@pytest.mark.elsewhere("jax", "faults_elsewhere")
def test_heads_compute_the_same_on_jax(found):
    assert found == {}


def random_head(switches, seed=1):
    """A `DPTHead` of random weights, and these by path."""
    layer = DPTHead(**SMALL | switches, name="depth_head")
    layer.build([(None, None, None, 5 * (1 + layer.readout))] * 4)
    rng = np.random.default_rng(seed)
    weights = {}
    for weight in layer.weights:
        values = rng.normal(0, 0.3, weight.shape)
        values = np.abs(values) * 0.02 if weight.name == "moving_variance" else values
        weight.assign(values)
        weights[weight.path.partition("depth_head/")[2]] = values
    return layer, weights


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_is_that_of_the_papers_and_every_mistake_shows(name):
    layer, weights = random_head(SWITCHES[name])
    rng = np.random.default_rng(2)
    taps = [rng.normal(size=(1, 3, 5, 5)) for _ in range(4)]  # an odd grid, which is not square
    tokens = [rng.normal(size=(1, 5)) for _ in range(4)]
    joined = taps
    if layer.readout:
        pairs = zip(taps, tokens, strict=True)
        joined = [np.concatenate([tap, np.broadcast_to(each[:, None, None], tap.shape)], -1) for tap, each in pairs]
    found = numpy(layer([each.astype("float32") for each in joined]))
    wanted = Head(weights, layer)(taps, tokens)
    assert found.shape == layer.compute_output_shape([(1, 3, 5, 5)] * 4)
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, 0, 2e-5 * largest)
    for mistake in mistakes_of(layer):
        other = Head(weights, layer, mistake)(taps, tokens)
        assert other.shape != wanted.shape or np.abs(found - other).max() > 5e-5 * largest, mistake


def mistakes_of(layer):
    """Those that a head with these switches can make."""
    without = {"doubled"} if not layer.exact_sizes else {"resized to the skip"}
    without |= {"tanh", "class before patch", "no read-out"} if not layer.readout else set()
    without |= {"first unit used"} if layer.first_units == 1 else set()
    without |= {"half in the end"} if layer.end == "classes_of_map" else set()
    without |= {"epsilon"} if not (layer.unit_norm or layer.tap_norm) else set()
    if layer.exact_sizes:
        without.add("shallow first")  # which is no order of sizes
    return [mistake for mistake in MISTAKES if mistake not in without]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in ALIKE else ()) for name in SWITCHES]
)
def test_names_of_each_software_are_written_as_they_were_read(name, tmp_path):
    row = HEAD_LAYOUTS[name]
    arguments = {"outputs": 1} if name in ("huggingface_dpt", "dinov2_dpt", "depth_anything") else {}
    _, weights = random_head(SWITCHES[name] | arguments)
    assert row.unmapped(weights) == []
    arrays = {key: np.asarray(array, "float32") for key, array in row.to_file(weights).items()}
    save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, tmp_path / "head.safetensors")
    call = keras_vit.segmenter if row.task == "segmentation" else keras_vit.depth_estimator
    ranges = RANGE if row.rule in ("bins", "range") else {}
    config = keras_vit.ViTConfig(8, 5, 4, 1, 8, activation="gelu")
    inner = keras_vit.build(config, include_top=False, pooling="none", input_shape=(24, 40, 3))
    model = call(inner, weights=tmp_path / "head.safetensors", **ranges)
    assert model.layouts[0] == name
    assert model.blocks == (1, 2, 3, 4)
    assert model.normed == row.normed
    written = keras_vit.save_checkpoint(model, tmp_path / "again.safetensors")
    assert is_same(load_file(tmp_path / "head.safetensors"), load_file(written))
    photo = images(1, 24, 40, 3)
    if name in ("dinov3_dpt", "huggingface_dpt_classes"):
        model.save(tmp_path / "model.keras")
        kept = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(numpy(kept(photo)), numpy(model(photo)))
    again = call(inner, weights=written)  # by its note, which has the range too
    np.testing.assert_array_equal(numpy(again(photo)), numpy(model(photo)))
    assert (again.unit, again.depth_range) == (model.unit, model.depth_range)


def write_folder(folder, encoder_layout, config, switches):
    """A folder of transformers with encoder and head in one file, and the encoder and the head's weights."""
    folder.mkdir()
    row = HEAD_LAYOUTS["huggingface_dpt"]
    fields = keras_vit.ViTConfig(8, 5, 4, 1, 8, activation="gelu", layer_norm_epsilon=1e-6)
    fields = fields.replace(layer_scale="both") if "dinov2" in encoder_layout else fields
    inner = randomise(keras_vit.build(fields, include_top=False, pooling="none", input_shape=(24, 24, 3)))
    part = keras_vit.save_checkpoint(inner, folder / "part.safetensors", encoder_layout)
    prefix = "backbone." if "dinov2" in encoder_layout else "dpt."
    arrays = {prefix + name: array for name, array in load_file(part).items()}
    part.unlink()
    arrays |= row.to_file(random_head(switches | {"outputs": 1})[1])
    arrays = {name: np.ascontiguousarray(array, "float32") for name, array in arrays.items()}
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return inner, arrays


SIZES = {"hidden_size": 5, "num_attention_heads": 1, "num_hidden_layers": 4, "hidden_act": "gelu", "patch_size": 8}
SIZES |= {"layer_norm_eps": 1e-6, "image_size": 24}
FOLDERS = {
    "huggingface": {"model_type": "dpt", "backbone_out_indices": [0, 1, 2, 3], **SIZES},
    "huggingface_dinov2": {
        **{"model_type": "dpt", "num_attention_heads": 9, "hidden_size": 768},
        "backbone_config": {"model_type": "dinov2", "out_indices": [1, 2, 3, 4], "apply_layernorm": True, **SIZES},
    },
}


@pytest.mark.parametrize("layout", FOLDERS)
def test_folders_of_transformers_say_blocks_norms_and_positions(layout, tmp_path):
    """Of DPT's own encoder blocks are counted from 0, of another one from 1; positions follow another rule."""
    inner, arrays = write_folder(tmp_path / "folder", layout, FOLDERS[layout], SWITCHES["huggingface_dpt"])
    model = keras_vit.depth_estimator(weights=tmp_path / "folder", input_shape=(24, 24, 3))
    is_plain = layout == "huggingface"
    assert (model.blocks, model.normed) == ((1, 2, 3, 4), not is_plain)
    assert (model.unit, model.layouts) == ("inverse" if is_plain else "metres", ("huggingface_dpt", layout))
    method = model.get_layer("position_embedding").resize_method
    assert method == ("bilinear" if is_plain else "bicubic")
    assert not any("outside of" in line for line in model.load_report)
    assert keras_vit.depth_estimator(weights=tmp_path / "folder", strict=True).blocks == model.blocks
    photo = 0.8 * images(1, 24, 24, 3)
    taps = keras_vit.features(inner, photo, [1, 2, 3, 4], norm=not is_plain)
    weights = {path: np.asarray(value) for path, value in by_path(model.head).items()}
    maps, tokens = ([each[number] for number in (1, 2, 3, 4)] for each in (taps, taps.prefix_tokens))
    depths = np.maximum(Head(weights, model.head)(maps, [each[:, 0] for each in tokens]), 0)
    found = numpy(model(photo))
    assert depths.max() > 0
    wanted = dense.resize(depths, (24, 24), "bicubic")[..., 0]
    np.testing.assert_allclose(found, wanted, 0, 2e-5 * np.abs(wanted).max())
    assert np.abs(found - dense.resize(depths, (24, 24))[..., 0]).max() > 1e-3 * np.abs(wanted).max()
    written = keras_vit.save_checkpoint(model, tmp_path / "written")
    assert is_same(arrays, load_file(written))
    assert json.loads((tmp_path / "written" / "config.json").read_text()) == FOLDERS[layout]
    again = keras_vit.depth_estimator(weights=tmp_path / "written", input_shape=(24, 24, 3))
    np.testing.assert_array_equal(numpy(again(photo)), found)
    for word, value in (
        ("is_hybrid", True),
        ("readout_type", "add"),
        ("readout_type", "ignore"),
        ("head_in_index", 0),
        ("reassemble_factors", [4, 2, 1, 1]),
        ("use_batch_norm_in_fusion_residual", True),
    ):
        (tmp_path / "folder" / "config.json").write_text(json.dumps(FOLDERS[layout] | {word: value}))
        with pytest.raises(CheckpointError, match=word):
            keras_vit.depth_estimator(weights=tmp_path / "folder")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_depth": 37}, "max_depth=37"),  # transformers multiplies relative depths by it, too
        ({"head_in_index": 0}, "head_in_index=0"),
        ({"reassemble_factors": [4, 2, 1, 1]}, r"\[4, 2, 1, 1\]"),
        ({"backbone_config": {"out_indices": [4, 3, 2, 1]}}, "4, 3, 2, 1"),
        ({"backbone_config": {"out_indices": [1, 2, 3, 3]}}, "1, 2, 3, 3"),
    ],
)
def test_heads_that_transformers_computes_otherwise_are_refused(change, words):
    config = {"model_type": "depth_anything", "max_depth": 1, "head_in_index": -1, "reassemble_factors": [4, 2, 1, 0.5]}
    config |= {"backbone_config": {"out_indices": [1, 2, 3, 4]}}
    assert "max_depth" not in facts_of_config(config, "huggingface_depth_anything", Path("a"))
    metric = config | {"depth_estimation_type": "metric"}
    assert facts_of_config(metric | {"max_depth": 37}, "huggingface_depth_anything", Path("a"))["max_depth"] == 37
    assert "max_depth" not in facts_of_config(metric | {"max_depth": None}, "huggingface_depth_anything", Path("a"))
    with pytest.raises(CheckpointError, match=words):
        facts_of_config(config | change, "huggingface_depth_anything", Path("a"))


def by_path(layer):
    return {weight.path.partition(f"{layer.name}/")[2]: numpy(weight) for weight in layer.weights}


def test_numbers_become_depths_by_the_rule_of_each_software():
    numbers = np.array([-3.0, 0.5, 20.0], "float32").reshape(1, 1, 3, 1)
    for rule, between, wanted in (
        ("relu", None, [0, 0.5, 20]),
        ("range", (1.0, 10.0), [1, 1.5, 10]),  # the smallest depth is added, and then the largest is the end
        ("sigmoid", (0.0, 20.0), 20 / (1 + np.exp([3.0, -0.5, -20]))),
    ):
        np.testing.assert_allclose(numpy(DepthOutput(rule, between)(numbers))[0, 0], wanted, 1e-6)


def test_depths_of_bins_follow_the_paper_and_every_mistake_shows(tmp_path):
    """The class token behind each patch, un-normed taps, four times the size before ReLU and bins."""
    inner = encoder(hidden_size=16, num_layers=2)
    file = write_head("dinov2_depth_linear", tmp_path / "head")
    model = keras_vit.depth_estimator(inner, weights=file, **RANGE)
    photo = images(1, 24, 24, 3)
    kernel, bias = model.head.get_weights()
    taps = keras_vit.features(inner, photo, [2], norm=False)
    token = np.broadcast_to(taps.prefix_tokens[2][:, :1, None], taps[2].shape)

    def by_parts(first, second, late=False, offset=0.1, largest=10.0):
        logits = np.concatenate([first, second], -1) @ kernel[0, 0] + bias
        logits = logits if late else dense.resize(logits, (12, 12))
        shares = np.maximum(logits, 0) + offset
        depths = (shares * np.linspace(0.001, largest, 256)).sum(-1) / shares.sum(-1)
        depths = dense.resize(depths[..., None], (12, 12)) if late else depths[..., None]
        return dense.resize(depths, (24, 24))[..., 0]

    found = numpy(model(photo))
    np.testing.assert_allclose(found, by_parts(taps[2], token), 0, 2e-5)
    normed = keras_vit.features(inner, photo, [2])
    for wrong in (
        by_parts(token, taps[2]),
        by_parts(taps[2], token, late=True),
        by_parts(taps[2], token, offset=0.0),
        by_parts(taps[2], token, largest=80.0),
        by_parts(normed[2], np.broadcast_to(normed.prefix_tokens[2][:, :1, None], token.shape)),
    ):
        assert np.abs(found - wrong).max() > 1e-4
    assert (model.unit, model.depth_range) == ("metres", (0.001, 10.0))


def test_ranges_that_no_file_holds_are_asked_for(tmp_path):
    linear = write_head("dinov2_depth_linear", tmp_path / "linear")
    with pytest.raises(ValueError, match="which no file holds"):
        keras_vit.depth_estimator(encoder(), weights=linear)
    with pytest.raises(CheckpointError, match=r"keras_vit\.depth_estimator"):
        keras_vit.segmenter(encoder(), weights=linear)
    file = write_head("authors_depth_anything_v2", tmp_path / "anything")
    config = keras_vit.ViTConfig(14, 12, 12, 2, 8, activation="gelu")
    inner = keras_vit.build(config, include_top=False, pooling="none", input_shape=(28, 28, 3))
    assert keras_vit.depth_estimator(inner, weights=file).unit == "inverse"
    metric = file.rename(file.parent / "depth_anything_v2_metric_hypersim_vits.safetensors")
    with pytest.raises(ValueError, match="20 for files of Hypersim"):
        keras_vit.depth_estimator(inner, weights=metric)
    model = keras_vit.depth_estimator(inner, weights=metric, max_depth=20)
    assert (model.unit, model.depth_range, model.blocks) == ("metres", (0.0, 20.0), (3, 6, 9, 12))
    first = metric.rename(file.parent / "depth_anything_vits14.safetensors")
    assert keras_vit.depth_estimator(inner, weights=first).blocks == (9, 10, 11, 12)
    with pytest.raises(ValueError, match="multiple"):
        keras_vit.depth_estimator(inner, weights=first, input_shape=(30, 28, 3))


@pytest.mark.parametrize(
    ("head", "arguments", "rules"),
    [
        ("linear4", RANGE | (rules := {"bins": "log", "normalise": "softmax"}), rules),
        ("dpt_metric", {"max_depth": 5.0}, {"rule": "sigmoid", "depth_range": (0.0, 5.0)}),
    ],
)
def test_fresh_heads_learn_depths(head, arguments, rules):
    photos = images(4, 24, 32, 3)
    targets = np.full((4, 24, 32), 3.0, "float32")
    targets[:, :, :16] = 1.0
    photos[:, :, 16:] *= 0.1
    model = keras_vit.depth_estimator(encoder(num_layers=4, input_shape=(24, 32, 3)), head, **arguments)
    assert (model.unit, model.output_shape) == ("metres", (None, 24, 32))
    config = model.get_layer("depths").get_config()
    assert config == config | rules
    model.compile(keras.optimizers.Adam(0.01), "mae", run_eagerly=True)
    losses = model.fit(photos, targets, 4, 5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match=r"range|largest"):
        keras_vit.depth_estimator(encoder(num_layers=4), head, depth_range=(3.0, 1.0))


def test_a_segmenter_of_dpt_has_classes_of_the_image():
    model = keras_vit.segmenter(encoder(num_layers=4, input_shape=(24, 40, 3)), "dpt", classes=3)
    assert numpy(model(images(1, 24, 40, 3))).shape == (1, 24, 40, 3)
    assert not model.normed
    assert (model.head.end, model.head.unit_norm, model.head.unit_bias) == ("classes", True, False)
    sizes = keras_vit.segmenter(encoder(num_layers=4), "dpt", classes=3, input_shape=(None, None, 3))
    assert numpy(sizes(images(1, 24, 40, 3))).shape == (1, 24, 40, 3)


def count(channels, features, size, **switches):
    """Parameters of a `DPTHead`, of which none is drawn."""
    arguments = {"outputs": 1} | switches
    with keras.StatelessScope(initialize_variables=False):
        layer = DPTHead(channels, features, **arguments)
        layer.build([(None, None, None, size * (1 + layer.readout))] * 4)
        found = sum(int(np.prod(weight.shape)) for weight in layer.weights)
        learned = found - 2 * sum(int(np.prod(w.shape)) for w in layer.weights if w.name == "moving_mean")
    keras_vit.keras_private.drop_uninitialized_variables()
    return learned


@pytest.mark.parametrize(
    ("name", "size", "channels", "features", "outputs", "parameters", "encoder_parameters"),
    [
        ("dinov2_dpt", 384, (48, 96, 192, 384), 256, 1, 13_961_377, 0),
        ("dinov2_dpt", 768, (96, 192, 384, 768), 256, 1, 24_193_921, 0),
        ("dinov2_dpt", 1024, (128, 256, 512, 1024), 256, 1, 34_190_017, 0),
        ("dinov2_dpt", 1536, (192, 384, 768, 1536), 256, 1, 61_800_769, 0),
        ("dinov3_dpt", 4096, (2048,) * 4, 512, 256, 230_687_776, 0),
        ("depth_anything", 384, (48, 96, 192, 384), 64, 1, 24_785_089, 22_056_576),  # S/14 with its mask token
        ("depth_anything", 768, (96, 192, 384, 768), 128, 1, 97_470_785, 86_580_480),
        ("depth_anything", 1024, (256, 512, 1024, 1024), 256, 1, 335_315_649, 304_368_640),
        ("huggingface_dpt", 1024, (256, 512, 1024, 1024), 256, 1, 343_030_465, 303_690_752),  # L/16 at 384
        ("huggingface_dpt_classes", 1024, (256, 512, 1024, 1024), 256, 150, 343_960_364, 303_690_752),
    ],
)
def test_heads_have_the_published_numbers_of_parameters(
    name, size, channels, features, outputs, parameters, encoder_parameters
):
    switches = SWITCHES[name] | {"outputs": outputs, "end_width": 32}
    switches |= {"auxiliary": outputs} if "auxiliary" in switches else {}
    assert count(channels, features, size, **switches) == parameters - encoder_parameters


def test_bins_have_the_published_numbers_of_parameters():
    for size, taps, parameters in ((384, 1, 196_864), (768, 1, 393_472), (1024, 4, 4 * 524_288 + 256)):
        layer = keras_vit.layers.LinearHead(256, use_batch_norm=False, upsample=4)
        layer.build([(None, None, None, 2 * size)] * taps)
        assert layer.count_params() == parameters
