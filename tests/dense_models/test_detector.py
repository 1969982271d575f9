"""Detectors: YOLOS against a NumPy program, which gives the numbers of transformers 5.24; and boxes in photos."""

import json
import math

import keras
import numpy as np
import pytest
from checks import differing, is_same, on_every_backend
from conftest import images, numpy
from safetensors.numpy import load_file, save_file
from yolos_in_numpy import CLASSES, GRID, HEADS, LAYERS, MISTAKES, PATCH, TOKENS, WIDTH, Yolos, weights

import keras_vit
from keras_vit.dense_models.detection import photo_size
from keras_vit.exporting.formats import FORMATS
from keras_vit.images.numpy_pipeline import preprocess
from keras_vit.layers import BoxHead
from keras_vit.model.graph import build_graph
from keras_vit.model.head import Head
from keras_vit.weights.read import CheckpointError

CONFIG = {
    **{"model_type": "yolos", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS},
    **{"intermediate_size": 2 * WIDTH, "patch_size": PATCH, "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
    **{"image_size": [PATCH * side for side in GRID], "num_detection_tokens": TOKENS, "qkv_bias": True},
    "id2label": {str(number): f"thing {number}" for number in range(CLASSES)},
}
OWN, OTHER = (24, 40, 3), (40, 32, 3)  # of the tables, and a grid of 5 x 4
NEAR = 1e-5


def write(folder, middle=False, **changes):
    folder.mkdir(exist_ok=True)
    arrays = weights(middle)
    save_file(arrays, folder / "model.safetensors")
    config = CONFIG | {"use_mid_position_embeddings": middle} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder, arrays


def faults(folder):
    """Where a file's model puts out other numbers than the paper's equations, at its own size, others and open ones."""
    found = {}
    for middle in (False, True):
        place, arrays = write(folder / str(middle), middle)
        free = keras_vit.detector(place, input_shape=(None, None, 3))
        for shape in (OWN, OTHER):
            photo = 0.8 * images(2, *shape)
            wanted = dict(zip(("logits", "boxes"), Yolos(arrays)(photo), strict=True))
            for kind, model in (("fixed", keras_vit.detector(place, input_shape=shape)), ("open", free)):
                answers = model(photo)
                pairs = {f"{middle} {shape} {kind} {name}": (answers[name], wanted[name]) for name in wanted}
                found |= differing(pairs, NEAR)
    return found


faults_elsewhere, test_files_compute_what_the_papers_say, test_they_do_so_on_other_backends = on_every_backend(faults)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_shows(mistake):
    photo = 0.8 * images(1, *OTHER)
    right, wrong = (np.concatenate(Yolos(weights(True), each)(photo), -1) for each in ("", mistake))
    assert np.abs(right - wrong).max() > 1e-4


@pytest.mark.parametrize("middle", [False, True])
def test_files_are_written_as_they_were_read(middle, tmp_path):
    place, before = write(tmp_path / "read", middle)
    model, photo = keras_vit.detector(place), 0.8 * images(1, *OWN)
    assert model.load_report == ()
    assert model.input_shape == (None, *OWN)
    wanted = keras.tree.map_structure(numpy, model(photo))
    model.save(tmp_path / "model.keras")
    kept = keras.models.load_model(tmp_path / "model.keras")
    for number, each in enumerate((model, kept)):
        folder = tmp_path / str(number)
        assert is_same(before, load_file(keras_vit.save_checkpoint(each, folder)))
        for written in (folder, keras_vit.save_checkpoint(each, tmp_path / f"{number}.safetensors")):
            again = keras_vit.detector(written)
            found = keras.tree.map_structure(numpy, again(photo))
            keras.tree.map_structure(np.testing.assert_array_equal, wanted, found)
            assert again.class_names == model.class_names == tuple(CONFIG["id2label"].values())
    assert kept.own_arguments() == model.own_arguments()
    assert (kept.task, kept.classes, kept.raw) == ("detection", CLASSES, True)
    assert kept.encoder.output_shape == (None, 1 + TOKENS + math.prod(GRID), WIDTH)
    assert keras_vit.features(kept, photo, [LAYERS])[LAYERS].shape == (1, *GRID, WIDTH)


def test_photos_of_any_size_get_boxes_in_their_pixels(tmp_path):
    place, arrays = write(tmp_path / "file")
    (place / "preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": 33, "longest_edge": 1333}}))
    model = keras_vit.detector(place)
    assert model.short_side == 33
    photo = np.random.default_rng(3).integers(0, 255, (90, 61, 3), "uint8")
    found = keras_vit.detect(model, photo, threshold=0.0)
    record = model.preprocessing
    assert (record.mean, record.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    prepared = preprocess(photo, keras_vit.Preprocessing(**vars(record) | {"image_size": (48, 32)}))
    logits, boxes = (each[0] for each in Yolos(arrays)(prepared[None]))
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found.scores, shares[:, :-1].max(-1), 0, 1e-5)
    np.testing.assert_array_equal(found.labels, shares[:, :-1].argmax(-1))
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    corners = np.concatenate([centre - half, centre + half], -1) * (61, 90, 61, 90)
    np.testing.assert_allclose(found.boxes, corners, 0, 1e-3)
    middle = float(np.median(found.scores))
    fewer, whole = keras_vit.detect(model, [photo, photo[:50]], threshold=middle)
    assert len(fewer.scores) == (found.scores > middle).sum()
    assert whole.boxes.shape[1:] == (4,)
    assert fewer.class_names == model.class_names


