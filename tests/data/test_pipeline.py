import dataclasses
import hashlib
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import make_tiny
from pictures import encoded, picture, turned, write_photos

from keras_vit.data import load_dataset, open_source
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.pipeline import check_labels
from keras_vit.data.prepare import prepare
from keras_vit.images.preprocessing import Preprocessing

GREY = Preprocessing(image_size=(1, 1), mean=(0.5,), std=(0.5,))


def numbered(count, classes=3):
    """Arrays whose one pixel is the example's number."""
    return {"train": (np.arange(count, dtype="uint8").reshape(-1, 1, 1, 1), np.arange(count) % classes)}


def joined(batches):
    return [number for batch in batches for number in batch]


def numbers(dataset, batches):
    return [
        np.round(images.numpy().ravel() * 127.5 + 127.5).astype(int).tolist() for images, _ in dataset.take(batches)
    ]


def train(what, batch_size, preprocessing=GREY, **arguments):
    return load_dataset(what, batch_size=batch_size, preprocessing=preprocessing, training=True, **arguments)


@pytest.mark.parametrize(("count", "batch_size"), [(37, 37), (37, 1), (64, 16), (2, 2), (211, 211)])
def test_every_epoch_has_each_example_once_in_another_order(count, batch_size):
    steps = count // batch_size
    stream = joined(numbers(train(numbered(count, 2), batch_size), 2 * steps))
    first, second = stream[:count], stream[count:]
    assert sorted(first) == sorted(second) == list(range(count))
    assert count < 3 or (first != second and first != sorted(first))


def test_batches_are_full_where_the_epoch_does_not_divide():
    stream = joined(numbers(train(numbered(37), 8), 37))
    assert len(stream) == 8 * 37
    assert np.bincount(stream).tolist() == [8] * 37


def test_batch_larger_than_the_data_is_full():
    assert np.bincount(numbers(train(numbered(5), 20), 1)[0]).tolist() == [4] * 5


@pytest.mark.parametrize("start_step", [0, 1, 9, 1000])
def test_start_step_is_a_skip_that_makes_no_image(start_step):
    arguments = {"augmentation": Augmentation(crop="none", mixup_alpha=0.3), "labels": "one_hot", "seed": 4}
    for shard in ((0, 1), (1, 2)):
        stream = train(numbered(37), 8, shard=shard, **arguments).skip(start_step).take(3)
        started = train(numbered(37), 8, shard=shard, start_step=start_step, **arguments).take(3)
        for (images, labels), (other, others) in zip(stream, started, strict=True):
            assert (images.numpy() == other.numpy()).all()
            assert (labels.numpy() == others.numpy()).all()
    assert train(numbered(37), 8, start_step=start_step).start_step == start_step


def test_step_is_the_same_after_a_skip_as_in_the_stream():
    whole = numbers(train(numbered(37), 8), 9)
    assert numbers(train(numbered(37), 8).skip(6), 3) == whole[6:]


def test_order_depends_on_the_seed():
    assert numbers(train(numbered(37), 8), 2) != numbers(train(numbered(37), 8, seed=1), 2)


def test_shards_part_every_global_batch():
    whole = numbers(train(numbered(37), 12), 7)
    parts = [numbers(train(numbered(37), 12, shard=(index, 3)), 7) for index in range(3)]
    assert [a + b + c for a, b, c in zip(*parts, strict=True)] == whole  # in its order too
    assert all(len(batch) == 4 for part in parts for batch in part)


def test_shards_part_an_evaluation_without_loss():
    parts = [
        numbers(load_dataset(numbered(37), batch_size=6, preprocessing=GREY, shard=(index, 2)), 99) for index in (0, 1)
    ]
    assert sorted(joined(parts[0] + parts[1])) == list(range(37))


def test_evaluation_is_one_pass_in_order_with_its_last_small_batch():
    dataset = load_dataset(numbered(37), batch_size=8, preprocessing=GREY)
    batches = numbers(dataset, 99)
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 5]
    assert joined(batches) == list(range(37))
    assert (dataset.num_examples, dataset.class_names) == (37, ("0", "1", "2"))


