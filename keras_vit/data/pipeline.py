"""A split of a data set as batches for `model.fit`, `evaluate` and `predict`.

Training is a pure function of the seed and the step: example number c of the stream is place c mod n of the epoch's
permutation, which is computed, not drawn into a buffer, and all that is random of it comes from (seed, c). So
`start_step=step` goes on where another process stopped. Evaluation is one pass in order.
"""

import os
from collections.abc import Callable
from typing import Any

from keras_vit.annotations import PADDING_WEIGHT, Tensor
from keras_vit.checks import check_choice, check_int, check_positive_int
from keras_vit.data.augmentation import Augmentation, augment_batch, find_augmentation
from keras_vit.data.prepare import augmented, pixels_of, prepare
from keras_vit.data.shards import Place, find_shard, per_host
from keras_vit.data.source import Data
from keras_vit.data.source_opening import open_source
from keras_vit.images.preprocessing import Preprocessing

_ORDER, _IMAGE, _BATCH = range(3)  # streams of random numbers, so that none is used twice
_PREFETCH = 2  # batches


def load_dataset(
    what: Data,
    split: str = "train",
    *,
    batch_size: int,
    preprocessing: Preprocessing,
    training: bool = False,
    augmentation: Augmentation | str | None = None,
    labels: str = "int",
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    start_step: int = 0,
    on_bad_image: str = "skip",
    download: bool = False,
) -> Any:
    """Batches of images, prepared for a model, and labels.

    Args:
        what: a `Source`, or what `open_source` takes.
        split: `"train"`, `"validation"` or `"test"`, or several, as `"train+validation"`.
        batch_size: B of all devices together; each host gets its share.
        preprocessing: `model.preprocessing`; evaluation prepares every image exactly as calling it does. Without an
            image size in it every image keeps its own, so those of a batch must agree, or `batch_size` be 1.
        training: whether the data repeats for ever, shuffled anew for each epoch, in full batches; else it comes
            once, in order, and the last batch may be smaller.
        augmentation: `Augmentation` or its name, with `training` only; `None` prepares images as for evaluation.
        labels: `"int"` for `(B,)` int64, or `"one_hot"` for `(B, K)` float32, which MixUp and CutMix need.
        seed: of the division into splits, the order, and the augmentation, in [0, 2**31).
        shard: `(index, count)` of this host; found by itself for several JAX processes, and for workers of a
            `tf.distribute` strategy in scope, where it suits `distribute_datasets_from_function`. A global batch is
            the hosts' parts one after the other, and does not depend on their number.
        start_step: number of the first batch, with `training` only: the same as `dataset.skip(start_step)`, without
            making the images before it. `keras_vit.Checkpoints` knows where a run goes on.
        on_bad_image: `"skip"` or `"raise"`, as for `open_source`, and of files only, as there.
        download: whether a tensorflow-datasets set may be fetched.

    Returns:
        `tf.data.Dataset` of (float32 `(B, H, W, C)`, labels), with the attributes `class_names`, `num_examples`,
        `preprocessing` and `start_step`. Of several processes each gets as many full batches without `training`, with
        sample weights: 1, or NaN for an image that fills the last batch up, which `model.evaluate` and `fit` do not
        count.

    Raises:
        ValueError: for an empty set, a split named twice, a batch that cannot be full or shared evenly, a missing
            image size, or as `open_source` raises.
        TypeError: for a `preprocessing` that is none, a `shard` that is not two ints, or as `open_source` raises.
        tf.errors.InvalidArgumentError: from the pipeline, for a label that is no class of the set, images of several
            sizes in a batch without an image size, or an image that cannot be decoded in a prepared set.
        tf.errors.NotFoundError: from the pipeline, for a file that has gone since the set was opened.

    Source: official code, `input_pipeline.py`. There the order comes from a shuffle buffer.
    """
    check_positive_int("batch_size", batch_size)
    check_choice("labels", labels, ("int", "one_hot"))
    if not isinstance(preprocessing, Preprocessing):
        raise TypeError(
            "`preprocessing` must be a `Preprocessing` record, which says what the model takes.\n"
            f"Received: an object of type {type(preprocessing).__name__}. Pass model.preprocessing."
        )
    start_step = _usable_start(start_step, training)
    augmentation = _usable_augmentation(augmentation, training, labels, preprocessing)
    source = open_source(what, seed=seed, on_bad_image=on_bad_image, download=download)
    examples = source.split(split)
    host, hosts = find_shard(shard)
    place = Place(host, hosts, batch_size)
    share = per_host(batch_size, place.hosts)
    mixes = isinstance(augmentation, Augmentation) and augmentation.mixes
    whole = mixes and place.hosts > 1  # neighbours may be another host's
    filled = shard is None and place.hosts > 1 and not training
    read_by = Place(0, 1, batch_size) if whole else place
    dataset = _numbered(examples, seed if training else None, read_by, filled, start_step)
    dataset = dataset.map(_image_maker(preprocessing, augmentation, seed), _workers())
    dataset = dataset.batch(batch_size if whole else share, drop_remainder=training)
    dataset = dataset.map(_batch_maker(len(source.class_names), labels, augmentation, seed, examples.size, filled))
    if whole:
        dataset = dataset.map(lambda *batch: tuple(part[place.host * share :][:share] for part in batch))
    dataset = dataset.prefetch(_PREFETCH)
    dataset = dataset.with_options(_options())
    dataset.class_names, dataset.num_examples = source.class_names, examples.size
    dataset.preprocessing, dataset.start_step = preprocessing, start_step if training else None
    return dataset


