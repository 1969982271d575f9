"""The cache of `accelerate`: reports and converted networks of earlier calls, by a fingerprint of what decides them."""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import cores
from keras_vit.exporting.engines.artifact_cache import LIMIT, ArtifactCache, Store, max_bytes_kept
from keras_vit.exporting.engines.engine import EngineReport
from keras_vit.exporting.engines.runtimes import engine_writer, is_calibrated, load_engine
from keras_vit.exporting.export import MAX_PHOTOS
from keras_vit.exporting.report import Drift, Runtime
from keras_vit.exporting.sample_photos import Photos, photos_fingerprint
from keras_vit.files import expand_path
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import has_user_code, model_fingerprint
from keras_vit.pages.formatting import printable
from keras_vit.processor import cpu_fingerprint
from keras_vit.weights.download.environment import engines_dir

DEFAULT_CACHE = "default"
_FORMAT = 1  # version of what is kept
_PACKAGES = ("numpy", "tensorflow", "openvino", "nncf", "onnx", "onnxruntime", "tf2onnx")
_PACKAGE = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of a call of `accelerate`; see there."""

    model: ImageModel
    engine: str
    precision: str
    threads: int | None
    batch_size: int
    images: Photos


class EngineCache:
    """The cached report and networks for one request.

    Attributes:
        request: a `Request`.
    """

    def __init__(self, request: Request, artifacts: ArtifactCache, photos: str) -> None:
        """Computes the fingerprint of the model as it is now, the software and the processor.

        Args:
            request: a `Request`.
            artifacts: where entries are kept.
            photos: fingerprint of the request's photos.
        """
        self.request, self._artifacts, self._photos = request, artifacts, photos
        found = model_fingerprint(request.model)
        found.update(json.dumps([_FORMAT, _versions(), _sources(), cpu_fingerprint()]).encode())
        self._digest = found.hexdigest()

    def get(self) -> tuple[EngineReport, np.ndarray] | None:
        """The report of an earlier call with the same request, and a photo `(H, W, C)` that it compared."""
        return self._artifacts.get_note(self._note_name(), _read_note)

    def put(self, report: EngineReport, photo: np.ndarray) -> None:
        """Stores a report for `get`, unless its network could not be stored."""
        if self._artifacts.fault is not None:
            return
        facts = {**report.summary(), "kept_on": datetime.date.today().isoformat()}
        file = io.BytesIO()
        np.savez(file, report=np.frombuffer(json.dumps(facts).encode(), "uint8"), photo=photo)
        self._artifacts.put_note(self._note_name(), file.getvalue())

    def open(self, engine: str) -> Runtime | None:
        """An engine with its cached network, if there is one."""
        folder = None if engine_writer(engine) is None else self._artifacts.get(self._network_name(engine))
        if folder is None:
            return None
        try:
            return load_engine(engine, folder, self.request.threads, self.request.precision)
        except MemoryError:
            raise
        except Exception:  # runtimes raise classes of their own, also for a file that was just removed
            self.remove(engine)
            return None

    def staging(self, engine: str) -> contextlib.AbstractContextManager[Store]:
        """Yields a `Store` for the network of an engine; it is cached at the end, if nothing was raised."""
        return self._artifacts.staging(self._network_name(engine))

    def remove(self, engine: str) -> None:
        """Removes the network of an engine, and the report."""
        self._artifacts.remove(self._network_name(engine))
        self._artifacts.remove(self._note_name())

    def warn_unwritable(self) -> None:
        """Warns if something could not be stored."""
        if self._artifacts.fault is not None:
            warn_not_cached(self._artifacts.fault)

    def _network_name(self, engine: str) -> str:
        precision = self.request.precision
        return self._name(engine, precision, self._photos if is_calibrated(engine, precision) else None)

    def _note_name(self) -> str:
        request = self.request
        options = request.engine, request.precision, request.threads, request.batch_size
        return self._name("note", *options, self._photos, _hardware())

    def _name(self, *facts: Any) -> str:
        return hashlib.sha256(json.dumps([self._digest, *facts]).encode()).hexdigest()


def _read_note(content: bytes) -> tuple[EngineReport, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        facts, photo = json.loads(arrays["report"].tobytes()), arrays["photo"]
    drift = tuple(Drift(**each) for each in facts.pop("drift"))
    report = EngineReport(**facts, drift=drift)
    str(report), report.line()  # which no report of other types can write
    if photo.ndim != 3 or photo.dtype.kind not in "uif":
        raise ValueError(f"a photo must be (H, W, C) numbers.\nReceived: {photo.dtype} of shape {photo.shape}.")
    return report, photo


def open_cache(request: Request, cache: FilePath | None) -> EngineCache | None:
    """The cache for a request; `None` if nothing is kept.

    Args:
        request: a `Request`.
        cache: folder, by default `engines` in the cache folder; `None` for none.

    Raises:
        ValueError: for a folder without a name, or if `KERAS_VIT_ENGINES_GB` is no number.
    """
    if cache is None or not (limit := max_bytes_kept()) or has_user_code(request.model):
        return None
    if not str(cache):
        raise ValueError("`cache` must be a folder, or `None` to keep nothing.\nReceived: cache=''.")
    try:
        photos = photos_fingerprint(request.images, MAX_PHOTOS)
    except (OSError, TypeError, ValueError):  # which raise again where they are read
        return None
    try:
        artifacts = ArtifactCache(engines_dir() if cache == DEFAULT_CACHE else expand_path(cache), limit)
    except OSError as error:
        warn_not_cached(error)
        return None
    return EngineCache(request, artifacts, photos)


def warn_not_cached(error: OSError) -> None:
    """Warns that something is not stored, and why."""
    reason = printable(error.strerror or str(error))
    warnings.warn(f"the engine works, and is not kept for the next call: {reason}. {LIMIT}=0 keeps none.", stacklevel=3)


def _hardware() -> list[Any]:
    """The facts that decide times: cores, devices and threads of TensorFlow."""
    import tensorflow as tf

    threads = tf.config.threading.get_intra_op_parallelism_threads(), os.environ.get("TF_NUM_INTRAOP_THREADS")
    return [len(cores()), [device.name for device in tf.config.list_physical_devices()], *threads]


def _versions() -> list[tuple[str, str | None]]:
    """Versions of the packages that convert and compute; `None` of one that is not installed."""
    return [(name, _version(name)) for name in _PACKAGES]


def _version(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # as of tensorflow-cpu
        return importlib.import_module(package).__version__


@functools.cache
def _sources() -> str:
    """Digest of this package's own source, which changes between two versions too."""
    files = sorted(_PACKAGE.rglob("*.py"))
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()
