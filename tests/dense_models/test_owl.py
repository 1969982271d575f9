"""OWL-ViT and OWLv2 against a NumPy program, which gives the numbers of transformers 5.24.

On small random models that program, transformers and these files differed by at most 8.7e-6 of logits up to 5.9.
"""

import json

import keras
import numpy as np
import pytest
from checks import check_saved, differing, on_every_backend
from conftest import images, numpy
from owl_in_numpy import GRID, HEADS, LAYERS, MISTAKES, PATCH, SIZE, WIDTH, Owl, queries, weights
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.layers import OpenBoxHead
from keras_vit.weights.read import CheckpointError

VISION = {
    **{"model_type": "owlvit_vision_model", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "patch_size": PATCH},
    **{
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "layer_norm_eps": 1e-5,
        "image_size": PATCH * GRID,
    },
    "hidden_act": "quick_gelu",
}
OWN, OTHER = (24, 24, 3), (40, 16, 3)  # of the table, and a grid of 5 x 2
NEAR = 1e-5
TEXTS = queries()


def write(folder, second=False, vision=(), **changes):
    folder.mkdir(exist_ok=True)
    arrays = weights(second)
    save_file(arrays, folder / "model.safetensors")
    inner = VISION | {"model_type": f"{'owlv2' if second else 'owlvit'}_vision_model"} | dict(vision)
    config = {"model_type": "owlv2" if second else "owlvit", "projection_dim": SIZE, "vision_config": inner} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder, arrays


def of_image(arrays):
    """Without the text tower, which is not written."""
    return {name: array for name, array in arrays.items() if "text" not in name and not name.endswith("t.logit_scale")}


def build(place, shape=None):
    return keras_vit.detector(place, queries=TEXTS, input_shape=shape)


def faults(folder):
    found = {}
    for second in (False, True):
        place, arrays = write(folder / str(second), second)
        free = build(place, (None, None, 3))
        for shape in (OWN, OTHER):
            photo = 0.8 * images(2, *shape)
            wanted = Owl(arrays)(photo, TEXTS)
            for way, model in (("own", build(place, shape)), ("open", free)):
                answers = model(photo)
                pairs = {f"{second} {shape} {way} {name}": (answers[name], wanted[name]) for name in wanted}
                found |= differing(pairs, NEAR)
    return found


faults_elsewhere, test_files_compute_what_the_papers_say, test_they_do_so_on_other_backends = on_every_backend(faults)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_shows(mistake):
    photo = 0.8 * images(1, *OWN)
    right, wrong = (Owl(weights(True), each)(photo, TEXTS) for each in ("", mistake))
    assert max(np.abs(right[name] - wrong[name]).max() for name in right) > 1e-4


@pytest.mark.parametrize("second", [False, True])
def test_the_image_side_is_written_as_it_was_read(second, tmp_path):
    place, arrays = write(tmp_path / "read", second)
    arrays = {name: a for name, a in arrays.items() if "text" not in name and name.rpartition(".")[2] != "logit_scale"}
    save_file(arrays, place / "model.safetensors")
    model = build(place)
    assert model.load_report == ()
    kept = check_saved(build, model, 0.8 * images(1, *OWN), place, tmp_path)
    assert (kept.task, kept.classes, kept.raw) == ("detection", len(TEXTS), True)
    assert kept.encoder.output_shape == (None, 1 + GRID**2, WIDTH)
    assert "queries" not in load_file(tmp_path / "0.safetensors")
    assert {weight.name for weight in model.head.non_trainable_weights} == {"queries"}


def test_words_are_embedded_by_the_tower_of_the_folder(tmp_path, monkeypatch):
    place, _ = write(tmp_path / "file")

    class Tower:
        def embed(self, words):
            assert words == ["a cat", "a dog", "a hat", "a bird"]
            return TEXTS

    monkeypatch.setattr("keras_vit.dense_models.detection.build_text", lambda weights: Tower())
    model = keras_vit.detector(place, queries=["a cat", "a dog", "a hat", "a bird"])
    assert model.class_names == ("a cat", "a dog", "a hat", "a bird")
    photo = 0.8 * images(1, *OWN)
    np.testing.assert_array_equal(numpy(model(photo)["logits"]), numpy(build(place)(photo)["logits"]))