RECORDS = [
    Preprocessing(image_size=(20, 28)),
    Preprocessing(image_size=(20, 28), antialias=True),
    Preprocessing(image_size=(20, 28), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    Preprocessing(image_size=(20, 28), resize="crop", crop_fraction=0.9, antialias=True),
    Preprocessing(image_size=(28, 20), resize="crop", interpolation="bicubic", antialias=True),
    Preprocessing(image_size=(20, 28), interpolation="bicubic", crop_fraction=0.8),
    Preprocessing(image_size=(20, 28), resize="crop", interpolation="area", rounding="big_vision"),
    Preprocessing(image_size=(20, 28), interpolation="area"),
    Preprocessing(image_size=(45, 67), interpolation="bicubic"),
    Preprocessing(image_size=None),
]


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_image_is_prepared_as_preprocessing_prepares_it(record):
    pixels = picture(45, 67)
    # Sums of up to 67 products in another order, each rounded to 2^-24 of 255; a bicubic value just between two
    # grey levels may round to the other, so those are let off one level in a hundred pixels.
    apart = np.abs(tf.function(prepare)(tf.constant(pixels), record).numpy() - record(pixels))
    assert np.quantile(apart, 0.99) < 3e-6
    assert apart.max() < (0.04 if record.interpolation == "bicubic" else 2e-5)


def test_evaluation_of_files_is_preprocessing_of_upright_pixels(tmp_path):
    write_photos(tmp_path / "train")
    write_photos(tmp_path / "val", each=1, seed=1)
    (tmp_path / "train" / "ash" / "turned.jpg").write_bytes(turned(picture(30, 41, seed=5), 6))
    source, record, splits = open_source(tmp_path), Preprocessing(image_size=(20, 28)), ("validation", "train")
    batches = load_dataset(source, "+".join(splits), batch_size=4, preprocessing=record)
    pixels = [source.pixels(split, row["index"]) for split in splits for row in source.rows(split)]
    for each, image in zip(pixels, np.concatenate([batch for batch, _ in batches]), strict=True):
        np.testing.assert_allclose(image, record(each), atol=2e-6)
    assert source.pixels("train", 5).shape == (41, 30, 3)


@pytest.mark.parametrize("pixels", [picture(channels=1), picture(channels=4)], ids=["grey", "alpha"])
def test_channels_of_arrays_become_those_of_the_model(pixels):
    what = {"train": (np.stack([pixels] * 4), np.arange(4) % 2)}
    record = Preprocessing(image_size=(20, 28))
    for arguments in (
        {},
        {"training": True},
        {"training": True, "augmentation": Augmentation(crop="none", flip=False)},
    ):
        image = next(iter(load_dataset(what, batch_size=2, preprocessing=record, **arguments)))[0][0]
        np.testing.assert_allclose(image, record(pixels), atol=2e-6)


def test_files_for_a_model_of_grey_are_decoded_to_grey(tmp_path):
    write_photos(tmp_path / "train")
    record = Preprocessing(image_size=(20, 28)).with_channels(1)
    images, _ = next(iter(train(tmp_path, 4, record, augmentation="inception")))
    assert images.shape == (4, 20, 28, 1)


def test_augmentation_of_files_crops_the_upright_picture(tmp_path):
    # The same pixels stored upright and turned must give the same crops, with no loss in PNG.
    pixels = picture(41, 30)
    for name, data in {"a": encoded(pixels, "PNG"), "b": turned(np.rot90(pixels).copy(), 6, "PNG")}.items():
        (tmp_path / name / "train" / "x").mkdir(parents=True)
        (tmp_path / name / "train" / "x" / "0.png").write_bytes(data)
        (tmp_path / name / "train" / "y").mkdir()
        (tmp_path / name / "train" / "y" / "1.png").write_bytes(
            data + b"\0"
        )  # after the end, so that no file stands in two classes
    record = Preprocessing(image_size=(20, 28))
    upright, other = (next(iter(train(tmp_path / n, 16, record, augmentation="inception")))[0] for n in "ab")
    np.testing.assert_array_equal(upright, other)
    assert len({image.numpy().tobytes() for image in upright}) == 16


@pytest.mark.parametrize("augmentation", ["inception", Augmentation(crop="resmall_crop", erasing_probability=1.0)])
def test_augmented_batches_are_the_same_in_any_run(tmp_path, augmentation):
    write_photos(tmp_path)
    record = Preprocessing(image_size=(20, 28))
    runs = [train(tmp_path, 5, record, augmentation=augmentation) for _ in range(2)]
    keras.utils.set_random_seed(99)
    (first, _), (again, _) = (next(iter(run.skip(2))) for run in runs)
    np.testing.assert_array_equal(first, again)


def test_mixed_labels_stay_distributions():
    what = (np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype="uint8"), np.arange(40) % 4)
    record = Augmentation(crop="none", mixup_alpha=0.5)
    for _, labels in train(what, 8, Preprocessing(image_size=(8, 8)), augmentation=record, labels="one_hot").take(3):
        assert labels.shape == (8, 4)
        np.testing.assert_allclose(labels.numpy().sum(1), 1, atol=1e-6)  # two shares, each rounded


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"augmentation": "inception", "training": False}, ValueError, "augmentation='inception', training=False"),
        ({"start_step": 1, "training": False}, ValueError, "start_step=1, training=False"),
        ({"augmentation": Augmentation(mixup_alpha=0.2)}, ValueError, 'labels="one_hot"'),
        ({"preprocessing": dataclasses.replace(GREY, image_size=None)}, ValueError, "one size"),
        ({"labels": "text"}, ValueError, "`labels`"),
        ({"batch_size": 0}, ValueError, "`batch_size`"),
        ({"split": "test"}, ValueError, "must have the split 'test'"),
        ({"split": "train+training"}, ValueError, "once"),
        ({"split": None}, TypeError, "`split`"),
        ({"shard": (2, 2)}, ValueError, "`shard`"),
        ({"shard": 1}, TypeError, "`shard`"),
        ({"shard": (0.0, 2)}, TypeError, "`shard`"),
        ({"shard": (0, 3)}, ValueError, r"batch_size=4 for 3 host(?s:.*)Nearest: 3"),
        ({"seed": -1}, ValueError, "`seed`"),
        ({"seed": 2**31}, ValueError, "`seed`"),
        ({"seed": None}, TypeError, "`seed`"),
        ({"seed": True}, TypeError, "`seed`"),
        ({"preprocessing": make_tiny}, TypeError, r"`preprocessing`(?s:.*)model\.preprocessing"),
    ],
)
def test_wrong_argument_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        load_dataset(numbered(9), **{"batch_size": 4, "preprocessing": GREY, "training": True} | arguments)


