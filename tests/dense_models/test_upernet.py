"""UPerNet with its necks: the layer against a NumPy program, files in every layout, and what a config.json says.

The program gives the numbers of transformers 5.24 and mmsegmentation 1.2.2 too: on small random models the largest
difference was 9.6e-6 of logits up to 20, on TensorFlow, JAX and torch.
"""

import json

import keras
import numpy as np
import pytest
from checks import fixed_and_open, is_same, on_other_backends, random_weights
from conftest import images, numpy, randomise
from safetensors.numpy import load_file, save_file
from test_segmenter import encoder
from upernet_in_numpy import MISTAKES, Head

import keras_vit
from keras_vit import dense
from keras_vit.config.heads import tap_blocks
from keras_vit.layers import UPerNetHead
from keras_vit.model.copies import uninitialized_variables
from keras_vit.weights.families import HEAD_LAYOUTS
from keras_vit.weights.read import CheckpointError

SWITCHES = {  # of heads of each software
    "huggingface_beit_upernet": {"channels": 5, "auxiliary": (4, 3)},
    "huggingface_upernet": {"channels": 6, "neck": "none", "auxiliary": (4, 3)},
    "mmseg_upernet": {"channels": 6, "neck": "multi_level", "neck_channels": 7, "auxiliary": (4, 3)},
    "mmseg_upernet_pyramid": {"channels": 6, "pool_scales": (1, 2, 3, 6)},
}
ALIKE = ("huggingface_upernet", "mmseg_upernet")  # to others, and written by night
WIDTH = 5
NEAR = 4e-6  # of the largest number, in float32; GELU by tanh is off by 1.2e-5


def random_head(switches, seed=1):
    """A `UPerNetHead` of random weights, and these by path."""
    layer = UPerNetHead(3, **switches, name="segmentation_head")
    return layer, random_weights(layer, [(None, None, None, WIDTH)] * 4, around_one=("gamma",), seed=seed)


def taps_of(seed=2, grid=(5, 7)):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(1, *grid, WIDTH)) for _ in range(4)]


@pytest.mark.parametrize("name", SWITCHES)
def test_every_neck_is_that_of_the_papers_and_every_mistake_shows(name):
    layer, weights = random_head(SWITCHES[name])
    taps = taps_of()
    found = numpy(layer([each.astype("float32") for each in taps]))
    wanted = Head(weights, layer)(taps)
    assert found.shape == layer.compute_output_shape([(1, 5, 7, WIDTH)] * 4)
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, 0, NEAR * largest)
    without = {"pyramid": set(), "multi_level": {"tanh"}, "none": {"tanh", "other pool"}}[layer.neck]
    for mistake in sorted(set(MISTAKES) - without):
        other = Head(weights, layer, mistake)(taps)
        assert np.abs(found - other).max() > 2 * NEAR * largest, mistake


def faults_elsewhere():
    """On another backend, at an open size too."""
    found = {}
    for name, switches in SWITCHES.items():
        layer, weights = random_head(switches)
        taps = taps_of()
        errors = fixed_and_open(layer, taps, Head(weights, layer)(taps), NEAR)
        found |= {f"{name} {way}": error for way, error in errors.items()}
    return found


def test_open_sizes_give_the_same():
    assert faults_elsewhere() == {}