def _usable_start(start_step: int, training: bool) -> int:
    start_step = check_int("start_step", start_step, 0)
    if start_step and not training:
        raise ValueError(
            f"an evaluation begins with the first image.\nReceived: start_step={start_step}, training=False."
        )
    return start_step


def _usable_augmentation(
    augmentation: Augmentation | str | None, training: bool, labels: str, preprocessing: Preprocessing
) -> Augmentation | None:
    record = None if augmentation is None else find_augmentation(augmentation)
    if record is not None and not training:
        raise ValueError(
            f"images are changed at random in training only.\nReceived: augmentation={augmentation!r}, training=False."
        )
    if record is not None and (record.mixup_alpha or record.cutmix_alpha) and labels != "one_hot":
        raise ValueError(
            "MixUp and CutMix mix labels too, so they must be rows that can be mixed.\n"
            f'Received: labels={labels!r}, augmentation={augmentation!r}. Pass labels="one_hot".'
        )
    if training and preprocessing.image_size is None:
        raise ValueError(
            "images of a batch must have one size in training.\n"
            "Received: preprocessing with image_size=None. Take dataclasses.replace(preprocessing, image_size=(H, W))."
        )
    return record


def _numbered(examples: Any, seed: int | None, place: Place, filled: bool, start_step: int) -> Any:
    """This host's (number, example): from a batch on without end if there is a `seed`, else one pass in order.

    With `filled` the numbers go on to the end of the last batch, with any example.
    """
    import tensorflow as tf

    size = examples.size
    end = -(-size // place.batch_size) * place.batch_size if filled else size
    if hasattr(examples, "stream"):
        stream = examples.stream(seed, start_step * place.batch_size)
        if end > size:
            # The first examples once more, under numbers of their own.
            stream = stream.repeat().enumerate().take(end).map(lambda number, pair: (number, pair[1]))
        return stream if place.hosts == 1 else stream.filter(lambda number, _: place.has(number))
    read, start = examples.reader(), start_step * (place.batch_size // place.hosts)

    def example(counter: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        counter = place.number(counter)
        if seed is None:
            return counter, read(tf.minimum(counter, size - 1))
        order = _fold(seed, _ORDER, counter // size)
        return counter, read(tf.random.experimental.index_shuffle(counter % size, order, size - 1))

    numbers = tf.data.Dataset.range(place.count(end)) if seed is None else tf.data.Dataset.counter(start)
    return numbers.map(example, _workers())


def _image_maker(
    preprocessing: Preprocessing, augmentation: Augmentation | None, seed: int
) -> Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, ...]]:
    def make(counter: Tensor, example: dict[str, Tensor]) -> tuple[Tensor, ...]:
        if augmentation is None:
            image = prepare(pixels_of(example, len(preprocessing.mean)), preprocessing)
        else:
            image = augmented(example, preprocessing, augmentation, _fold(seed, _IMAGE, counter))
        return counter, image, example["label"]

    return make


def _batch_maker(
    classes: int, labels: str, augmentation: Augmentation | None, seed: int, size: int, filled: bool
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    import tensorflow as tf

    def make(counters: Tensor, images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        targets = check_labels(targets, classes)
        if labels == "one_hot":
            targets = tf.one_hot(targets, classes)
            if augmentation is not None:
                images, targets = augment_batch(images, targets, augmentation, _fold(seed, _BATCH, counters[0]))
        if not filled:
            return images, targets
        return images, targets, tf.where(counters < size, 1.0, PADDING_WEIGHT)

    return make


def check_labels(labels: Tensor, classes: int) -> Tensor:
    """The same labels, once all are found to be in [0, classes).

    For `dataset.map`, which runs on the CPU: compiled steps and GPUs turn a label out of range into NaN weights.

    Args:
        labels: int `(B,)`.
        classes: K.

    Raises:
        tf.errors.InvalidArgumentError: from the pipeline; the error has the least and the greatest label and K.
    """
    import tensorflow as tf

    labels = tf.cast(labels, "int64")
    low, high = tf.reduce_min(labels), tf.reduce_max(labels)
    right = tf.debugging.Assert(
        (low >= 0) & (high < classes),
        [f"labels must be in [0, {classes}), one for each class; a batch has labels from", low, "to", high],
    )
    with tf.control_dependencies([right] if right is not None else []):
        return tf.identity(labels)


def _fold(seed: int, stream: int, counter: Tensor) -> Tensor:
    """int64 `(2,)`: a seed of its own for every stream and number."""
    import tensorflow as tf

    return tf.random.experimental.stateless_fold_in(tf.constant([seed, stream], "int64"), tf.cast(counter, "int64"))


def _workers() -> int:
    """Threads that make images; a fixed number, since autotuning takes time from the model and from short passes."""
    return os.cpu_count() or 1


def _options() -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    # Hosts are told apart above; Keras' own sharding would drop examples.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
