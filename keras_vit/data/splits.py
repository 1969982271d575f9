"""The examples of one split, in files or in memory.

A split gives single examples by their numbers, to a pipeline (`reader`) and to a report (`row`, `pixels`). An example
is a dict of `"label"` and either `"bytes"` with `"orientation"`, or `"pixels"`.
"""

import collections
import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.files import FileKindError
from keras_vit.images.byte_ranges import ByteRange, PhotoLocation, photo_bytes
from keras_vit.images.pillow_formats import to_png, to_png_in_graph
from keras_vit.images.read import read_photo
from keras_vit.images.validation import BadImage, check_image
from keras_vit.pages.formatting import printable

SPLITS = ("train", "validation", "test")
SPLIT_ALIASES = {"train": "train", "training": "train", "validation": "validation", "val": "validation"}
SPLIT_ALIASES |= {"valid": "validation", "dev": "validation", "test": "test", "testing": "test"}


@dataclasses.dataclass(frozen=True, eq=False)
class FileSplit:
    """Examples in image files, or in slices of shards."""

    paths: tuple[PhotoLocation, ...]  # n of one kind
    labels: np.ndarray  # int64 `(n,)`, float32 `(n, K)`, or texts as objects `(n, 1)`
    orientations: np.ndarray  # of EXIF, int32 `(n,)`, 1 to 8
    needs_pillow: bool = False  # whether Pillow decodes any of them, as a WebP

    @property
    def size(self) -> int:
        """How many examples there are."""
        return len(self.paths)

    def check(self, index: int) -> BadImage | None:
        """Why a photo can no longer be read as when the data were opened; `None` if it can."""
        place = self.paths[index]
        image = check_image(place)
        if isinstance(image, BadImage):
            return image
        if image.needs_pillow and not self.needs_pillow:
            return BadImage(str(place), "a photo of another format than before")
        turned = image.orientation != self.orientations[index]
        return BadImage(str(place), "a photo of another EXIF orientation than before") if turned else None

    def reader(self) -> Callable[[Tensor], dict[str, Tensor]]:
        """A function from int64 `(k,)` to the examples of these numbers."""
        import tensorflow as tf

        columns: dict[str, Any] = {"label": self.labels}
        if (self.orientations != 1).any():  # otherwise the graph needs no code that turns pictures
            columns["orientation"] = self.orientations
        with tf.device("CPU"):
            columns = {name: tf.constant(column) for name, column in columns.items()}
            paths = None if self.in_shards else tf.constant(list(self.paths))

        def read(index: Tensor) -> dict[str, Tensor]:
            row = {name: tf.gather(column, index) for name, column in columns.items()}
            return {"bytes": self._slices(index) if paths is None else self._files(index, paths), **row}

        return read

    def _files(self, indices: Tensor, paths: Tensor) -> Tensor:
        """The bytes of some files, strings `(k,)`, read by TensorFlow, which would wait for a pipe without an end.

        A photo that was replaced by one of another orientation would be learned turned, without an error of TensorFlow.
        """
        import tensorflow as tf

        checked = tf.ensure_shape(tf.numpy_function(self._check_all, [indices], tf.int64, stateful=False), (None,))
        read = (lambda path: to_png_in_graph(tf.io.read_file(path))) if self.needs_pillow else tf.io.read_file
        return tf.map_fn(read, tf.gather(paths, checked), fn_output_signature=tf.string)

    def _check_all(self, numbers: np.ndarray) -> np.ndarray:
        for image in filter(None, map(self.check, numbers)):
            raise FileKindError("a photo must stay as it was", f"{printable(image.path)}: {image.reason}", image.reason)
        return numbers

    @property
    def at_once(self) -> int:
        """How many are read together: each call of Python from a graph takes 100 microseconds, and a PNG memory."""
        return 32 if self.in_shards else 1 if self.needs_pillow else 16

    @property
    def in_shards(self) -> bool:
        """Whether the examples are slices of shards."""
        return any(isinstance(path, ByteRange) for path in self.paths[:1])

    def _slices(self, indices: Tensor) -> Tensor:
        """The bytes of some examples, strings `(k,)`, read outside of the graph, where Pillow's kinds become PNGs."""
        import tensorflow as tf

        def read(numbers: np.ndarray) -> np.ndarray:  # of objects, since NumPy's strings lose zeros at their ends
            return np.array([to_png(photo_bytes(self.paths[number])) for number in numbers], object)

        return tf.ensure_shape(tf.numpy_function(read, [indices], tf.string, stateful=False), (None,))

    def row(self, index: int) -> dict:
        """The label and the path of one example, or its name in a shard."""
        return {"label": self.labels[index].tolist(), "path": str(self.paths[index])}

    def pixels(self, index: int) -> np.ndarray:
        """uint8 `(H, W, 3)`, upright."""
        import tensorflow as tf

        with tf.device("CPU"):
            return read_photo(self.paths[index])

    def sample(self, count: int) -> list[Any]:
        """Paths of at most `count` examples, evenly spread; of shards their pixels."""
        chosen = evenly_spaced(self.size, count)
        return [self.pixels(number) if self.in_shards else self.paths[number] for number in chosen]

    def concatenate(self, other: "FileSplit") -> "FileSplit":
        """The examples of this split and then those of the other."""
        labels = np.concatenate([self.labels, other.labels])
        orientations = np.concatenate([self.orientations, other.orientations])
        paths, needs_pillow = self.paths + other.paths, self.needs_pillow or other.needs_pillow
        return dataclasses.replace(
            self, paths=paths, labels=labels, orientations=orientations, needs_pillow=needs_pillow
        )

    def take(self, numbers: np.ndarray) -> "FileSplit":
        """The examples of these numbers."""
        paths = tuple(self.paths[number] for number in numbers)
        chosen = {"labels": self.labels[numbers], "orientations": self.orientations[numbers]}
        return dataclasses.replace(self, paths=paths, **chosen)