@on_other_backends
def test_heads_compute_the_same_on_other_backends(backend, found):
    assert found == {}, backend


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in ALIKE else ()) for name in SWITCHES]
)
def test_names_of_each_software_are_written_as_they_were_read(name, tmp_path):
    row = HEAD_LAYOUTS[name]
    _, weights = random_head(SWITCHES[name])
    assert row.unmapped(weights) == []
    arrays = {key: np.ascontiguousarray(array, "float32") for key, array in row.to_file(weights).items()}
    counts = {key.replace("running_mean", "num_batches_tracked") for key in arrays if key.endswith("running_mean")}
    arrays |= dict.fromkeys(counts, np.array(7, "int64"))
    save_file(arrays, tmp_path / "head.safetensors")
    inner = encoder(WIDTH, 6, input_shape=(40, 56, 3), num_heads=1)
    model = keras_vit.segmenter(inner, weights=tmp_path / "head.safetensors")
    assert model.layouts[0] == name
    assert model.blocks == ((2, 3, 4, 6) if row.taps == "thirds" else (2, 3, 5, 6))
    assert model.normed == row.normed
    assert model.head.auxiliary == SWITCHES[name].get("auxiliary", ())
    assert not [weight.path for weight in model.trainable_weights if "auxiliary" in weight.path]
    written = keras_vit.save_checkpoint(model, tmp_path / "again.safetensors")
    assert is_same(arrays, load_file(written))
    photo = images(1, 40, 56, 3)
    model.save(tmp_path / "model.keras")
    kept = keras.models.load_model(tmp_path / "model.keras")
    again = keras_vit.segmenter(inner, weights=written)
    for each in (kept, again):
        np.testing.assert_array_equal(numpy(each(photo)), numpy(model(photo)))
    other = keras_vit.segmenter(inner, weights=written, classes=4)
    assert other.load_report[-2:] == ("new classifier", "set aside classifier of 3 classes")


MMSEG = {"model_type": "mmseg", "num_attention_heads": 1, "patch_size": 8, "blocks": [1, 2, 4, 6]}
SIZES = {"hidden_size": 5, "num_attention_heads": 1, "num_hidden_layers": 6, "hidden_act": "gelu", "patch_size": 8}
SIZES |= {"layer_norm_eps": 1e-6, "image_size": 24, "intermediate_size": 10}
LABELS = {"id2label": {"0": "sea", "1": "sky", "2": "sand"}}
BEIT = {"model_type": "beit", "architectures": ["BeitForSemanticSegmentation"], "out_indices": [1, 2, 3, 5], **LABELS}
FOLDERS = {
    "huggingface_beit_upernet": BEIT | SIZES | {"pool_scales": [1, 2, 3, 6]},
    "huggingface_upernet": {
        **{"model_type": "upernet", "hidden_size": 6, **LABELS},
        "backbone_config": {"model_type": "dinov2", "out_indices": [1, 2, 4, 6], "apply_layernorm": False, **SIZES},
    },
    "mmseg_upernet": MMSEG | {"neck": "multi_level", "final_norm": True},
    "mmseg_upernet_pyramid": MMSEG | {"neck": "feature2pyramid", "final_norm": False},
}
ENCODERS = {  # their layouts, and fields that they have besides
    "huggingface_beit_upernet": (
        "huggingface_beit",
        {"qkv_bias": "query_value", "position_embedding": "none", "relative_bias": "blocks", "layer_scale": "both"},
    ),
    "huggingface_upernet": ("huggingface_dinov2", {"layer_scale": "both"}),
    "mmseg_upernet": ("mmseg", {}),
    "mmseg_upernet_pyramid": ("mmseg", {"final_norm": "none"}),
}