@pytest.mark.parametrize(("wrong", "jit_compile"), [(-1, False), (7, True)])
def test_label_out_of_range_stops_a_step_before_it_is_taken(wrong, jit_compile):
    model = make_tiny(num_layers=1)
    before = [weight.copy() for weight in model.get_weights()]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit_compile)
    labels = np.array([0, 3, wrong, 6])
    data = tf.data.Dataset.from_tensor_slices((np.zeros((4, 20, 28, 3), "float32"), labels)).batch(4)
    data = data.map(lambda images, labels: (images, check_labels(labels, 7)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s)in \[0, 7\).*{min(labels)}.*{max(labels)}"):
        model.fit(data, shuffle=False, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_model_trains_and_evaluates_on_a_folder(tmp_path):
    source = open_source(write_photos(tmp_path, each=10))
    model = make_tiny(classes=3, num_layers=1)
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    data = load_dataset(
        source, batch_size=8, preprocessing=model.preprocessing, training=True, augmentation="inception"
    )
    history = model.fit(data, steps_per_epoch=3, epochs=2, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    result = model.evaluate(load_dataset(source, "test", batch_size=2, preprocessing=model.preprocessing), verbose=0)
    assert result[1] in (0, np.float32(1 / 3), np.float32(2 / 3), 1)


def digests_and_a_fit():
    """Of two batches in training and three in evaluation; then the model learns from both, on this backend."""
    record = Preprocessing(
        image_size=(20, 28), resize="crop", crop_fraction=0.9, interpolation="bicubic", antialias=True
    )
    mixed = {"training": True, "augmentation": Augmentation(crop="inception", mixup_alpha=0.2), "labels": "one_hot"}
    with tempfile.TemporaryDirectory() as folder:
        source = open_source(write_photos(Path(folder)))
        data = load_dataset(source, batch_size=4, preprocessing=record, **mixed)
        once = load_dataset(source, "train", batch_size=4, preprocessing=record, labels="one_hot")
        batches = [images.numpy().tobytes() + labels.numpy().tobytes() for images, labels in data.skip(3).take(2)]
        batches += [images.numpy().tobytes() + labels.numpy().tobytes() for images, labels in once]
        model = make_tiny(classes=3, num_layers=1)
        model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
        model.fit(data, steps_per_epoch=2, shuffle=False, verbose=0)
        model.evaluate(once, verbose=0)
    return [keras.backend.backend(), *(hashlib.sha256(batch).hexdigest() for batch in batches)]


@pytest.mark.elsewhere("jax", "digests_and_a_fit")
def test_pipeline_is_the_same_in_another_process_on_jax(found):
    backend, *digests = found
    assert backend == "jax"
    assert digests == digests_and_a_fit()[1:]
    assert len(set(digests)) == len(digests) == 5


def batches_of_two_devices():
    """What refuses a batch of 5; and the steps made with batches of 6.

    TensorFlow numbers its collectives by process, so a model here has the size of those in test_accumulation.py.
    """
    arrays = (np.zeros((40, 20, 28, 3), "uint8"), np.arange(40) % 7)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = make_tiny(num_layers=1)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        arguments = {"preprocessing": model.preprocessing, "training": True}
        with pytest.raises(ValueError, match="Nearest: 4") as error:
            load_dataset(arrays, batch_size=5, **arguments)
        data = load_dataset(arrays, batch_size=6, **arguments)
    model.fit(data, steps_per_epoch=2, shuffle=False, verbose=0)
    return [str(error.value), int(model.optimizer.iterations.numpy())]


@pytest.mark.elsewhere("two devices", "batches_of_two_devices")
def test_replicas_must_share_a_batch_evenly(found):
    message, steps = found
    assert "2 device(s). Nearest: 4" in message
    assert steps == 2