_TENSORS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # the tensors that readers of a split hold


def _tensors_of(split: "ArraySplit") -> list[Tensor]:
    """The images and labels of an `ArraySplit` as tensors; all its readers share one copy."""
    import tensorflow as tf

    held = [reference() for reference in _TENSORS.get(split, ())]
    if not held or any(tensor is None for tensor in held):
        with tf.device("CPU"):
            held = [tf.constant(split.images), tf.constant(split.labels)]
        if tf.executing_eagerly():
            _TENSORS[split] = [weakref.ref(tensor) for tensor in held]
    return held


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySplit:
    """Examples in memory."""

    images: np.ndarray  # `(n, H, W, C)`, uint8 or float32 in [0, 255]
    labels: np.ndarray  # int64 `(n,)`, float32 `(n, K)`, or texts as objects `(n, 1)`

    @property
    def size(self) -> int:
        """How many examples there are."""
        return len(self.labels)

    def reader(self) -> Callable[[Tensor], dict[str, Tensor]]:
        """A function from an int64 scalar tensor to the example of that number."""
        import tensorflow as tf

        images, labels = _tensors_of(self)
        return lambda index: {"pixels": tf.gather(images, index), "label": tf.gather(labels, index)}

    def row(self, index: int) -> dict:
        """The label of one example."""
        return {"label": self.labels[index].tolist()}

    def pixels(self, index: int) -> np.ndarray:
        """uint8 `(H, W, C)`."""
        return np.round(self.images[index]).astype("uint8")

    def sample(self, count: int) -> list[np.ndarray]:
        """Pixels of at most `count` examples, evenly spread."""
        return [self.pixels(number) for number in evenly_spaced(self.size, count)]

    def concatenate(self, other: "ArraySplit") -> "ArraySplit":
        """The examples of this split and then those of the other.

        Raises:
            ValueError: for images of different shapes, which cannot form one array.
        """
        if self.images.shape[1:] != other.images.shape[1:]:
            raise ValueError(
                "splits can be joined if all their images have one shape.\n"
                f"Received: (H, W, C) of {self.images.shape[1:]} and {other.images.shape[1:]}."
            )
        images = np.concatenate([self.images, other.images])
        return ArraySplit(images, np.concatenate([self.labels, other.labels]))

    def take(self, numbers: np.ndarray) -> "ArraySplit":
        """The examples of these numbers."""
        return ArraySplit(self.images[numbers], self.labels[numbers])


def evenly_spaced(size: int, count: int) -> np.ndarray:
    """Ascending numbers of at most `count` of `size` examples, in even steps from the first to the last."""
    return np.linspace(0, size - 1, min(count, size)).astype(int)


def divide(labels: Sequence[int] | np.ndarray, seed: int, groups: Any = None) -> dict[str, np.ndarray]:
    """Divides examples into 80 % train, 10 % validation and 10 % test, with equal shares of every class.

    The example of a class of one goes to `train`. A class of two gives one to `test`. From three on, each split gets
    at least one, unless a group of equal files is too large a part of the class.

    Args:
        labels: int `(n,)`.
        seed: of the shuffle.
        groups: `(n,)`, equal for examples that must stay in one split, as copies of one file; `None` for no groups.
    """
    labels = np.asarray(labels)
    groups = range(len(labels)) if groups is None else groups
    splits = {}  # number of the split of each group
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held = max(round(len(members) / 10), 1) if len(members) > 2 else 0
        room = {1: held, 2: held if len(members) != 2 else 1}
        sizes = collections.Counter(groups[member] for member in members)
        order = np.random.default_rng([seed, int(label)]).permutation(members)
        undivided = [group for group in dict.fromkeys(groups[member] for member in order) if group not in splits]
        for group in undivided:
            splits[group] = next((number for number in room if sizes[group] <= room[number]), 0)
            if splits[group]:
                room[splits[group]] -= sizes[group]
        for number in (2, 1):  # no group fitted: take one that leaves at least as many examples to train on
            trained = [group for group in undivided if splits[group] == 0]
            most = sum(sizes[group] for group in trained) / 2
            fitting = [group for group in trained if sizes[group] <= most]
            if held and room[number] == held and fitting:
                splits[fitting[0]] = number
    assigned = np.array([splits[group] for group in groups])
    return {name: np.flatnonzero(assigned == number) for number, name in enumerate(SPLITS)}