def write_folder(folder, name, config=None, head=None):
    """A folder with encoder and head in one file."""
    folder.mkdir()
    row, (layout, fields) = HEAD_LAYOUTS[name], ENCODERS[name]
    start = keras_vit.ViTConfig(8, WIDTH, 6, 1, 10, activation="gelu", layer_norm_epsilon=1e-6)
    shape = {"include_top": False, "pooling": "none", "input_shape": (24, 24, 3)}
    final = {"final_norm": "none"} if "beit" in name else {}
    inner = randomise(keras_vit.build(start.replace(**fields, **final), **shape))
    part = keras_vit.save_checkpoint(inner, folder / "part.safetensors", layout)
    arrays = {row.encoder[0] + key: array for key, array in load_file(part).items()}
    part.unlink()
    arrays |= row.to_file(random_head(SWITCHES[name] if head is None else head)[1])
    save_file(
        {key: np.ascontiguousarray(array, "float32") for key, array in arrays.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(FOLDERS[name] if config is None else config))


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_say_blocks_and_norms_and_are_written_as_they_were(name, tmp_path):
    """Of BEiT the authors' blocks, which are two after those that transformers reads."""
    write_folder(tmp_path / "folder", name)
    shape = (24, 24, 3)  # that of the file: tables are written for the model's size
    model = keras_vit.segmenter(weights=tmp_path / "folder", input_shape=shape, output_size="head")
    assert model.layouts == (name, ENCODERS[name][0])
    assert model.blocks == ((2, 3, 4, 6) if "beit" in name else (1, 2, 4, 6))
    assert model.class_names == (("sea", "sky", "sand") if name.startswith("hugging") else None)
    assert model.normed == ("last" if name == "mmseg_upernet" else False)
    assert "auxiliary" not in str(model.load_report)
    photo = images(1, *shape) * (1 if "beit" in name else 2)  # in the range of their photos
    last = name == "mmseg_upernet"  # which norms the tap of the last block alone
    taps = [keras_vit.features(model.encoder, photo, [n], norm=last and n == 6)[n] for n in model.blocks]
    wanted = numpy(model.head(taps))
    np.testing.assert_allclose(numpy(model(photo)), wanted, 0, 1e-5 * np.abs(wanted).max())
    written = keras_vit.save_checkpoint(model, tmp_path / "again")
    assert is_same(load_file(tmp_path / "folder" / "model.safetensors"), load_file(written))
    again = keras_vit.segmenter(weights=tmp_path / "again", input_shape=shape, output_size="head")
    assert again.own_arguments() | {"folder_config": {}} == model.own_arguments() | {"folder_config": {}}
    np.testing.assert_array_equal(numpy(again(photo)), numpy(model(photo)))


def test_a_beit_for_masks_is_opened_strictly_and_gives_its_encoder(tmp_path):
    write_folder(tmp_path / "folder", "huggingface_beit_upernet")
    keras_vit.segmenter(weights=tmp_path / "folder", input_shape=(24, 24, 3), strict=True)
    alone = keras_vit.build(weights=tmp_path / "folder", include_top=False, pooling="none")
    assert any("set aside" in line and "auxiliary_head" in line for line in alone.load_report)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("mmseg_upernet", {"neck": "feature2pyramid"}, "neck 'feature2pyramid', and 'multi_level'"),
        ("mmseg_upernet_pyramid", {"neck": "multi_level"}, "neck 'multi_level', and 'feature2pyramid'"),
        ("mmseg_upernet", {"final_norm": False}, "final_norm False, and True"),
        ("mmseg_upernet_pyramid", {"final_norm": True}, "final_norm True, and False"),
        ("mmseg_upernet", {"patch_size": 16}, "patch_size 16, and 8"),
        ("mmseg_upernet", {"interpolate_mode": "area"}, "interpolate_mode='area'"),
        ("mmseg_upernet", {"blocks": [1, 2, 4]}, "4 numbers from 1 to 6"),
        ("huggingface_beit_upernet", {"out_indices": [1, 2, 3, 7]}, r"blocks=\(2, 3, 4, 8\), of .*folder"),
        ("huggingface_beit_upernet", {"pool_scales": [1, 2, 3]}, "number of pool_scales 3, and 4"),
        ("huggingface_beit_upernet", {"id2label": {"0": "sea"}}, "number of id2label 1, and 3"),
        ("huggingface_upernet", {"hidden_size": 5}, "hidden_size 5, and 6"),
    ],
)
def test_contradictions_of_config_and_tensors_are_refused(name, change, words, tmp_path):
    write_folder(tmp_path / "folder", name, FOLDERS[name] | change)
    with pytest.raises(ValueError, match=words):
        keras_vit.segmenter(weights=tmp_path / "folder", input_shape=(24, 24, 3))