@pytest.mark.parametrize("second", [False, True])
def test_photos_get_boxes_in_their_pixels_with_scores_of_each_text(second, tmp_path):
    place, arrays = write(tmp_path / "file", second)
    model = build(place)
    photo = np.random.default_rng(3).integers(0, 255, (40, 30, 3), "uint8")
    found = keras_vit.detect(model, photo, threshold=0.0)
    whole = np.pad(photo, ((0, 0), (0, 10), (0, 0)), constant_values=128) if second else photo
    wanted = {name: each[0] for name, each in Owl(arrays)(numpy(model.preprocessing(whole[None])), TEXTS).items()}
    scores = 1 / (1 + np.exp(-wanted["logits"]))
    np.testing.assert_allclose(found.scores, scores.max(-1), 0, 1e-5)
    np.testing.assert_array_equal(found.labels, scores.argmax(-1))
    centre, half = wanted["boxes"][:, :2], wanted["boxes"][:, 2:] / 2
    corners = np.concatenate([centre - half, centre + half], -1) * (*whole.shape[1::-1], *whole.shape[1::-1])
    np.testing.assert_allclose(found.boxes, corners, 0, 1e-3)


def test_exports_give_all_answers(tmp_path):
    model = build(write(tmp_path / "file", True)[0])
    photos = np.random.default_rng(2).integers(0, 255, (3, *OWN), "uint8")
    report = keras_vit.export(model, tmp_path / "boxes.onnx", "onnx", images=list(photos))
    names = {drift.output for drift in report.drift}
    assert names == {"logits", "boxes", "class_embeddings", "objectness"}
    assert max(drift.max_difference for drift in report.drift) < 1e-4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vision": {"hidden_size": 24}}, "hidden_size 24"),
        ({"vision": {"patch_size": 16}}, "patch_size 16"),
        ({"vision": {"image_size": 32}}, "image size"),
        ({"vision": {"intermediate_size": 48}}, "mlp_dim 48"),
        ({"architectures": ["Owlv2ForObjectDetection"]}, "architectures"),
        ({"model_type": "owlv2"}, "model_type 'owlv2', and 'owlvit'"),
        ({"text_config": {"hidden_size": 6}}, "hidden_size of text_config 6, and 5"),
    ],
)
def test_contradictions_of_config_and_tensors_are_refused(changes, words, tmp_path):
    place, _ = write(tmp_path / "file", **changes)
    with pytest.raises(CheckpointError, match=words):
        build(place)


@pytest.mark.parametrize("second", [False, True])
def test_a_file_without_a_role_is_refused(second, tmp_path):
    place, arrays = write(tmp_path / "file", second)
    roles = {name.replace("layers.0.", "layers.{}.").replace("layers.1.", "layers.{}.") for name in of_image(arrays)}
    for role in sorted(role for role in roles if "layers.2" not in role and "logit_scale" not in role[:18]):
        gone = {role.format(number) for number in range(LAYERS)}
        save_file({name: array for name, array in arrays.items() if name not in gone}, place / "model.safetensors")
        with pytest.raises(CheckpointError):
            build(place)


def test_what_no_queries_can_be_is_refused(tmp_path):
    place, _ = write(tmp_path / "file")
    for wrong in (None, np.ones((2, SIZE + 1)), np.ones(SIZE), np.full((2, SIZE), np.nan), []):
        with pytest.raises(ValueError, match="queries"):
            keras_vit.detector(place, queries=wrong)
    with pytest.raises(ValueError, match="multiples of the patch"):
        build(place, (30, 24, 3))


def test_heads_have_the_numbers_of_parameters_of_their_sizes():
    with keras.StatelessScope(initialize_variables=False):
        head = OpenBoxHead(3, 512, 16, objectness=True)
        head.build([(None, 577, 768), (None, 384, 384, 3)])
        found = sum(int(np.prod(weight.shape)) for weight in head.trainable_weights)
    keras_vit.keras_private.drop_uninitialized_variables()
    mlp = 2 * (768 * 768 + 768)
    assert found == 2 * 768 + 769 * 512 + 2 * 769 + 2 * mlp + 769 * 5
