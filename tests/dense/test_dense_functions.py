"""Functions of masks and depths, against what the authors' software computes: torch, mmsegmentation, DINOv3 and others.

Each case of golden/dense names its source; losses have gradients.
"""

import json
import struct
import zlib

import keras
import numpy as np
import pytest
from conftest import GOLDEN

import keras_vit
from keras_vit import dense

CASES = json.loads((GOLDEN / "dense" / "functions.json").read_text())
NEAR = 1e-5  # of a fifth of the largest number, in float32
MASKS = {"ade": "ade20k", "city": "cityscapes", "depth_mm": "depth_mm", "depth_kitti": "depth_kitti"}
MASKS |= dict.fromkeys(("voc", "binary01", "binary0255", "ids_above_255"))


def values_of(case):
    """Arguments and expected values of a case, with its arrays."""
    with np.load(GOLDEN / "dense" / "functions.npz") as arrays:

        def value(given):
            if isinstance(given, list):
                return [value(each) for each in given]
            return arrays[given[1:]] if isinstance(given, str) and given.startswith("@") else given

        return tuple({name: value(given) for name, given in case[kind].items()} for kind in ("arguments", "expected"))


def answers(case, gradient):
    """What the function of a case gives, by name; `gradient` gives the loss and its gradient by the first argument."""
    arguments, expected = values_of(case)
    function = getattr(dense, case["call"])
    if "gradient" in expected:
        first, *rest = arguments.values()
        rest = dict(zip([*arguments][1:], rest, strict=True))
        found = gradient(lambda given: function(given, **rest), first)
        return dict(zip(("loss", "gradient"), found, strict=True)), expected
    found = function(**arguments)
    if hasattr(found, "_fields") or isinstance(found, dense.SegmentationScores):
        found = {name: getattr(found, name) for name in expected}
    return (found if isinstance(found, dict) else {"result": found}), expected


def by_tensorflow(function, first):
    import tensorflow as tf

    first = tf.constant(first)
    with tf.GradientTape() as tape:
        tape.watch(first)
        loss = function(first)
    return loss, tape.gradient(loss, first)


def faults(gradient):
    """The values that differ, by case."""
    found = {}
    for name, case in CASES.items():
        given, expected = answers(case, gradient)
        for part, wanted in expected.items():
            wanted, value = (
                np.asarray(wanted, "float64"),
                np.asarray(keras.ops.convert_to_numpy(given[part]), "float64"),
            )
            limit = NEAR * max(1, np.nanmax(np.abs(wanted), initial=0) / 5)
            if value.shape != wanted.shape or not np.allclose(value, wanted, 0, limit, equal_nan=True):
                found[f"{name} {part}"] = [str(value)[:200], str(wanted)[:200]]
    return found


def test_functions_compute_what_the_authors_do():
    assert faults(by_tensorflow) == {}


def faults_on_jax():
    import jax

    return faults(lambda function, first: jax.value_and_grad(function)(first))


@pytest.mark.elsewhere("jax", "faults_on_jax")
def test_functions_compute_the_same_on_jax(found):
    assert found == {}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_read_as_indices_or_metres(name):
    with np.load(GOLDEN / "dense" / "masks" / "expected.npz") as expected:
        file = "city_labelIds" if name == "city" else name
        np.testing.assert_allclose(
            dense.read_mask(GOLDEN / "dense" / "masks" / f"{file}.png", MASKS[name]), expected[name], 1e-6
        )


def test_windows_that_cover_once_are_the_whole():
    whole = np.random.default_rng(0).normal(size=(12, 8, 3)).astype("float32")
    boxes = dense.windows((12, 8), 4)
    parts = [whole[y0:y1, x0:x1] for y0, x0, y1, x1 in boxes]
    np.testing.assert_array_equal(dense.merge_windows(parts, boxes, (12, 8)), whole)
    for rule in ("mmseg", "dinov3", "segmenter"):
        boxes = dense.windows((29, 31), 12, 7, rule)
        parts = [np.ones((y1 - y0, x1 - x0, 2)) for y0, x0, y1, x1 in boxes]
        np.testing.assert_array_equal(dense.merge_windows(parts, boxes, (29, 31)), np.ones((29, 31, 2)))


def test_where_nothing_counts_losses_are_zero_with_gradients_of_zero():
    logits, labels = np.ones((1, 3, 3, 2), "float32"), np.full((1, 3, 3), 255)
    depths, nothing = np.ones((1, 9, 9), "float32"), np.zeros((1, 9, 9), "float32")
    for function, given, target in (
        *((function, logits, labels) for function in (dense.cross_entropy,)),
        *((function, depths, nothing) for function in (dense.sig_loss, dense.silog_loss, dense.gradient_loss)),
        *((function, depths, depths) for function in (dense.sig_loss, dense.silog_loss, dense.gradient_loss)),
    ):
        loss, gradient = by_tensorflow(lambda first, call=function, truth=target: call(first, truth), given)
        assert float(loss) == 0
        np.testing.assert_array_equal(gradient, np.zeros_like(given))