def test_a_head_of_other_shapes_or_for_another_width_is_refused(tmp_path):
    write_folder(tmp_path / "folder", "mmseg_upernet")
    path = tmp_path / "folder" / "model.safetensors"
    arrays = load_file(path)
    arrays["decode_head.fpn_convs.1.bn.bias"] = np.zeros(5, "float32")
    save_file(arrays, path)
    with pytest.raises(CheckpointError, match="fpn_1/batch_norm/beta"):
        keras_vit.segmenter(weights=path, input_shape=(24, 24, 3))
    heads = {name: array for name, array in arrays.items() if not name.startswith("backbone.")}
    save_file(heads, tmp_path / "head.safetensors")
    with pytest.raises(CheckpointError, match="encoder that it was trained on"):
        keras_vit.segmenter(encoder(6, 6, num_heads=2), weights=tmp_path / "head.safetensors")


def test_a_fresh_head_learns_on_a_frozen_encoder():
    rng = np.random.default_rng(0)
    photos = rng.uniform(-0.5, 0.5, (8, 24, 32, 3)).astype("float32")
    masks = np.zeros((8, 24, 32), "int32")
    photos[:, :, :16] += 0.5
    masks[:, :, :16] = 1
    masks[:, 0] = 255
    inner = encoder(num_layers=4, input_shape=(24, 32, 3))
    model = keras_vit.segmenter(inner, "upernet", classes=2)
    assert (model.blocks, model.normed, model.output_shape) == ((2, 2, 3, 4), False, (None, 24, 32, 2))
    assert {weight.path.split("/")[0] for weight in model.trainable_weights} == {"segmentation_head"}
    model.compile(
        keras.optimizers.Adam(0.01), dense.CrossEntropy(), metrics=[dense.SegmentationIoU(2)], jit_compile=False
    )
    history = model.fit(photos, masks, 4, 8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 2
    assert not keras_vit.segmenter(inner, "upernet", classes=2).layouts[1]


def test_photos_of_any_size_are_taken_by_windows():
    model = keras_vit.segmenter(encoder(num_layers=4, input_shape=(None, None, 3)), "upernet", classes=3)
    photo = np.random.default_rng(0).integers(0, 255, (30, 41, 3), "uint8")
    found = keras_vit.segment(model, photo, short_side=24, scores=True)
    assert found.scores.shape == (30, 41, 3)
    assert len(np.unique(found.classes)) > 1


def test_grids_of_one_patch_are_refused():
    with pytest.raises(ValueError, match="at least two patches"):
        keras_vit.segmenter(encoder(num_layers=4, input_shape=(8, 24, 3)), "upernet", classes=2)


def test_taps_are_those_of_beit():
    assert tap_blocks("thirds", 4, 12) == (4, 6, 8, 12)
    assert tap_blocks("thirds", 4, 24) == (8, 12, 16, 24)


def count(layers):
    """Parameters as torch counts them, without BatchNorm's moving statistics."""
    weights = [weight for layer in layers for weight in layer.weights]
    return sum(int(np.prod(weight.shape)) for weight in weights if not weight.name.startswith("moving"))


def test_heads_have_the_published_numbers_of_parameters():
    """BEiT-B for ADE20K of transformers: 163,407,980 with its encoder; BEiT-L: 441,271,084. None is drawn."""
    sizes = {768: (163_407_980, 12), 1024: (441_271_084, 24)}
    for width, (total, num_layers) in sizes.items():
        with uninitialized_variables():
            layer = UPerNetHead(150, width, auxiliary=(256, 150))
            layer.build([(None, None, None, width)] * 4)
            config = keras_vit.ViTConfig(
                **{"patch_size": 16, "hidden_size": width, "num_layers": num_layers, "num_heads": width // 64},
                **{"mlp_dim": 4 * width, "qkv_bias": "query_value", "position_embedding": "none"},
                **{"relative_bias": "blocks", "layer_scale": "both", "final_norm": "none"},
            )
            inner = keras_vit.build(config, include_top=False, pooling="none", input_shape=(640, 640, 3))
        pieces = {layer.levels: 7_081_728, layer.auxiliary_layer: 1_808_534}
        if width == 768:
            assert {piece: count([piece]) for piece in pieces} == pieces
            assert count([layer]) - sum(pieces.values()) == 67_963_542
        assert count([layer, inner]) == total
