"""Features of every image of a split, the input of a model's head, computed once and cached on the disk.

The fingerprint of an entry of the cache covers layers, weights, preprocessing, the bytes of every file, and labels.
Names of files and of the model do not count, so both may be moved.
"""

import concurrent.futures
import dataclasses
import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.cache import DEFAULT_CACHE, Cache, chosen_dir
from keras_vit.checks import check_positive_int
from keras_vit.data.pipeline import report_missing_files
from keras_vit.data.source import Source
from keras_vit.evaluation.batched_predict import predict_batches
from keras_vit.files import file_sha256
from keras_vit.images.byte_ranges import ByteRange, PhotoLocation, photo_bytes
from keras_vit.model.image_model import ImageModel, check_image_model
from keras_vit.model.layer_access import model_fingerprint
from keras_vit.model.outputs import inference_model
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.pages.formatting import printable

_FORMAT = 1  # version of an entry; a new one invalidates all


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureSet:
    """The features of the images of a split, the input of a model's head.

    Attributes:
        features: float32 `(n, D)`, in the order of the data.
        labels: int64 `(n,)`.
    """

    features: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        right = self.features.ndim == 2 and len(self.features) == len(self.labels)
        if not right or not np.isfinite(self.features).all():
            raise ValueError(
                "features must be one row of finite numbers for each label; NaN comes from damaged weights or images.\n"
                f"Received: features of shape {self.features.shape}, {len(self.labels)} labels."
            )

    def select(self, rows: np.ndarray) -> "FeatureSet":
        """The features of the examples with these numbers."""
        return FeatureSet(self.features[rows], self.labels[rows])

    def write(self, folder: Path) -> None:
        """Writes `features.npy` and `labels.npy`."""
        np.save(folder / "features.npy", self.features)
        np.save(folder / "labels.npy", self.labels)


def image_features(
    model: ImageModel,
    source: Source,
    split: str,
    *,
    batch_size: int = 32,
    cache: FilePath | None = DEFAULT_CACHE,
) -> FeatureSet:
    """The features of every image of a split: the pooled representation, or that of the layer before the head.

    Args:
        model: a `VisionTransformer` or `ResNet`, with a head or without.
        source: result of `keras_vit.open_source`.
        split: `"train"`, `"validation"` or `"test"`, or several, as `"train+validation"`.
        batch_size: images at once; the features do not depend on it.
        cache: folder of what is kept, by default `features` in the folder of downloaded weights, `KERAS_VIT_CACHE`.
            `None` keeps nothing.

    Returns:
        A `FeatureSet`.

    Raises:
        ValueError: for an empty split or folder name, a model without pooling or preprocessing, or features that are
            not finite.
        TypeError: for another type of model.

    Warns:
        UserWarning: if they cannot be kept, or those that were kept are damaged.
    """
    check_positive_int("batch_size", batch_size)
    _check_model(model)
    examples = source.split(split)
    folder = None if cache is None else chosen_dir(cache, "features")
    if folder is None:
        return _compute(model, source, split, batch_size)
    kept = Cache(folder)
    with report_missing_files(examples):
        name = features_fingerprint(model, examples)
    if (found := kept.get(name, _read)) is None:
        found = _compute(model, source, split, batch_size)
        kept.put(name, found.write)
    if kept.fault is not None:  # a full disk must not lose features that took minutes
        reason = printable(kept.fault.strerror or str(kept.fault))
        warnings.warn(f"features are not kept in {printable(folder)}: {reason}", stacklevel=2)
    return found


def _check_model(model: ImageModel) -> None:
    check_image_model(model)
    if model.config is None or model.preprocessing is None:
        raise ValueError(
            "`model` must know its config and how images are prepared for it.\n"
            f"Received: {model.name!r}. `keras_vit.build` gives both."
        )
    if isinstance(model, VisionTransformer) and model.config.pooling == "none":
        raise ValueError(
            "`model` must have one representation for each image, so its tokens must be pooled.\n"
            f'Received: {model.name!r} with pooling="none". Build it with pooling="token".'
        )


def _compute(model: ImageModel, source: Source, split: str, batch_size: int) -> FeatureSet:
    from keras_vit.data import load_dataset

    network = inference_model(model)
    network = keras.Model(network.input, network.output["features"])
    dataset: Any = load_dataset(
        source, split, batch_size=batch_size, preprocessing=model.preprocessing, shard=(0, 1)
    )  # the whole split, also in one of several processes
    with report_missing_files(source.split(split)):
        features, labels = map(np.concatenate, zip(*predict_batches(network, dataset), strict=True))
    return FeatureSet(features, labels.astype("int64"))


def _read(folder: Path) -> FeatureSet:
    return FeatureSet(*(np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("features", "labels")))


def features_fingerprint(model: ImageModel, split: Any) -> str:
    """SHA-256 of all that decides the features of a split.

    Args:
        model: the `VisionTransformer` or `ResNet`.
        split: a split of a `Source`.

    Raises:
        OSError: for a file that cannot be read.
    """
    found = model_fingerprint(model)
    found.update(str(_FORMAT).encode())
    for part in _examples(split):
        found.update(part)
    return found.hexdigest()


def _examples(split: Any) -> Iterator[bytes]:
    """Bytes that identify the examples of a split and their order."""
    if hasattr(split, "paths"):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            yield from pool.map(_digest, split.paths)
        yield from (split.labels.tobytes(), split.orientations.tobytes())
    elif hasattr(split, "images"):
        yield str((split.images.shape, split.images.dtype.name)).encode()
        yield from (np.ascontiguousarray(split.images).tobytes(), split.labels.tobytes())
    else:
        splits = {name: (info.num_examples, info.num_bytes) for name, info in split.builder.info.splits.items()}
        yield f"{split.builder.info.full_name} {split.name} {split.record} {splits}".encode()


def _digest(place: PhotoLocation) -> bytes:
    if isinstance(place, ByteRange):
        return hashlib.sha256(photo_bytes(place)).digest()
    return bytes.fromhex(file_sha256(place))