def test_losses_and_the_measure_train_a_model_and_come_back(tmp_path):
    data = np.random.default_rng(0).normal(size=(6, 4, 4, 3)).astype("float32")
    labels = (data[..., 0] > 0).astype("int32")
    labels[0, 0, :2] = 255
    model = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Conv2D(2, 1)])
    model.compile(keras.optimizers.Adam(0.1), dense.CrossEntropy(), metrics=[dense.SegmentationIoU(2)])
    history = model.fit(data, labels, 3, 40, verbose=0).history
    assert history["mean_iou"][-1] > 0.95
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    loss, iou = again.evaluate(data, labels, 2, verbose=0)
    found = model.predict(data, verbose=0)
    scores = dense.segmentation_scores([*labels], [*found.argmax(-1)], 2)
    assert iou == pytest.approx(scores.mean_iou, abs=1e-6)
    without_first = dense.SegmentationIoU(2, ignore_class=0)
    without_first.update_state(labels % 255, np.broadcast_to([0.0, 1.0], found.shape))
    assert without_first.result() == 1  # whatever is predicted where the label does not count
    mean = np.mean([dense.cross_entropy(found[i : i + 2], labels[i : i + 2]) for i in (0, 2, 4)])
    assert loss == pytest.approx(mean, abs=1e-6)
    for kind, given in (
        *((dense.Dice, {"smooth": 2.0}), (dense.SigLoss, {"warm_up": True})),
        *((dense.SiLogLoss, {"weight": 0.85}), (dense.GradientLoss, {"space": "depth"})),
    ):
        config = kind(**given).get_config()
        assert config == config | given
        assert kind.from_config(config).get_config() == config


LOGITS = np.zeros((1, 2, 2, 3), "float32")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dense.cross_entropy(LOGITS, np.full((1, 2, 2), 3)), "from 0 to 2, or 255"),
        (lambda: dense.resize(LOGITS[0], (4, 4)), r"\(B, h, w, C\)"),
        (lambda: dense.resize(LOGITS, (0, 4)), "at least 1"),
        (lambda: dense.windows((4, 4), 2, 0), "stride=0"),
        (lambda: dense.merge_windows([LOGITS[0]], [(0, 0, 2, 2)], (2, 3)), "leave out 2 pixels"),
        (lambda: dense.sig_loss(np.ones((1, 2, 2)), np.ones((1, 4, 4))), "one shape"),
        (lambda: dense.depth_metrics(np.ones((1, 2, 2)), np.full((1, 2, 2), 2000.0), 0.1, 10.0), "Check the unit"),
        (lambda: dense.align_depth(np.ones((2, 2)), np.ones((2, 2)), space="inverse"), "max_depth"),
        (lambda: dense.segmentation_scores([[[0, 7]]], [[[0, 0]]], 3), "7 in image 0"),
        (lambda: dense.map_labels([0, 9], {0: 1}), "without 9"),
        (lambda: dense.boxes(np.zeros((2, 3, 4)), np.zeros((2, 3, 4)), (4, 4)), "one photo"),
    ],
)
def test_what_would_be_nonsense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_masks_of_colours_and_jpegs_are_refused(tmp_path):
    from PIL import Image

    colours = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype="uint8")
    Image.fromarray(colours).save(tmp_path / "colours.png")
    Image.fromarray(colours[..., 0]).save(tmp_path / "grey.jpg")
    Image.fromarray(colours).convert("RGBA").save(tmp_path / "alpha.png")
    for name, words in (("colours.png", "64 colours"), ("alpha.png", "64 colours"), ("grey.jpg", "without loss")):
        with pytest.raises(ValueError, match=words):
            keras_vit.dense.read_mask(tmp_path / name)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_levels_are_those_written_however_few_bits_they_have(bits, tmp_path):
    """Viewers and Pillow stretch them to 255."""
    levels = (np.arange(64) * 5 % 2**bits).astype("uint8").reshape(4, 16)
    packed = np.packbits(np.unpackbits(levels[..., None], axis=2)[..., 8 - bits :].reshape(4, -1), axis=1)
    parts = {b"IHDR": struct.pack(">IIBBBBB", 16, 4, bits, 0, 0, 0, 0)}
    parts |= {b"IDAT": zlib.compress(b"".join(b"\0" + row.tobytes() for row in packed)), b"IEND": b""}
    chunks = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts.items()]
    (tmp_path / "mask.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    np.testing.assert_array_equal(dense.read_mask(tmp_path / "mask.png"), levels)


def test_a_label_that_is_no_class_makes_a_loss_in_a_graph_nan():
    import tensorflow as tf

    loss = tf.function(dense.cross_entropy)(tf.constant(LOGITS), tf.constant(np.full((1, 2, 2), 3)))
    assert np.isnan(loss)


def test_segment_is_kept_by_all_pixels_that_it_wins_and_drawn_where_its_mask_is():
    """The second query wins 4 pixels, one of the 2 of its mask: by that one alone it would be left out."""
    masks = np.array([[0.9, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.6, 0.6, 0.4, 0.4, 0.4]])
    scores = np.array([[0.95, 0.03, 0.02], [0.06, 0.9, 0.04]])
    found = dense.panoptic(np.log(scores), np.log(masks / (1 - masks)).T[None])
    assert found["classes"].tolist() == [[0, 0, 0, 0, 1, 2, 2, 2]]
    assert found["segments"].tolist() == [[0, 0, 0, 0, 1, -1, -1, -1]]
