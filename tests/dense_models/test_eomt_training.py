"""A fresh EoMT head: what it learns from, masked attention as in the paper, and its files."""

import keras
import numpy as np
import pytest
from checks import is_same
from conftest import images, numpy, tiny_config
from queries_in_numpy import BLOCKS, SIDE, Eomt
from safetensors.numpy import load_file
from test_eomt import NEAR, write

import keras_vit
from keras_vit import dense
from keras_vit.layers.dense_heads.query_training import masked_shares

SIZE = (24, 40)


@pytest.fixture
def fresh():
    """A segmenter with queries in both blocks, for images of 24 x 40."""
    encoder = keras_vit.build(
        tiny_config(num_layers=2), include_top=False, pooling="none", input_shape=(*SIZE, 3), weights=None
    )
    return keras_vit.segmenter(encoder, "eomt", classes=3)


def squares(count=4):
    rng = np.random.default_rng(0)
    photos, masks = 0.3 * images(count, *SIZE, 3), np.zeros((count, *SIZE), "int32")
    for number in range(count):
        for label, sign in ((1, 0.9), (2, -0.9)):
            y, x = rng.integers(0, SIZE[0] - 8), rng.integers(0, SIZE[1] - 8)
            masks[number, y : y + 8, x : x + 8], photos[number, y : y + 8, x : x + 8] = label, sign
    masks[:, 0] = 255
    return photos, masks


@pytest.mark.parametrize("kind", ["dinov2", "dinov3"])
def test_masked_attention_is_that_of_the_paper_and_the_last_prediction_is_the_models(kind, tmp_path):
    place, arrays = write(tmp_path / kind, kind)
    photo = 0.8 * images(2, SIDE, SIDE, 3)
    blocks = keras_vit.segmenter(weights=place, raw=True).query_blocks()
    for mistake, shares in (("masked", [1.0] * BLOCKS), ("", []), ("", [0.0] * BLOCKS)):
        found = blocks.predict(keras.ops.convert_to_tensor(photo), False, shares)
        assert len(found) == BLOCKS + 1
        for one, other in zip(found[-1], Eomt(arrays, kind == "dinov3", mistake)(photo), strict=True):
            assert np.abs(numpy(one) - other).max() <= NEAR * np.abs(other).max()


def test_masked_attention_ends_block_by_block():
    """As EoMT's configs for ADE20K have it: from steps 6,520, 13,040, 19,560 and 26,080 on, for 6,520 each."""
    shares = {step: np.array(masked_shares(step, 6 * 6520, 4)) for step in (0, 6520, 9780, 13040, 26080, 32600, 39120)}
    np.testing.assert_allclose(shares[0], 1)
    np.testing.assert_allclose(shares[6520], 1)
    np.testing.assert_allclose(shares[9780], [0.5**0.9, 1, 1, 1], rtol=1e-5)
    np.testing.assert_allclose(shares[13040], [0, 1, 1, 1], atol=1e-5)
    np.testing.assert_allclose(shares[26080], [0, 0, 0, 1], atol=1e-5)
    np.testing.assert_allclose([shares[32600], shares[39120]], 0, atol=1e-5)
    np.testing.assert_allclose(masked_shares(250, 600, 3), [0, 1, 1], atol=1e-5)
    np.testing.assert_allclose(masked_shares(325, 600, 3), [0, 0.25**0.9, 1], rtol=1e-5)  # from 250 on


