"""Keypoint estimators: ViTPose against a NumPy program, which gives the numbers of transformers 5.24.

On small random models that program, transformers and these files differed by at most 2.1e-6 of heatmaps up to 4.4.
"""

import json

import keras
import numpy as np
import pytest
from checks import check_saved, differing, on_every_backend
from conftest import images, numpy
from safetensors.numpy import save_file
from vitpose_in_numpy import GRID, HEADS, LAYERS, MISTAKES, OF_CLASSIC, PATCH, POINTS, WIDTH, VitPose, weights

import keras_vit
from keras_vit.exporting.formats import FORMATS
from keras_vit.layers import KeypointHead
from keras_vit.model.graph import build_graph
from keras_vit.model.head import Head
from keras_vit.weights.read import CheckpointError

BACKBONE = {
    **{"model_type": "vitpose_backbone", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "hidden_act": "gelu"},
    **{"num_attention_heads": HEADS, "mlp_ratio": 2, "patch_size": [PATCH, PATCH], "layer_norm_eps": 1e-12},
    **{"image_size": [PATCH * side for side in GRID], "num_experts": 1, "qkv_bias": True, "out_indices": [LAYERS]},
}
CONFIG = {
    **{"model_type": "vitpose", "architectures": ["VitPoseForPoseEstimation"], "scale_factor": 4},
    "id2label": {str(number): f"point {number}" for number in range(POINTS)},
}
OWN, OTHER = (48, 32, 3), (32, 64, 3)  # of the table, and a grid of 2 x 4
NEAR = 1e-5


def write(folder, classic=False, backbone=(), **changes):
    folder.mkdir(exist_ok=True)
    arrays = weights(classic)
    save_file(arrays, folder / "model.safetensors")
    config = CONFIG | {"use_simple_decoder": not classic, "backbone_config": BACKBONE | dict(backbone)} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder, arrays


def faults(folder):
    """Where a file's model puts out other numbers than the paper's equations, at its own size, others and open ones."""
    found = {}
    for classic in (False, True):
        place, arrays = write(folder / str(classic), classic)
        free = keras_vit.keypoint_estimator(place, input_shape=(None, None, 3))
        for shape in (OWN, OTHER):
            photo = 0.8 * images(2, *shape)
            wanted = VitPose(arrays)(photo)
            ways = {"own": keras_vit.keypoint_estimator(place, input_shape=shape), "open": free}
            pairs = {f"{classic} {shape} {way}": (model(photo), wanted) for way, model in ways.items()}
            found |= differing(pairs, NEAR)
    return found


faults_elsewhere, test_files_compute_what_the_papers_say, test_they_do_so_on_other_backends = on_every_backend(faults)


@pytest.mark.parametrize(
    ("classic", "mistake"), [(classic, each) for classic, all in enumerate((MISTAKES, OF_CLASSIC)) for each in all]
)
def test_every_mistake_shows(classic, mistake):
    arrays, photo = weights(bool(classic)), 0.8 * images(1, *OWN)
    right, wrong = (VitPose(arrays, each)(photo) for each in ("", mistake))
    assert np.abs(right - wrong).max() > 1e-4