@pytest.mark.parametrize(
    "form",
    [
        "onnx",
        pytest.param("saved_model", marks=pytest.mark.nightly),
        pytest.param("litert", marks=pytest.mark.nightly),
        pytest.param("openvino", marks=pytest.mark.nightly),
    ],
)
def test_exports_give_classes_and_boxes(form, tmp_path):
    model = keras_vit.detector(write(tmp_path / "file", middle=True)[0])
    photos = np.random.default_rng(2).integers(0, 255, (3, *OWN), "uint8")
    path = tmp_path / f"boxes{FORMATS[form].extension}"
    report = keras_vit.export(model, path, form, images=list(photos))
    assert [drift.output for drift in report.drift][:2] == ["logits", "boxes"]
    assert max(drift.max_difference for drift in report.drift) < 1e-4
    if form != "saved_model":
        found = FORMATS[form].open_runtime(path).run(photos)
        wanted = model(numpy(model.preprocessing(photos)))
        for name, each in wanted.items():
            np.testing.assert_allclose(found[name], numpy(each), 0, 1e-4)
        return
    tf = pytest.importorskip("tensorflow")
    served = tf.saved_model.load(str(report.path)).signatures["serving_default"]
    files = tf.constant([tf.io.encode_png(photos[0]).numpy(), b"no photo"])
    found = served(image_bytes=files)
    assert found["boxes"].shape == (2, TOKENS, 4)
    assert np.isfinite(found["boxes"][0]).all()
    assert np.isnan(found["boxes"][1]).all()
    assert "5 classes for each of 4 queries" in (path / "README.md").read_text()


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [  # of `get_size_with_aspect_ratio` for YOLOS in transformers 5.24
        ((480, 640), 800, (800, 1056)),
        ((640, 480), 512, (672, 512)),
        ((500, 1200), 800, (544, 1328)),
        ((1200, 500), 800, (1328, 544)),
        ((333, 333), 800, (800, 800)),
    ],
)
def test_photos_pass_at_the_size_of_their_family(size, side, expected):
    assert photo_size(size, side, 16) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_detection_tokens": 100}, "num_detection_tokens 100, and 4"),
        ({"use_mid_position_embeddings": True}, "use_mid_position_embeddings True, and False"),
        ({"id2label": {"0": "cat"}}, "id2label 1, and 5"),
        ({"image_size": [24, 24]}, "image size"),
        ({"hidden_size": 24}, "hidden_size 24"),
        ({"qkv_bias": False}, "qkv_bias none"),
    ],
)
def test_contradictions_of_config_and_tensors_are_refused(changes, words, tmp_path):
    place, _ = write(tmp_path / "file", **changes)
    with pytest.raises(CheckpointError, match=words):
        keras_vit.detector(place)


def test_what_no_detector_can_be_is_refused(tmp_path):
    place, arrays = write(tmp_path / "file", middle=True)
    with pytest.raises(ValueError, match="queries"):
        keras_vit.detector(place, queries=np.ones((2, 4)))
    with pytest.raises(CheckpointError, match=r"keras_vit\.detector"):
        keras_vit.segmenter(weights=place)
    with pytest.raises(ValueError, match="multiples of the patch"):
        keras_vit.detector(place, input_shape=(30, 40, 3))
    model = keras_vit.detector(place)
    photo = np.zeros((40, 40, 3), "uint8")
    with pytest.raises(ValueError, match="threshold"):
        keras_vit.detect(model, photo, threshold=1.5)
    with pytest.raises(TypeError, match="detector"):
        keras_vit.detect(model.encoder, photo)
    with pytest.raises(TypeError, match="uint8"):
        keras_vit.detect(model, photo / 255)
    name = "vit.encoder.mid_position_embeddings"
    save_file(arrays | {name: arrays[name][:, :, 1:].copy()}, place / "model.safetensors")
    with pytest.raises(CheckpointError, match="between blocks"):
        keras_vit.detector(place)
    save_file(arrays | {name: arrays[name][1:].copy()}, place / "model.safetensors")
    with pytest.raises(CheckpointError, match="position_embedding_02/table"):
        keras_vit.detector(place)


@pytest.mark.parametrize(
    ("width", "heads", "grid", "middle", "parameters"),
    [
        (192, 3, (50, 83), False, 6_488_736),
        (384, 6, (32, 54), True, 30_684_768),
        (768, 12, (50, 84), True, 127_798_368),
    ],
)
def test_models_have_the_published_numbers_of_parameters(width, heads, grid, middle, parameters):
    config = keras_vit.ViTConfig(16, width, 12, heads, 4 * width, pooling="none", class_tokens=101)
    config = config.replace(position_injection="blocks") if middle else config
    with keras.StatelessScope(initialize_variables=False):
        pixels = keras.Input((16 * grid[0], 16 * grid[1], 3))
        model = build_graph(pixels, config, Head(0, None), None, "yolos")
        head = BoxHead(91, 100)
        head.build(model.output_shape)
        found = sum(int(np.prod(weight.shape)) for weight in (*model.weights, *head.weights))
    keras_vit.keras_private.drop_uninitialized_variables()
    assert found == parameters