def test_fresh_head_is_on_the_last_blocks_and_learns_by_fit_alone(fresh, tmp_path):
    photos, masks = squares()
    names = {weight.path.partition("/")[0] for weight in fresh.trainable_weights}
    assert names == {"segmentation_head", "query_tokens"}
    assert (fresh.output_shape, fresh.head.num_queries, fresh.head.upscales) == ((None, *SIZE, 3), 100, 1)
    untrained = numpy(fresh(photos))
    loss = dense.MaskClassification(masked_steps=5)
    metrics = [dense.SegmentationIoU(3, name="mean_iou")]
    fresh.compile(keras.optimizers.Adam(0.01), loss, metrics=metrics, run_eagerly=True)
    history = fresh.fit(photos, masks, 4, 5, verbose=0, validation_data=(photos, masks)).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    predictions = fresh.query_blocks().predict(keras.ops.convert_to_tensor(photos), False)
    assert history["val_loss"][-1] == pytest.approx(float(loss.call(masks, predictions)), rel=1e-4)
    metric = dense.SegmentationIoU(3)
    scores = fresh(photos)
    metric.update_state(masks, scores)
    assert history["val_mean_iou"][-1] == pytest.approx(float(metric.result()), rel=1e-4)
    assert np.abs(numpy(scores) - untrained).max() > 0.01
    fresh.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(again(photos)), numpy(scores))
    assert again.evaluate(photos, masks, verbose=0)[0] == pytest.approx(history["val_loss"][-1], rel=1e-5)
    again.compile(keras.optimizers.Adam(0.01), dense.CrossEntropy(), run_eagerly=True)
    found = again.evaluate(photos, masks, verbose=0, return_dict=True)["loss"]  # of the scores of pixels
    assert found == pytest.approx(float(dense.cross_entropy(scores, masks)), rel=1e-5)


def test_checkpoints_of_a_fresh_head_have_the_authors_names_and_open_again(fresh, tmp_path):
    photo = 0.8 * images(1, *SIZE, 3)
    fresh.class_names = ("sky", "sea", "sand")
    file = keras_vit.save_checkpoint(fresh, tmp_path / "written")
    assert {"network.q.weight", "network.class_head.weight", "network.upscale.0.conv1.weight"} <= load_file(file).keys()
    again = keras_vit.segmenter(weights=tmp_path / "written")
    np.testing.assert_array_equal(numpy(again(photo)), numpy(fresh(photo)))
    assert (again.class_names, again.short_side) == (("sky", "sea", "sand"), min(SIZE))
    assert is_same(load_file(file), load_file(keras_vit.save_checkpoint(again, tmp_path / "second")))


@pytest.mark.nightly
def test_exports_of_a_fresh_head_give_its_scores(fresh, tmp_path):
    pixels = np.random.default_rng(2).integers(0, 255, (3, *SIZE, 3), "uint8")
    for form in ("onnx", "saved_model"):
        report = keras_vit.export(
            fresh, tmp_path / f"scores{'.onnx' if form == 'onnx' else ''}", form, images=list(pixels)
        )
        assert report.top1_agreement == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"raw": True}, "with raw=True"),
        ({"head": "linear"}, "without queries"),
        ({"accumulation_steps": 2}, "accumulation_steps=2"),
        ({"jit_compile": True}, "jit_compile=True on TensorFlow"),
    ],
)
def test_loss_of_masks_is_refused_where_it_cannot_be_computed(options, words):
    encoder = keras_vit.build(tiny_config(num_layers=2), include_top=False, pooling="none", input_shape=(*SIZE, 3))
    built = {"head": "eomt"} | {name: value for name, value in options.items() if name in ("raw", "head")}
    model = keras_vit.segmenter(encoder, classes=3, **built)
    rest = {name: value for name, value in options.items() if name not in built}
    with pytest.raises(ValueError, match="Received") as error:
        model.compile("sgd", dense.MaskClassification(), **rest)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rotary": "mixed", "position_embedding": "none"}, "rotary='mixed'"),
        ({"relative_bias": "blocks", "position_embedding": "none"}, "relative_bias='blocks'"),
    ],
)
def test_encoders_without_a_place_for_queries_are_refused(fields, words):
    config = tiny_config(num_layers=2, **fields)
    encoder = keras_vit.build(config, include_top=False, pooling="none", input_shape=(*SIZE, 3))
    with pytest.raises(ValueError, match=words):
        keras_vit.segmenter(encoder, "eomt", classes=3)


def test_which_blocks_have_queries_cannot_be_chosen(fresh):
    with pytest.raises(ValueError, match="Leave it out"):
        keras_vit.segmenter(fresh.encoder, "eomt", classes=3, blocks=(1, 2))