@pytest.mark.parametrize("classic", [False, True])
def test_files_are_written_as_they_were_read(classic, tmp_path):
    place, _ = write(tmp_path / "read", classic)
    model, photo = keras_vit.keypoint_estimator(place), 0.8 * images(1, *OWN)
    assert model.load_report == ()
    assert model.input_shape == (None, *OWN)
    kept = check_saved(keras_vit.keypoint_estimator, model, photo, place, tmp_path)
    assert (kept.task, kept.classes, kept.raw) == ("keypoints", POINTS, False)
    assert kept.class_names == tuple(CONFIG["id2label"].values())
    assert kept.encoder.output_shape == (None, GRID[0] * GRID[1], WIDTH)
    assert (kept.config.patch_padding, kept.config.position_offset) == (2, True)
    assert keras_vit.features(kept, photo, [LAYERS])[LAYERS].shape == (1, *GRID, WIDTH)
    record = kept.preprocessing
    assert (record.mean, record.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_the_encoder_alone_is_written_in_its_own_layout_and_refused_in_others(tmp_path):
    place, _ = write(tmp_path / "read")
    encoder, photo = keras_vit.build(weights=place, include_top=False, pooling="none"), 0.8 * images(1, *OWN)
    file = keras_vit.save_checkpoint(encoder, tmp_path / "encoder.safetensors", "huggingface_vitpose")
    again = keras_vit.build(weights=file, include_top=False, pooling="none")
    np.testing.assert_array_equal(numpy(again(photo)), numpy(encoder(photo)))
    with pytest.raises(CheckpointError, match="'huggingface_vitpose'"):
        keras_vit.save_checkpoint(encoder, tmp_path / "other.safetensors", "timm")
    plain = keras_vit.ViTConfig(8, 12, 1, 3, 24, class_token=False, pooling="none")
    for padding, offset, layout in ((2, False, "timm"), (0, True, "huggingface_vitpose")):
        config = plain.replace(patch_padding=padding, position_offset=offset)
        model = keras_vit.build(config, include_top=False, input_shape=(16, 24, 3))
        with pytest.raises(CheckpointError, match=f"patch_padding={padding}"):
            keras_vit.save_checkpoint(model, tmp_path / "other.safetensors", layout)


def test_the_block_and_the_factor_of_a_config_are_followed(tmp_path):
    place, arrays = write(tmp_path / "file", backbone={"out_indices": [2]}, scale_factor=3)
    model, photo = keras_vit.keypoint_estimator(place), 0.8 * images(1, *OWN)
    assert model.blocks == (2,)
    np.testing.assert_allclose(numpy(model(photo)), VitPose(arrays, block=2, factor=3)(photo), 0, 2e-5)
    again = keras_vit.keypoint_estimator(keras_vit.save_checkpoint(model, tmp_path / "again.safetensors"))
    np.testing.assert_array_equal(numpy(again(photo)), numpy(model(photo)))


def test_heads_learn(tmp_path):
    model = keras_vit.keypoint_estimator(write(tmp_path / "file", classic=True)[0])
    photos, heatmaps = 0.8 * images(4, *OWN), np.zeros((4, 12, 8, POINTS), "float32")
    heatmaps[:, 3, 4] = 1
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    losses = model.fit(photos, heatmaps, 4, 4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "form",
    [
        "onnx",
        pytest.param("saved_model", marks=pytest.mark.nightly),
        pytest.param("litert", marks=pytest.mark.nightly),
        pytest.param("openvino", marks=pytest.mark.nightly),
    ],
)
def test_exports_give_heatmaps(form, tmp_path):
    model = keras_vit.keypoint_estimator(write(tmp_path / "file", classic=form != "onnx")[0])
    photos = np.random.default_rng(2).integers(0, 255, (3, *OWN), "uint8")
    report = keras_vit.export(model, tmp_path / f"points{FORMATS[form].extension}", form, images=list(photos))
    assert report.drift[0].output == "heatmaps"
    assert max(drift.max_difference for drift in report.drift) < 1e-4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_simple_decoder": False}, "use_simple_decoder False, and True in the tensors"),
        ({"id2label": {"0": "nose"}}, "number of id2label 1, and 5"),
        ({"backbone": {"patch_size": [8, 8]}}, "patch_size 8, and 16"),
        ({"backbone": {"image_size": [48, 48]}}, "image size"),
        ({"backbone": {"hidden_size": 24}}, "hidden_size 24"),
        ({"backbone": {"mlp_ratio": 4}}, "mlp_dim 48"),
        ({"backbone": {"qkv_bias": False}}, "qkv_bias none"),
        ({"backbone": {"out_indices": [4]}}, "numbers from 1 to 3"),
        ({"backbone": {"num_experts": 6}}, r"ViTPose\+"),
        ({"architectures": ["YolosForObjectDetection"]}, "architectures"),
    ],
)
def test_contradictions_of_config_and_tensors_are_refused(changes, words, tmp_path):
    place, _ = write(tmp_path / "file", **changes)
    with pytest.raises(ValueError, match=words):
        keras_vit.keypoint_estimator(place)


@pytest.mark.parametrize("classic", [False, True])
def test_a_file_without_a_role_is_refused(classic, tmp_path):
    place, arrays = write(tmp_path / "file", classic)
    roles = {name.replace("layer.0.", "layer.{}.").replace("layer.1.", "layer.{}.") for name in arrays}
    for role in sorted(role for role in roles if "layer.2" not in role and "num_batches" not in role):
        gone = {role.format(number) for number in range(LAYERS)}
        save_file({name: array for name, array in arrays.items() if name not in gone}, place / "model.safetensors")
        with pytest.raises(CheckpointError):
            keras_vit.keypoint_estimator(place)


def test_what_no_keypoint_estimator_can_be_is_refused(tmp_path):
    place, _ = write(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"keras_vit\.keypoint_estimator"):
        keras_vit.segmenter(weights=place)
    with pytest.raises(ValueError, match="multiples of the patch"):
        keras_vit.keypoint_estimator(place, input_shape=(50, 32, 3))
    with pytest.raises(ValueError, match="less than half"):
        keras_vit.ViTConfig(4, 12, 1, 3, 24, patch_padding=2)
    with pytest.raises(ValueError, match="added to patches alone"):
        keras_vit.ViTConfig(4, 12, 1, 3, 24, position_offset=True)


@pytest.mark.parametrize(("kind", "parameters"), [("simple", 85_912_337), ("classic", 89_994_513)])
def test_models_have_the_published_numbers_of_parameters(kind, parameters):
    """Files of the classic head have two counts of batches and two means and variances, which are not parameters."""
    config = keras_vit.ViTConfig(16, 768, 12, 12, 3072, pooling="none", class_token=False, patch_padding=2)
    with keras.StatelessScope(initialize_variables=False):
        config = config.replace(position_offset=True)
        model = build_graph(keras.Input((256, 192, 3)), config, Head(0, None), None, "vitpose")
        head = KeypointHead(17, kind)
        head.build([(None, 16, 12, 768)])
        weights = (*model.weights, *head.trainable_weights)
        found = sum(int(np.prod(weight.shape)) for weight in weights)
    keras_vit.keras_private.drop_uninitialized_variables()
    assert found == parameters
