"""A split of a data set as batches for `model.fit`, `evaluate` and `predict`.

Training is a pure function of the seed and the step. Example number c of the stream is place c mod n of the epoch's
permutation, which is computed without a shuffle buffer. All randomness of that example comes from (seed, c). So
`start_step=step` continues where another process stopped. Evaluation is one pass in order.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_vit.annotations import PADDING_WEIGHT, Tensor
from keras_vit.checks import ArgumentError, check_choice, check_int, check_positive_int, check_process
from keras_vit.data.augmentation.records import Augmentation, find_augmentation
from keras_vit.data.augmentation.transforms import augment_batch
from keras_vit.data.opening import open_source
from keras_vit.data.prepare import augment_example, decode_example, resize_image, scale_image, with_map
from keras_vit.data.shards.index import NAME as INDEX
from keras_vit.data.source import Data
from keras_vit.files import FileKindError
from keras_vit.images.byte_ranges import close_shards
from keras_vit.images.preprocessing import Preprocessing, is_uint8
from keras_vit.images.read import ImageError
from keras_vit.images.validation import BadImage, forget_checks
from keras_vit.pages.formatting import printable
from keras_vit.renamed import old_function

_ORDER, _IMAGE, _BATCH = range(3)  # streams of random numbers, so that none is used twice
_PREFETCH = 2  # batches
_NAMED = 5  # missing files that an error names
_NOT_DECODED = re.compile("Invalid (PNG|JPEG) data")  # of TensorFlow, without a path


@dataclasses.dataclass(frozen=True)
class HostShard:
    """The block of every global batch that one host reads; blocks keep the order of examples."""

    host: int  # in [0, hosts)
    hosts: int  # that share each batch
    batch_size: int  # of the global batch, a multiple of `hosts`

    def number(self, counter: Any) -> Any:
        """The number among all examples of this host's example number `counter`."""
        share = self.batch_size // self.hosts
        return counter // share * self.batch_size + self.host * share + counter % share

    def has(self, number: Any) -> Any:
        """Whether this host reads example `number` of all."""
        return number % self.batch_size // (self.batch_size // self.hosts) == self.host

    def count(self, size: int) -> int:
        """Number of the first `size` examples that this host reads."""
        share = self.batch_size // self.hosts
        rest = size % self.batch_size - self.host * share
        return size // self.batch_size * share + min(max(rest, 0), share)


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
    """Opens a data set as batches of images and labels, prepared for a model.

    Example:
        >>> rule = model.preprocessing
        >>> batches = keras_vit.load_dataset(photos, batch_size=8, preprocessing=rule)
        >>> batches.class_names, batches.num_examples
        (('disc', 'stripes', 'tiles'), 24)
        >>> pixels, labels = next(iter(batches))
        >>> tuple(pixels.shape), tuple(labels.shape)
        ((8, 32, 48, 3), (8,))

    Args:
        what: a `Source`, or what `open_source` takes.
        split: `"train"`, `"validation"` or `"test"`, or several, as `"train+validation"`.
        batch_size: B over all devices together; each host reads its share.
        preprocessing: `model.preprocessing`; evaluation prepares every image exactly as calling it does. If it has no
            `image_size`, images keep their sizes, so those of a batch must agree, or `batch_size` must be 1.
        training: whether the data repeats forever, shuffled anew for each epoch, in full batches. Otherwise there is
            one pass in order, whose last batch may be smaller.
        augmentation: `Augmentation` or its name, with `training` only; `None` prepares images as for evaluation.
        labels: `"int"` for `(B,)` int64, or `"one_hot"` for `(B, K)` float32, which MixUp and CutMix need. Labels that
            are rows of numbers come as these, `(B, K)` float32, with either, masks as int32 `(B, H, W)`, and depths as
            float32 `(B, H, W)` in metres, 0 where they do not count.
        seed: seed of the division into splits, of the order, and of the augmentation, in [0, 2**31).
        shard: `(index, count)` of this host. By default it is found for several JAX processes, and for workers of a
            `tf.distribute` strategy in scope, where it suits `distribute_datasets_from_function`. The hosts' parts in
            their order are the global batch, which does not depend on the number of hosts.
        start_step: number of the first batch, with `training` only. The result equals `dataset.skip(start_step)`, but
            skipped images are never made. `keras_vit.Checkpoints` knows the step at which a run resumes.
        on_bad_image: `"skip"` or `"raise"`, as for `open_source`.
        download: whether a tensorflow-datasets set may be fetched.

    Returns:
        `tf.data.Dataset` of (float32 `(B, H, W, C)`, labels), with the attributes `class_names`, `num_examples`,
        `preprocessing` and `start_step`. In evaluation by several processes, all get the same number of full batches,
        with sample weights. A weight is 1, or NaN for an image that only fills the last batch up. `model.evaluate` and
        `fit` do not count those.

        Where all grey levels are whole, as after a bicubic resize of photos, there is `as_uint8()`: the same batches as
        uint8, not scaled. `fit`, `evaluate` and `predict` of a model with the same scaling take those, and scale them
        on the device, to the same numbers.

    Raises:
        ValueError: for an empty set, a split named twice, or a missing image size; for a batch that cannot be full or
            shared evenly; and as `open_source` raises.
        TypeError: for another type of `preprocessing`, a `shard` that is not two ints, and as `open_source` raises.
        tf.errors.InvalidArgumentError: from the pipeline, for a label out of range, a batch of images of several sizes,
            or an undecodable image of a prepared set.
        tf.errors.NotFoundError: from the pipeline, for a file that was removed after the set was opened. One that
            became a pipe, a device or a folder is an `InvalidArgumentError`, 16 files ahead of its turn at most.

    Source: official code, `input_pipeline.py`, which takes the order from a shuffle buffer.
    """
    check_process()
    check_positive_int("batch_size", batch_size)
    check_choice("labels", labels, ("int", "one_hot"))
    check_record(preprocessing)
    start_step = _check_start(start_step, training)
    augmentation = _check_augmentation(augmentation, training, labels, preprocessing)
    source = open_source(what, seed=seed, on_bad_image=on_bad_image, download=download)
    examples = source.split(split)
    place = HostShard(*find_shard(shard), batch_size)
    share = host_batch_size(batch_size, place.hosts)
    # MixUp pairs neighbours, which another host may read.
    whole = augmentation is not None and augmentation.mixes and place.hosts > 1
    filled = shard is None and place.hosts > 1 and not training
    read_by = HostShard(0, 1, batch_size) if whole else place
    images = read_examples(examples, seed if training else None, read_by, filled, start_step)
    maps = (examples.map_type, examples.ignore_class) if hasattr(examples, "map_type") else None
    images = images.map(_image_maker(preprocessing, augmentation, seed, maps), workers())
    make_batch = _batch_maker(len(source.class_names), labels, augmentation, seed, examples.size, filled)
    batched = functools.partial(
        _batched,
        size=batch_size if whole else share,
        make=make_batch,
        kept=slice(place.host * share, place.host * share + share) if whole else None,
        training=training,
        class_names=source.class_names,
        num_examples=examples.size,
        preprocessing=preprocessing,
        start_step=start_step if training else None,
    )
    return _scale_last(images, batched, preprocessing, augmentation)


