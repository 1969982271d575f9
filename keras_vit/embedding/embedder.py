"""`Embedder`: photos to features or scores, as an object that goes to other processes."""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import check_choice, check_positive_int, with_parameters
from keras_vit.embedding.loaders import OUTPUTS, LoadedModel, open_model
from keras_vit.exporting.formats import ENGINE_PRECISIONS, ENGINES
from keras_vit.files import expand_path
from keras_vit.images.byte_ranges import ByteRange, photo_bytes
from keras_vit.images.numpy_pipeline import decode_photo
from keras_vit.images.pillow_formats import PillowError
from keras_vit.images.validation import package_error, reading_error, reason_by_suffix

OK = "ok"  # the status of a photo that was embedded
Photo: TypeAlias = bytes | bytearray | memoryview | FilePath | ByteRange | PillowError


class Embedder:
    """Computes features or scores of photos. It can be sent to worker processes, each of which opens the model once.

    A pickled `Embedder` carries only its arguments. So Ray, Spark, Dask, Beam and multiprocessing can send it to their
    workers. In a forked process it opens the model anew.

    Example:
        >>> model.save("shapes.keras")
        >>> embedder = keras_vit.Embedder("shapes.keras", engine="tensorflow")
        >>> answers = embedder([photos / "disc" / "0.jpg", photos / "gone.jpg"])
        >>> answers["features"].shape, answers["status"].tolist()
        ((2, 192), ['ok', 'no such file'])

    Args:
        model: the folder of a run, a `.keras` file, a checkpoint, a file of `keras_vit.export` in ONNX or OpenVINO, or
            a name as `"B/16"` or `"dinov2/S14"`.
        outputs: `"features"`, what the head reads; `"logits"`; or `"scores"`, what an activation makes of these.
        engine: the software that computes, as `accelerate` has it. `"auto"` is a file's own software. Of other models
            it is ONNX Runtime where that is installed, and TensorFlow elsewhere and with an accelerator.
        precision: `"float32"`, `"bfloat16"` or `"int8"`; by default that of a file, and float32 of other models.
        threads: that ONNX Runtime or OpenVINO compute with; by default their own choice.
        weights: of a name as `"B/16"`; by default those that a command takes.
        batch_size: photos that the engine gets at once, for speed and memory.

    Attributes:
        model: as given; the path of one that is there is absolute.
        outputs, engine, precision, threads, weights, batch_size: as given.

    Raises:
        TypeError: if `model` is neither text nor path.
        ValueError: for another word or number.
    """

    def __init__(
        self,
        model: FilePath,
        outputs: str = "features",
        engine: str = "auto",
        precision: str | None = None,
        threads: int | None = None,
        *,
        weights: str | None = None,
        batch_size: int = 32,
    ) -> None:
        if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
            raise with_parameters(
                TypeError(
                    "`model` must be the path or the name of one, which each process opens for itself.\n"
                    f"Received: {model!r}. Save it by `model.save`, and pass the path."
                ),
                "model",
            )
        check_choice("outputs", outputs, OUTPUTS)
        check_choice("engine", engine, ENGINES)
        if precision is not None:
            check_choice("precision", precision, ENGINE_PRECISIONS)
        path = expand_path(model)
        self.model = os.path.abspath(path) if path.exists() else os.fspath(model)  # workers run in other folders
        self.outputs, self.engine, self.precision, self.weights = outputs, engine, precision, weights
        self.threads = None if threads is None else check_positive_int("threads", threads)
        self.batch_size = check_positive_int("batch_size", batch_size)
        self._opened: LoadedModel | None = None
        self._process = 0  # in which it was opened

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None, "_process": 0}

    def __repr__(self) -> str:
        return f"Embedder({self.model!r}, outputs={self.outputs!r}, engine={self.engine!r})"

    @property
    def opened(self) -> LoadedModel:
        """The model, which is opened now if this process has not done so.

        Raises:
            ValueError: for a model, an engine or outputs that cannot be.
            FileNotFoundError: if nothing is there.
            ImportError: if a package is missing.
            ExportError: if the engine does not take the model.
            RuntimeError: in a process that was forked from one that computed by Keras, if the model needs Keras.
        """
        if self._opened is None or self._process != os.getpid():
            self._opened = open_model(self.model, self.engine, self.precision, self.threads, self.weights)
            self._process = os.getpid()
        return self._opened

    def __call__(self, photos: Sequence[Photo] | np.ndarray) -> dict[str, np.ndarray]:
        """Computes the outputs of photos.

        Args:
            photos: files of JPEG, PNG, WebP, BMP or HEIC, each as its bytes or its path; n of them.

        Returns:
            `"status"` `(n,)`, texts: `"ok"`, or the reason why a photo cannot be read. And under the name of `outputs`
            float32 `(n, D)` or `(n, K)`, with NaN in the rows of such photos.

        Raises:
            TypeError: for anything but a sequence of bytes and paths.
            ValueError: for outputs that the model does not have; and as `opened`. A photo never raises.
        """
        if isinstance(photos, (str, bytes, dict)) or not hasattr(photos, "__len__"):
            raise TypeError(
                "photos must be a list or an array of their bytes or paths.\n"
                f"Received: a {type(photos).__name__}. Of a batch with columns pass the one that holds the photos."
            )
        starts = range(0, max(len(photos), 1), self.batch_size)  # an empty batch gives the width
        parts = [self._embed_batch(photos[start : start + self.batch_size]) for start in starts]
        statuses = [status for found, _ in parts for status in found]
        rows = np.concatenate([rows for _, rows in parts])
        return {"status": np.array(statuses, str), self.outputs: rows[: len(photos)]}

    def _embed_batch(self, photos: Any) -> tuple[list[str], np.ndarray]:
        """The statuses, and a row for each photo of a batch; zeros stand in for a photo that cannot be read."""
        opened = self.opened
        statuses = []
        dtype = "float32" if opened.takes == "images" else "uint8"
        images = np.zeros((max(len(photos), 1), *opened.image_size, opened.channels), dtype)
        for image, photo in zip(images, photos, strict=False):
            statuses.append(self._read(photo, image))
        rows = np.array(opened.rows(images, self.outputs, self.model), "float32")
        rows[[number for number, status in enumerate(statuses) if status != OK]] = np.nan
        return statuses, rows

    def _read(self, photo: Photo, image: np.ndarray) -> str:
        """Writes a prepared photo into `image`, and gives its status."""
        try:
            data = read_photo_bytes(photo)
            if reason := package_error(data):
                return reason
            pixels = decode_photo(data, self.opened.channels)
        except PillowError as fault:
            return reason_by_suffix(os.fspath(photo) if isinstance(photo, (str, os.PathLike)) else "", str(fault))
        except MemoryError:
            return "too large for the memory"
        found = self.opened.prepare(pixels)
        if found.shape != image.shape:
            return (
                f"{pixels.shape[0]} x {pixels.shape[1]} pixels, and the model takes {image.shape[0]} x {image.shape[1]}"
            )
        image[...] = found
        return OK


def read_photo_bytes(photo: Any) -> bytes:
    """The bytes of a photo, which may be given as its path or as a slice of a shard.

    Raises:
        TypeError: for anything else.
        PillowError: for a place without a photo; one that is given in place of a photo is raised too.
    """
    if isinstance(photo, PillowError):
        raise photo
    if isinstance(photo, (bytes, bytearray, memoryview)):
        return bytes(photo)
    if photo is None:
        raise PillowError("nothing was given")
    if not isinstance(photo, (str, os.PathLike, ByteRange)):
        raise TypeError(f"a photo must be its bytes or its path.\nReceived: {photo!r:.80} of {type(photo).__name__}.")
    try:
        return photo_bytes(photo if isinstance(photo, ByteRange) else os.fspath(photo))
    except (OSError, ValueError) as error:
        raise PillowError(reading_error(str(photo), error)) from None
