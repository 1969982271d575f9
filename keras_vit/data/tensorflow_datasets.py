"""Data sets of tensorflow-datasets, with the splits of the paper where it has used the set.

Images stay encoded. So the pipeline decodes them as it decodes files, and only the needed window of a JPEG.
"""

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath, Tensor
from keras_vit.checks import did_you_mean, install_hint
from keras_vit.config.datasets import OFFICIAL_DATASETS, VTAB_TASKS, DatasetRecord, find_dataset
from keras_vit.data.prepare import decode_example
from keras_vit.data.source import Source
from keras_vit.data.splits import SPLIT_ALIASES
from keras_vit.images.photo_files import near_names
from keras_vit.images.pillow_formats import to_png_in_graph
from keras_vit.pages.formatting import printable

_BLOCK = 256 * 2**20  # bytes of encoded images that are shuffled together
_FIRST_LABELS = 100  # of a split, which tell whether its labels are hidden


@dataclasses.dataclass(frozen=True, eq=False)
class StreamSplit:
    """Examples that are read in sequence, as tensorflow-datasets stores them."""

    builder: Any  # `tfds.core.DatasetBuilder`, prepared
    name: str  # of the split, in the slicing notation of tensorflow-datasets
    record: DatasetRecord  # with the names of the features that are the image and the label
    numbers: np.ndarray | None = None  # ascending, of the examples of a subset; `None` for all

    @property
    def size(self) -> int:
        """How many examples there are."""
        return self._all if self.numbers is None else len(self.numbers)

    @property
    def _all(self) -> int:
        """Number of examples, including those outside a subset."""
        return self.builder.info.splits[self.name].num_examples

    def stream(self, seed: int | None, start: int = 0) -> Any:
        """`tf.data.Dataset` of (number, example).

        Args:
            seed: for training, an endless stream that is shuffled anew for each epoch, in blocks of 256 MB of encoded
                images. Blocks suffice, since preparing the set has shuffled it. `None` is one pass in order.
            start: number of the first example, in training. Earlier ones of its epoch are read, but not decoded.
        """
        import tensorflow as tf

        dataset = self._read().map(functools.partial(_example, record=self.record))
        if seed is None:
            return dataset.enumerate()
        blocks = dataset.batch(self._block())

        def shuffled(epoch: Tensor, number: Tensor, block: dict[str, Tensor]) -> Any:
            order = tf.random.experimental.stateless_fold_in(tf.constant([seed, 0], "int64"), epoch)
            order = tf.random.experimental.stateless_fold_in(order, number)
            places = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(block["label"])[0]), seed=order)
            block = {name: tf.gather(values, places) for name, values in block.items()}
            return tf.data.Dataset.from_tensor_slices(block)

        def epoch(number: Tensor) -> Any:
            return blocks.enumerate().flat_map(lambda place, block: shuffled(number, place, block))

        passed, within = divmod(start, self.size)
        return tf.data.Dataset.counter(passed).flat_map(epoch).skip(within).enumerate(start)

    def row(self, index: int) -> dict:
        """What is known of one example: its label."""
        return {"label": int(self.labels[index])}

    def pixels(self, index: int) -> np.ndarray:
        """uint8 `(H, W, C)`; reads all earlier examples first."""
        if found := self._decoded(self.stream(None).skip(index).take(1)):
            return found[0]
        raise IndexError(f"there is no such example.\nReceived: index={index} of {self.size}.")

    def sample(self, count: int) -> list[np.ndarray]:
        """Pixels of the first examples, at most `count`, which the prepared set has in random order."""
        return self._decoded(self.stream(None).take(count))

    def _decoded(self, examples: Any) -> list[np.ndarray]:
        import tensorflow as tf

        with tf.device("CPU"):
            return [decode_example(example, 3).numpy() for _, example in examples]

    def file_names(self) -> list[str]:
        """The feature `file_name` of each example; an empty list if the set lacks it. `imagenet2012` has it."""
        import tensorflow_datasets as tfds

        if "file_name" not in self.builder.info.features:
            return []
        decoders = tfds.decode.PartialDecoding({"file_name": True})
        examples = self.builder.as_dataset(split=self.name, decoders=decoders, shuffle_files=False)
        return [example["file_name"].decode() for example in examples.as_numpy_iterator()]

    def concatenate(self, other: "StreamSplit") -> "StreamSplit":
        """The examples of this split and those of the other.

        Raises:
            ValueError: for a subset.
        """
        if self.numbers is not None or other.numbers is not None:
            raise ValueError(
                "tensorflow-datasets reads joined splits in another order, in which a subset's numbers are others.\n"
                f"Received: {self.name!r} and {other.name!r}, one of them a subset. Load them one after the other."
            )
        return dataclasses.replace(self, name=f"{self.name}+{other.name}")

    def take(self, numbers: np.ndarray) -> "StreamSplit":
        """The examples of these ascending numbers; the others are skipped on reading."""
        numbers = numbers if self.numbers is None else self.numbers[numbers]
        return dataclasses.replace(self, numbers=numbers)

    def check_labels(self, most: int) -> None:
        """Raises a `ValueError` for a label of the first examples that is no class, as -1 for a hidden one."""
        import tensorflow as tf

        with tf.device("CPU"):
            labels = self._read().take(most).map(functools.partial(example_label, record=self.record))
            wrong = labels.filter(lambda label: (label < 0) | (label >= self.record.classes))
            count, first = wrong.reduce(
                (tf.constant(0, "int64"), tf.constant(0, "int64")), lambda state, label: (state[0] + 1, label)
            )
        if count:
            raise ValueError(
                f"labels must be in [0, {self.record.classes}), one for each class; -1 stands for a hidden label.\n"
                f"Received: {int(count):,} other label(s) in the split {self.name!r} of "
                f"{self.builder.info.full_name}, as {int(first)}. Prepare the set without these examples."
            )

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """int64 `(n,)`; reads all examples."""
        return np.array([int(example["label"]) for _, example in self.stream(None)], "int64")

    def _read(self) -> Any:
        import tensorflow_datasets as tfds

        record = self.record
        kept = LABEL_RULES[record.label][0] if record.label in LABEL_RULES else record.label
        skipped = {record.image: tfds.decode.SkipDecoding()} if self._is_encoded() else None
        decoders = tfds.decode.PartialDecoding({record.image: True, kept: True}, decoders=skipped)
        dataset = self.builder.as_dataset(split=self.name, decoders=decoders, shuffle_files=False)
        return dataset if self.numbers is None else _select(dataset, self.numbers, self._all)

    def _is_encoded(self) -> bool:
        import tensorflow_datasets as tfds

        feature = self.builder.info.features[self.record.image]
        return isinstance(feature, tfds.features.Image) and self.record.white == 255

    def _block(self) -> int:
        splits = self.builder.info.splits.values()
        examples = max(sum(split.num_examples for split in splits), 1)
        each = max(sum(split.num_bytes for split in splits) // examples, 1)
        return max(min(_BLOCK // each, self.size), 1)


def _select(dataset: Any, numbers: np.ndarray, size: int) -> Any:
    """The examples of these numbers, of `size` in all."""
    import tensorflow as tf

    counts = np.zeros(size, bool)
    counts[numbers] = True
    with tf.device("CPU"):
        counts = tf.constant(counts)
    return dataset.enumerate().filter(lambda number, _: counts[number]).map(lambda _, example: example)


def load_any(name: str, download: bool) -> Source:
    """A `Source` of a tensorflow-datasets name or a VTAB task; see `open_source`.

    Raises:
        ValueError: for an unknown name, a set that has not been prepared, or one that does not classify images.
        ImportError: without tensorflow-datasets.
    """
    tfds = _library(f"there is no file or folder {name!r}.{near_names(Path(name))} A data set by name")
    record = find_dataset(name) if name.startswith("vtab/") else OFFICIAL_DATASETS.get(name)
    builder = _builder(tfds, record.name if record else name)
    if not builder.is_prepared():
        _prepare(builder, name, download)
    return _source(name, builder, record or _find_record(builder))


def missing_step(name: str) -> str | None:
    """The step that a data set of the paper needs before it opens by name, in one line; `None` if it is ready.

    Raises:
        ValueError: for an unknown name.
        ImportError: without tensorflow-datasets.
    """
    builder = _builder(_library(f"the data set {name!r}"), find_dataset(name).name)
    if builder.is_prepared():
        return None
    full_name = builder.info.full_name
    if getattr(builder, "MANUAL_DOWNLOAD_INSTRUCTIONS", None):
        return (
            f"{full_name} is not in {builder.data_dir}; its files are to be fetched by hand, as "
            f"tensorflow.org/datasets/catalog/{builder.name} says, then run `tfds build {_buildable(builder)}`"
        )
    size = sum(info.size or 0 for info in builder.url_infos.values())
    amount = f", up to {size / 1e9:,.2f} GB to download" if size else ""
    return f"{full_name} is not in {builder.data_dir}; run `tfds build {_buildable(builder)}`{amount}"


def _buildable(builder: Any) -> str:
    """Name and configuration, in the form that `tfds build` takes."""
    return builder.info.full_name.rpartition("/")[0]


def open_prepared(path: FilePath) -> Source:
    """A `Source` of a folder that tensorflow-datasets has written."""
    library = _library("a folder of a prepared data set")
    try:
        builder = library.builder_from_directory(path)
    except Exception as error:  # it has classes of its own for what cannot be read
        found = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            "a folder of a prepared data set must be as tensorflow-datasets wrote it.\n"
            f"Received: {printable(path)}: {found}. Grant the right to read it, or prepare it again."
        ) from error
    return _source(builder.name, builder, OFFICIAL_DATASETS.get(builder.name) or _find_record(builder))


def _library(what: str) -> Any:
    try:
        import importlib_resources  # noqa: F401  # tensorflow-datasets needs it, but does not declare it
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            f"{what} comes from tensorflow-datasets, which is to be installed, with importlib_resources: "
            f"{install_hint('data')}"
        ) from error
    return tensorflow_datasets


def _builder(tfds: Any, name: str) -> Any:
    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError:
        known = ["digits", *OFFICIAL_DATASETS, *VTAB_TASKS, *tfds.list_builders(with_community_datasets=False)]
        raise ValueError(
            "data must be a folder, a .csv file, or the name of a data set of tensorflow-datasets.\n"
            f"Received: {name!r}, and there is no such file, folder or data set."
            f"{near_names(Path(name)) or did_you_mean(name, known, 0.75)}"
        ) from None


def _prepare(builder: Any, name: str, download: bool) -> None:
    if not download:
        raise ValueError(
            "the data set has not been downloaded and prepared on this machine.\n"
            f"Received: {name!r}, looked for in {builder.data_dir}. Pass download=True, run `tfds build "
            f"{builder.name}`, or set TFDS_DATA_DIR to where it is."
        )
    builder.download_and_prepare()


def _find_record(builder: Any) -> DatasetRecord:
    """The record of a set that the paper has not used, found from its features and splits."""
    import tensorflow_datasets as tfds

    features, keys = builder.info.features, builder.info.supervised_keys
    if keys is None and set(features) == {"image", "label"}:
        keys = ("image", "label")
    fits = keys is not None and len(keys) == 2 and all(isinstance(key, str) for key in keys)
    if not fits or not isinstance(features[keys[1]], tfds.features.ClassLabel):
        raise ValueError(
            "a data set must have one image and one class label for each example.\n"
            f"Received: {builder.name!r} with the features {list(features)} and supervised_keys={keys}."
        )
    train, dev, test = _find_splits(builder, keys)
    classes = features[keys[1]].num_classes
    return DatasetRecord(builder.name, classes, f"{train}+{dev}", train, dev, test, "", label=keys[1], image=keys[0])


def _find_splits(builder: Any, keys: Sequence[str]) -> tuple[str, str, str]:
    """Training, validation and test split; a missing one takes a tenth of `train`."""
    given: dict[str, str] = {}  # names by what they mean, as `dev` is a validation split
    for name in builder.info.splits:
        meaning = SPLIT_ALIASES.get(name.lower())
        if meaning and (meaning not in given or name == meaning):
            given[meaning] = name
    given = {meaning: name for meaning, name in given.items() if not _hides_labels(builder, name, keys[1])}
    if "train" not in given:
        raise ValueError(
            "a data set must have a split `train` with labels.\n"
            f"Received: {builder.name!r} with {sorted(builder.info.splits)}."
        )
    train, rest = given.pop("train"), list(given.values())
    if len(rest) == 2:
        return train, given["validation"], given["test"]
    if rest:  # a lone validation split serves as test set, as for ImageNet
        return f"{train}[:90%]", f"{train}[90%:]", rest[0]
    return f"{train}[:80%]", f"{train}[80%:90%]", f"{train}[90%:]"


def _hides_labels(builder: Any, split: str, key: str) -> bool:
    """Whether the first examples of a split have no label, as test sets of contests; warns of it."""
    import tensorflow_datasets as tfds

    decoders = tfds.decode.PartialDecoding({key: True})
    examples = builder.as_dataset(split=split, decoders=decoders, shuffle_files=False).take(_FIRST_LABELS)
    labels = [int(example[key]) for example in examples.as_numpy_iterator()]
    if not labels or max(labels) >= 0:
        return False
    warnings.warn(
        f"the split {split!r} of {builder.name} has no labels, but {labels[0]} for each, so it is left out.",
        stacklevel=2,
    )
    return True


def _check_features(builder: Any, record: DatasetRecord) -> None:
    """Refuses a feature that is not an image, or whose range of values is unknown."""
    import tensorflow_datasets as tfds

    if record.classes is None or record.classes < 2:
        raise ValueError(
            "there must be at least two classes.\n"
            f"Received: {builder.name!r} with {record.classes} in {record.label!r}."
        )
    feature: Any = dict(builder.info.features).get(record.image)
    kinds = {tfds.features.Image: ("uint8", "uint16"), tfds.features.Tensor: ("uint8",)}
    allowed = next((types for kind, types in kinds.items() if isinstance(feature, kind)), ())
    if not allowed or np.dtype(feature.np_dtype).name not in allowed or len(feature.shape) != 3:
        found = "not there" if feature is None else f"{type(feature).__name__} of {feature.np_dtype}"
        raise ValueError(
            "images must be a feature `Image` of uint8 or uint16, or a `Tensor` (H, W, C) of uint8, as the range of "
            "other numbers is not known.\n"
            f"Received: {builder.name!r}, whose feature {record.image!r} is {found}."
        )


def _source(name: str, builder: Any, record: DatasetRecord) -> Source:
    _check_features(builder, record)
    splits = {"train": record.dev_train, "validation": record.dev, "test": record.test}
    features = builder.info.features
    names = getattr(features[record.label], "names", None) if record.label in features else None
    if names is None or len(names) != record.classes:
        names = map(str, range(record.classes))
    parts = {split: StreamSplit(builder, text, record) for split, text in splits.items()}
    facts = {"tensorflow_datasets": builder.info.full_name, "splits": splits, "source": record.source}
    return Source(name, "tensorflow_datasets", tuple(names), parts, facts=facts)


def _example(features: dict[str, Tensor], record: DatasetRecord) -> dict[str, Tensor]:
    """The example of a split, made from the features that tensorflow-datasets reads."""
    import tensorflow as tf

    image, label = features[record.image], example_label(features, record)
    if image.dtype == tf.string:
        return {"bytes": to_png_in_graph(image), "label": label}
    return {"pixels": tf.cast(tf.cast(image, "int32") * (255 // record.white), "uint8"), "label": label}


def example_label(features: dict[str, Tensor], record: DatasetRecord) -> Tensor:
    """The class of an example, int64, from the features that tensorflow-datasets reads."""
    import tensorflow as tf

    if record.label in LABEL_RULES:
        key, rule = LABEL_RULES[record.label]
        return tf.cast(rule(features[key]), "int64")
    label = tf.cast(features[record.label], "int64")
    return label if record.label_classes is None else label * record.classes // record.label_classes


def _interval(value: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Number of the interval that contains `value`; intervals include their upper ends."""
    import tensorflow as tf

    return tf.reduce_sum(tf.cast(tf.constant(thresholds, "float32") < tf.cast(value, "float32"), "int64")) - 1


def _clevr_count_all(objects: dict[str, Tensor]) -> Tensor:
    """The number of objects, from 3 to 10, as a class from 0."""
    import tensorflow as tf

    return tf.size(objects["size"]) - 3


def _clevr_closest_object_distance(objects: dict[str, Tensor]) -> Tensor:
    """The depth of the closest object, in six intervals of about equal frequency."""
    import tensorflow as tf

    return _interval(tf.reduce_min(objects["pixel_coords"][:, 2]), (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0))


def _kitti_closest_vehicle_distance(objects: dict[str, Tensor]) -> Tensor:
    """The distance of the closest car, van or lorry: to 8 m, to 20 m, beyond, or none in the picture."""
    import tensorflow as tf

    depths = tf.boolean_mask(objects["location"][:, 2], objects["type"] < 3)
    return _interval(tf.reduce_min(tf.concat([depths, [1000.0]], axis=0)), (-100.0, 8.0, 20.0, 999.0))


# Computed labels: the feature that they come from, and the function. Source: google-research/task_adaptation, data/.
LABEL_RULES = {
    rule.__name__.removeprefix("_"): ("objects", rule)
    for rule in (_clevr_count_all, _clevr_closest_object_distance, _kitti_closest_vehicle_distance)
}
