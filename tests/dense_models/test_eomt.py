"""EoMT: files of both softwares against a NumPy program, which gives the numbers of transformers 5.24.

With float32 on a CPU that program and transformers differed by 1.1e-5 of mask logits up to 8.
"""

import json

import keras
import numpy as np
import pytest
from checks import differing, is_same, on_every_backend
from conftest import images, numpy
from queries_in_numpy import (
    BLOCKS,
    CLASSES,
    HEADS,
    LAYERS,
    MISTAKES,
    PATCH,
    QUERIES,
    SIDE,
    TURNED,
    WIDTH,
    Eomt,
    weights,
)
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import dense
from keras_vit.exporting.formats import FORMATS
from keras_vit.layers import MaskHead
from keras_vit.model.graph import build_graph
from keras_vit.model.head import Head
from keras_vit.weights.read import CheckpointError

CONFIG = {
    **{"model_type": "eomt", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS},
    **{"num_register_tokens": 2, "patch_size": PATCH, "image_size": SIDE, "layer_norm_eps": 1e-6, "mlp_ratio": 2},
    **{"num_queries": QUERIES, "num_blocks": BLOCKS, "num_upscale_blocks": 2, "hidden_act": "gelu"},
    "id2label": {str(number): name for number, name in enumerate(("sky", "sea", "sand"))},
}
DINOV3 = {name: value for name, value in CONFIG.items() if name != "mlp_ratio"} | {
    **{"model_type": "eomt_dinov3", "intermediate_size": 2 * WIDTH, "key_bias": False, "value_bias": True},
    **{"query_bias": True, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
}
AUTHORS = {"model_type": "eomt_authors", "num_attention_heads": HEADS, "num_blocks": BLOCKS}
KINDS = {"dinov2": CONFIG, "dinov3": DINOV3, "authors": AUTHORS}
NEAR = 2e-5  # of the largest number: float32 through three blocks and two norms of a map


def authors_names(arrays):
    """The same model with the authors' names, and their normalization of pixels."""
    found = {}
    for name, array in arrays.items():
        if ".attention.q_proj." in name:
            array = np.concatenate([arrays[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        elif ".attention.k_proj." in name or ".attention.v_proj." in name or name.startswith("criterion"):
            continue
        found[_spelled(name)] = array
    table = found["network.encoder.backbone.pos_embed"]
    found["network.encoder.backbone.pos_embed"] = table[None]
    mean, std = (np.array(each, "float32").reshape(1, 3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.2, 0.3, 0.4)))
    return found | {"network.encoder.pixel_mean": mean, "network.encoder.pixel_std": std}


WORDS = (
    *(("embeddings.cls_token", "cls_token"), ("embeddings.register_tokens", "reg_token")),
    *(
        ("embeddings.position_embeddings.weight", "pos_embed"),
        ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ),
    *(("attention.q_proj", "attn.qkv"), ("attention.out_proj", "attn.proj"), ("layernorm.", "norm.")),
    *(("layer_scale1.lambda1", "ls1.gamma"), ("layer_scale2.lambda1", "ls2.gamma"), ("layers.", "blocks.")),
)
OF_HEAD = (
    *(("query.weight", "q.weight"), ("class_predictor", "class_head"), ("upscale_block.block", "upscale")),
    *(("layernorm2d", "norm"), *((f"mask_head.fc{number}", f"mask_head.{2 * number - 2}") for number in (1, 2, 3))),
)


def _spelled(name):
    of_encoder = name.startswith(("embeddings.", "layers.", "layernorm."))
    for old, new in WORDS if of_encoder else OF_HEAD:
        name = name.replace(old, new)
    return ("network.encoder.backbone." if of_encoder else "network.") + name


def write(folder, kind, **changes):
    """A folder with a small file, and its arrays with transformers' names."""
    folder.mkdir(exist_ok=True)
    arrays = weights(kind == "dinov3")
    save_file(authors_names(arrays) if kind == "authors" else arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(KINDS[kind] | changes))
    return folder, arrays


def faults(folder):
    """Where a file's model puts out other numbers than the paper's equations."""
    found = {}
    for kind in KINDS:
        place, arrays = write(folder / kind, kind)
        photo = 0.8 * images(2, SIDE, SIDE, 3)
        model = keras_vit.segmenter(weights=place, raw=True)
        wanted = dict(zip(("class_logits", "mask_logits"), Eomt(arrays, kind == "dinov3")(photo), strict=True))
        if any("which no forward pass reads" in line for line in model.load_report):
            found[f"{kind} report"] = model.load_report
        answers = model(photo)
        scores = keras_vit.segmenter(weights=place)(photo)
        pairs = {f"{kind} {name}": (answers[name], wanted[name]) for name in wanted}
        pairs[f"{kind} scores"] = (scores, dense.semantic(*wanted.values(), (SIDE, SIDE)))
        found |= differing(pairs, NEAR)
    return found


faults_elsewhere, test_files_compute_what_the_papers_say, test_they_do_so_on_other_backends = on_every_backend(faults)


def test_flops_count_the_queries_in_the_blocks_that_have_them(tmp_path):
    model, side = keras_vit.segmenter(weights=write(tmp_path / "x", "dinov2")[0]), SIDE // PATCH
    tokens = 1 + CONFIG["num_register_tokens"] + side**2
    dense_layers = 2 * QUERIES * (4 * WIDTH**2 + 2 * WIDTH * 2 * WIDTH)
    products = 2 * 2 * WIDTH * ((tokens + QUERIES) ** 2 - tokens**2)
    assert model.head_flops(side, side) == model.head.flops(side, side) + BLOCKS * (dense_layers + products)
    assert keras_vit.flops(model).head == model.head_flops(side, side)


@pytest.mark.parametrize(
    ("kind", "mistake"), [*(("dinov2", mistake) for mistake in MISTAKES), ("dinov3", "masked"), ("dinov3", TURNED)]
)
def test_every_mistake_shows(kind, mistake):
    arrays, photo = weights(kind == "dinov3"), 0.8 * images(1, SIDE, SIDE, 3)
    right, wrong = (Eomt(arrays, kind == "dinov3", each)(photo)[1] for each in ("", mistake))
    assert np.abs(right - wrong).max() > 10 * NEAR * np.abs(right).max()


@pytest.mark.parametrize("kind", [pytest.param("dinov2", marks=pytest.mark.nightly), "dinov3", "authors"])
def test_files_are_written_as_they_were_read(kind, tmp_path):
    place, _ = write(tmp_path / "read", kind)
    model = keras_vit.segmenter(weights=place, raw=kind == "dinov3")
    photo = 0.8 * images(1, SIDE, SIDE, 3)
    wanted = keras.tree.map_structure(numpy, model(photo))
    model.save(tmp_path / "model.keras")
    kept = keras.models.load_model(tmp_path / "model.keras")
    before = load_file(place / "model.safetensors")
    for number, each in enumerate((model, kept)):
        folder = tmp_path / str(number)
        assert is_same(before, load_file(keras_vit.save_checkpoint(each, folder)))
        assert json.loads((folder / "config.json").read_text()) == KINDS[kind]
        for written in (folder, keras_vit.save_checkpoint(each, tmp_path / f"{number}.safetensors")):
            again = keras_vit.segmenter(weights=written, raw=model.raw)
            keras.tree.map_structure(
                np.testing.assert_array_equal, wanted, keras.tree.map_structure(numpy, again(photo))
            )
            assert (again.class_names, again.short_side) == (model.class_names, SIDE)
    assert kept.own_arguments() == model.own_arguments()
    assert kept.raw == model.raw
    assert kept.encoder.output_shape == (None, 1 + 2 + QUERIES + (SIDE // PATCH) ** 2, WIDTH)


def test_photos_are_normalized_as_the_authors_network_does_inside(tmp_path):
    model = keras_vit.segmenter(weights=write(tmp_path / "authors", "authors")[0])
    np.testing.assert_allclose(model.preprocessing.std, (0.2, 0.3, 0.4), 1e-6)
    assert keras_vit.segmenter(weights=write(tmp_path / "hf", "dinov2")[0]).preprocessing.std == (0.229, 0.224, 0.225)


def test_other_sizes_resize_the_positions_and_photos_pass_in_even_windows(tmp_path):
    place, _ = write(tmp_path / "file", "dinov2")
    model = keras_vit.segmenter(weights=place, input_shape=(24, 40, 3))
    assert any("resized from (4, 4) to (3, 5)" in line for line in model.load_report)
    photo = 0.8 * images(1, 24, 40, 3)
    wanted = numpy(model(photo))
    assert wanted.shape == (1, 24, 40, CLASSES)
    free = keras_vit.segmenter(weights=place, input_shape=(None, None, 3))
    np.testing.assert_allclose(numpy(free(photo)), wanted, 0, 1e-5)
    own = keras_vit.segmenter(weights=place, output_size="head")
    assert numpy(own(0.8 * images(1, SIDE, SIDE, 3))).shape == (1, 16, 16, CLASSES)
    with pytest.raises(ValueError, match="multiples of the patch"):
        keras_vit.segmenter(weights=place, input_shape=(30, 40, 3))
    model = keras_vit.segmenter(weights=place)
    pixels = np.random.default_rng(1).integers(0, 255, (SIDE, 75, 3), "uint8")
    found = keras_vit.segment(model, pixels, scores=True)
    assert found.class_names == ("sky", "sea", "sand")
    total, count = np.zeros((SIDE, 75, CLASSES)), np.zeros((SIDE, 75, 1))
    for left in (0, 21, 43):  # three windows of 32 whose overlaps are even
        part = pixels[None, :, left : left + SIDE] / 255
        prepared = ((part - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).astype("float32")
        total[:, left : left + SIDE] += numpy(model(prepared))[0]
        count[:, left : left + SIDE] += 1
    np.testing.assert_allclose(found.scores, total / count, 0, 1e-4)
    raw = keras_vit.segmenter(weights=place, raw=True)
    with pytest.raises(ValueError, match="raw=True"):
        keras_vit.segment(raw, pixels)


def test_features_have_no_queries_and_attention_maps_are_refused(tmp_path):
    place, _ = write(tmp_path / "file", "dinov2")
    model, photo = keras_vit.segmenter(weights=place), 0.3 * images(1, SIDE, SIDE, 3)
    plain = keras_vit.build(weights=place, include_top=False, pooling="none")
    first = LAYERS - BLOCKS
    found, wanted = (keras_vit.features(each, photo, [first, LAYERS], norm=False) for each in (model, plain))
    np.testing.assert_allclose(found[first], wanted[first], 0, 1e-5)
    assert found[LAYERS].shape == wanted[LAYERS].shape == (1, 4, 4, WIDTH)
    assert found.prefix_tokens[LAYERS].shape == (1, 3, WIDTH)
    assert np.abs(found[LAYERS] - wanted[LAYERS]).max() > 1e-3  # patches see the queries
    with pytest.raises(ValueError, match="queries"):
        keras_vit.attention_maps(model.encoder, photo)


def test_another_number_of_classes_gets_a_new_class_head_that_learns(tmp_path):
    place, _ = write(tmp_path / "file", "dinov2")
    model = keras_vit.segmenter(weights=place, classes=2)
    assert model.load_report[-2:] == ("new class_head", "set aside class_head of 3 classes")
    trained = {weight.path.split("/")[0] for weight in model.trainable_weights}
    assert trained == {"segmentation_head", "query_tokens"}
    assert {w.layer_depth for w in model.trainable_weights} == {(LAYERS + 1, LAYERS + 1)}
    photos, masks = 0.8 * images(2, SIDE, SIDE, 3), np.zeros((2, SIDE, SIDE), "int32")
    masks[:, :, : SIDE // 2] = 1
    model.compile(keras.optimizers.Adam(0.01), dense.CrossEntropy(), run_eagerly=True)
    losses = model.fit(photos, masks, 2, 5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    with pytest.raises(CheckpointError, match="strict"):
        keras_vit.segmenter(weights=place, classes=2, strict=True)


@pytest.mark.parametrize(
    "form",
    [
        "onnx",
        pytest.param("saved_model", marks=pytest.mark.nightly),
        pytest.param("litert", marks=pytest.mark.nightly),
        pytest.param("openvino", marks=pytest.mark.nightly),
    ],
)
def test_exports_give_the_scores_of_each_pixel(form, tmp_path):
    place, _ = write(tmp_path / "file", "dinov2")
    model, path = keras_vit.segmenter(weights=place), tmp_path / f"scores{FORMATS[form].extension}"
    pixels = np.random.default_rng(2).integers(0, 255, (3, SIDE, SIDE, 3), "uint8")
    report = keras_vit.export(model, path, form, images=list(pixels))
    assert report.drift[0].output == "logits"
    assert report.top1_agreement == 1.0
    assert report.drift[0].max_difference < 1e-4
    raw = keras_vit.segmenter(weights=place, raw=True)
    report = keras_vit.export(raw, tmp_path / f"raw{FORMATS[form].extension}", form, images=list(pixels))
    assert [drift.output for drift in report.drift][:2] == ["class_logits", "mask_logits"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_queries": 4}, "num_queries 4, and 5 in the file"),
        ({"num_blocks": 1}, "num_blocks 1, and 2 in the file"),
        ({"num_upscale_blocks": 3}, "num_upscale_blocks 3, and 2 in the file"),
        ({"id2label": {"0": "sky"}}, "id2label 1, and 3 in the file"),
        ({"hidden_size": 24}, "hidden_size 24, and 16"),
        ({"model_type": "eomt_dinov3"}, "huggingface_eomt_dinov3"),
        ({"architectures": ["EomtDinov3ForUniversalSegmentation"]}, "architectures"),
    ],
)
def test_contradictions_of_config_and_tensors_are_refused(changes, words, tmp_path):
    place, _ = write(tmp_path / "file", "dinov2", **changes)
    with pytest.raises(CheckpointError, match=words):
        keras_vit.segmenter(weights=place)


def test_what_no_head_of_masks_can_be_is_refused(tmp_path):
    place, arrays = write(tmp_path / "file", "dinov2")
    with pytest.raises(ValueError, match="blocks"):
        keras_vit.segmenter(weights=place, blocks=(1, 2))
    del arrays["attn_mask_probs"]
    save_file(arrays, place / "model.safetensors")
    assert keras_vit.segmenter(weights=place).classes == CLASSES
    (place / "config.json").write_text(json.dumps({key: CONFIG[key] for key in CONFIG if key != "num_blocks"}))
    with pytest.raises(CheckpointError, match="4 in Large"):
        keras_vit.segmenter(weights=place)
    other = keras_vit.build(keras_vit.ViTConfig(8, 16, 3, 2, 32), include_top=False, pooling="none")
    with pytest.raises(CheckpointError, match="differences to Meta's weights"):
        keras_vit.segmenter(other, weights=write(tmp_path / "other", "dinov2")[0])


@pytest.mark.parametrize(
    ("width", "layers", "heads", "side", "queries", "classes", "blocks", "parameters"),
    [
        (384, 12, 6, 640, 200, 133, 3, 23_976_079),
        (768, 12, 12, 640, 200, 133, 3, 93_663_247),
        (1024, 24, 16, 512, 100, 150, 4, 316_021_042),
    ],
)
def test_models_have_the_published_numbers_of_parameters(
    width, layers, heads, side, queries, classes, blocks, parameters
):
    """Their files count weights of the loss and of masked attention, and no row of the class token in the table."""
    config = keras_vit.ViTConfig(
        16, width, layers, heads, 4 * width, registers=4, layer_scale="both", pooling="none", class_token=True
    )
    with keras.StatelessScope(initialize_variables=False):
        pixels = keras.Input((side, side, 3))
        model = build_graph(pixels, config, Head(0, None), None, "eomt", queries=(queries, blocks))
        head = MaskHead(classes, queries, config.num_prefix_tokens)
        head.build([model.output_shape, (None, side, side, 3)])
        found = sum(int(np.prod(weight.shape)) for weight in (*model.weights, *head.weights))
    keras_vit.keras_private.drop_uninitialized_variables()
    assert found - width + classes + 1 + blocks == parameters