def _batched(
    images: Any, size: int, make: Callable[..., Any], kept: slice | None, training: bool, **attributes: Any
) -> Any:
    """Finished batches of images, with these attributes; of batches for all hosts only the rows that are kept."""
    dataset = images.batch(size, drop_remainder=training).map(make)
    if kept is not None:
        dataset = dataset.map(lambda *batch: tuple(part[kept] for part in batch))
    return finished(dataset, **attributes)


def finished(dataset: Any, **attributes: Any) -> Any:
    """Batches that are made ahead of the model, in one order, with these attributes."""
    dataset = dataset.prefetch(_PREFETCH).with_options(options())
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def _scale_last(
    images: Any, batched: Callable[[Any], Any], preprocessing: Preprocessing, augmentation: Augmentation | None
) -> Any:
    """Batches of scaled images; of images in bytes with `as_uint8`, which makes the same without the scaling."""
    if not is_uint8(images.element_spec[1]):
        return batched(images)

    def scale(counter: Tensor, image: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        return counter, scale_image(image, preprocessing), label

    dataset = batched(images.map(scale, workers()))
    if augmentation is None or not augmentation.mixup_alpha:  # which has parts of levels
        dataset.as_uint8 = functools.partial(batched, images)
        dataset.in_bytes = old_function(dataset.as_uint8, "in_bytes", "as_uint8")
    return dataset


def check_record(preprocessing: Any) -> None:
    """Raises unless this is a `Preprocessing`."""
    if not isinstance(preprocessing, Preprocessing):
        raise TypeError(
            "`preprocessing` must be a `Preprocessing` record, which defines the input of the model.\n"
            f"Received: an object of type {type(preprocessing).__name__}. Pass model.preprocessing."
        )


def _check_start(start_step: int, training: bool) -> int:
    start_step = check_int("start_step", start_step, 0)
    if start_step and not training:
        raise ValueError(
            f"an evaluation begins with the first image.\nReceived: start_step={start_step}, training=False."
        )
    return start_step


def _check_augmentation(
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


def read_examples(examples: Any, seed: int | None, place: HostShard, filled: bool, start_step: int) -> Any:
    """`tf.data.Dataset` of this host's (number, example).

    With a `seed` it starts at batch `start_step` and never ends; without one it is one pass in order. With `filled`
    the numbers continue to the end of the last batch, with any example.
    """
    import tensorflow as tf

    size = examples.size
    end = -(-size // place.batch_size) * place.batch_size if filled else size
    if hasattr(examples, "stream"):
        stream = examples.stream(seed, start_step * place.batch_size)
        if end > size:
            # The first examples come again, under new numbers, to fill the last batch up.
            stream = stream.repeat().enumerate().take(end).map(lambda number, pair: (number, pair[1]))
        return stream if place.hosts == 1 else stream.filter(lambda number, _: place.has(number))
    read, start = examples.reader(), start_step * (place.batch_size // place.hosts)

    def numbered(counter: Tensor) -> tuple[Tensor, Tensor]:
        counter = place.number(counter)
        if seed is None:
            return counter, tf.minimum(counter, size - 1)
        order = fold(seed, _ORDER, counter // size)
        return counter, tf.random.experimental.index_shuffle(counter % size, order, size - 1)

    def example(counter: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return counter, read(index)

    numbers = tf.data.Dataset.range(place.count(end)) if seed is None else tf.data.Dataset.counter(start)
    if not hasattr(examples, "at_once"):
        return numbers.map(lambda counter: example(*numbered(counter)), workers())
    count = tf.data.experimental.assert_cardinality(numbers.cardinality())
    return numbers.map(numbered).batch(examples.at_once).map(example, workers()).unbatch().apply(count)


def _image_maker(
    preprocessing: Preprocessing, augmentation: Augmentation | None, seed: int, maps: tuple[str, float] | None
) -> Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, ...]]:
    """Makes images of the model's size: uint8 where all levels are whole, otherwise scaled."""
    import tensorflow as tf

    def make(counter: Tensor, example: dict[str, Tensor]) -> tuple[Tensor, ...]:
        label = example["label"]
        if maps is not None:
            levels, whole, label = with_map(example, preprocessing, augmentation, fold(seed, _IMAGE, counter), *maps)
        elif augmentation is None:
            levels, whole = resize_image(decode_example(example, len(preprocessing.mean)), preprocessing)
        else:
            levels, whole = augment_example(example, preprocessing, augmentation, fold(seed, _IMAGE, counter))
        image = tf.cast(levels, tf.uint8) if whole else scale_image(levels, preprocessing)
        return counter, image, label

    return make


def _batch_maker(
    classes: int, labels: str, augmentation: Augmentation | None, seed: int, size: int, filled: bool
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    import tensorflow as tf

    def make(counters: Tensor, images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        rows = targets.shape.rank > 1  # of numbers, one for each output; or masks
        targets = targets if rows else check_labels(targets, classes)
        if labels == "one_hot":
            targets = targets if rows else tf.one_hot(targets, classes)
            if augmentation is not None:
                floats = tf.cast(images, "float32")  # CutMix alone may get bytes, which it only moves
                mixed, targets = augment_batch(floats, targets, augmentation, fold(seed, _BATCH, counters[0]))
                images = tf.cast(mixed, images.dtype)
        if not filled:
            return images, targets
        return images, targets, tf.where(counters < size, 1.0, PADDING_WEIGHT)

    return make


def check_labels(labels: Tensor, classes: int) -> Tensor:
    """The same labels, int `(B,)`; refuses those outside [0, classes).

    It runs on the CPU inside `dataset.map`. Compiled steps and GPUs would turn a label out of range into NaN weights.

    Raises:
        tf.errors.InvalidArgumentError: from the pipeline; the message has the least and the greatest label and K.
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


def fold(seed: int, stream: int, counter: Tensor) -> Tensor:
    """int64 `(2,)`: a different seed for every stream and number."""
    import tensorflow as tf

    return tf.random.experimental.stateless_fold_in(tf.constant([seed, stream], "int64"), tf.cast(counter, "int64"))


def workers() -> int:
    """Number of threads that make images; fixed, since autotuning slows the model and short passes down."""
    return os.cpu_count() or 1


def options() -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    # `read_examples` has divided the examples among hosts already. Keras' own sharding would drop most of them.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


@contextlib.contextmanager
def report_missing_files(*splits: Any) -> Iterator[None]:
    """A context in which an error of reading names the photos that were removed or changed since.

    The pipeline does not know the path of a file that it cannot decode. So the files are checked again after an error,
    and those that have not changed are not read, unless all look unchanged and a photo could not be decoded.

    Raises:
        ValueError: if photos can no longer be read, with the paths of the first five.
    """
    import tensorflow as tf

    try:
        yield
    except (tf.errors.OpError, ImageError, FileKindError, FileNotFoundError, PermissionError) as error:
        close_shards()
        files = [split for split in splits if hasattr(split, "paths")]
        lost, index = _lost_photos(files), ""
        if not lost and _NOT_DECODED.search(str(error)):  # in a file of the same size and time as before
            forget_checks()
            lost = _lost_photos(files)
            index = f" Of a shard, remove the index {INDEX} in its folder first." * any(s.in_shards for s in files)
        if not lost:
            raise
        named = "; ".join(f"{printable(image.path)}: {image.reason}" for image in lost[:_NAMED])
        raise ValueError(
            "photos must stay as they were when the data set was opened.\n"
            f"Received: {len(lost):,} that can no longer be read: {named}. Put them back, or open the data set again."
            f"{index}"
        ) from error


def _lost_photos(splits: Sequence[Any]) -> list[BadImage]:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return [image for split in splits for image in pool.map(split.check, range(split.size)) if image is not None]


def find_shard(shard: tuple[int, int] | None) -> tuple[int, int]:
    """`(index, count)` of this host among all that train together: as given, or as `tf.distribute` or JAX says.

    Raises:
        ValueError: for an index outside [0, count), or if Keras would shard the data a second time.
        TypeError: for anything but two ints.
    """
    if shard is not None:
        if not isinstance(shard, (tuple, list)) or len(shard) != 2:
            raise TypeError(
                f"`shard` must be two ints, (index, count) with 0 <= index < count.\nReceived: shard={shard!r}."
            )
        index, count = (check_int("shard", part, -math.inf) for part in shard)
        if not 0 <= index < count:
            raise ValueError(f"`shard` must be (index, count) with 0 <= index < count.\nReceived: shard={shard}.")
        return index, count
    import keras

    if keras.backend.backend() == "jax":
        return _jax_shard()
    return _worker_shard() if keras.backend.backend() == "tensorflow" else (0, 1)


def host_batch_size(batch_size: int, count: int) -> int:
    """Examples of a global batch that each host reads.

    Raises:
        ValueError: for a batch that hosts, or the replicas of a strategy in scope, cannot share evenly.
    """
    parts = max(_replicas(), count)
    if batch_size % count or batch_size % parts:
        raise ArgumentError(
            "`batch_size` is that of all devices together, and each must get the same number of images.\n"
            f"Received: batch_size={batch_size} for {count} host(s) and {parts} device(s). "
            f"Nearest: {max(batch_size // parts, 1) * parts}."
        )
    return batch_size // count


def _jax_shard() -> tuple[int, int]:
    import jax
    import keras

    count = jax.process_count()
    distribution = keras.distribution.distribution()
    if count > 1 and getattr(distribution, "auto_shard_dataset", False):
        raise ValueError(
            "each process reads its own part already, which Keras would shard again.\n"
            f"Received: {type(distribution).__name__} with auto_shard_dataset=True. Make it with False."
        )
    if count == 1 or distribution is None:
        return jax.process_index(), count
    return _mesh_shard(distribution, count)


def _mesh_shard(distribution: Any, count: int) -> tuple[int, int]:
    """Processes that hold parts of the same copy of the model read the same images."""
    copies = distribution.num_model_replicas
    if max(copies, count) % min(copies, count):
        raise ValueError(
            "the processes must share the copies of the model evenly, or a copy its processes.\n"
            f"Received: {copies} along the first axis of the mesh, {count} processes."
        )
    return distribution.data_shard_id, min(copies, count)


def _worker_shard() -> tuple[int, int]:
    resolver = getattr(_strategy(), "cluster_resolver", None)
    if resolver is None or not resolver.cluster_spec().as_dict():
        return 0, 1
    workers = resolver.cluster_spec().as_dict()
    # A chief counts as the first worker.
    chiefs = len(workers.get("chief", ()))
    index = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
    return index, chiefs + len(workers.get("worker", ()))


def _replicas() -> int:
    """Replicas of the strategy in scope, which needs TensorFlow to be imported already; otherwise 1."""
    return _strategy().num_replicas_in_sync if "tensorflow" in sys.modules else 1


def _strategy() -> Any:
    import tensorflow as tf

    return tf.distribute.get_strategy()
