"""The cache of `accelerate`: reports and converted networks of earlier calls, by a fingerprint of what decides them."""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.cache import Cache, Store, chosen_dir
from keras_vit.checks import cores, cpu_fingerprint
from keras_vit.exporting.engines.engine import EngineReport
from keras_vit.exporting.engines.runtimes import engine_writer, is_calibrated, load_engine
from keras_vit.exporting.export import MAX_PHOTOS
from keras_vit.exporting.report import Drift, Runtime
from keras_vit.exporting.sample_photos import Photos, photos_fingerprint
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import has_user_code, model_fingerprint

LIMIT = "KERAS_VIT_ENGINES_GB"
_DEFAULT_GB = 4.0  # ten B/16 in float32
_FORMAT = 2  # version of what is kept
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

    def __init__(self, request: Request, cache: Cache, photos: str) -> None:
        """Computes the fingerprint of the model as it is now, the software and the processor.

        Args:
            request: a `Request`.
            cache: where entries are kept.
            photos: fingerprint of the request's photos.
        """
        self.request, self._cache, self._photos = request, cache, photos
        found = model_fingerprint(request.model)
        found.update(json.dumps([_FORMAT, _versions(), _sources(), cpu_fingerprint()]).encode())
        self._digest = found.hexdigest()

    def get(self) -> tuple[EngineReport, np.ndarray] | None:
        """The report of an earlier call with the same request, and a photo `(H, W, C)` that it compared."""
        channels = self.request.model.input_shape[-1]
        return self._cache.get(self._report_name(), lambda folder: _read_report(folder, channels))

    def put(self, report: EngineReport, photo: np.ndarray) -> None:
        """Stores a report for `get`, unless its network could not be stored."""
        if self._cache.fault is not None:
            return
        facts = {**report.summary(), "kept_on": datetime.date.today().isoformat()}

        def write(folder: Path) -> None:
            (folder / "report.json").write_text(json.dumps(facts))
            np.save(folder / "photo.npy", photo)

        self._cache.put(self._report_name(), write)

    def open(self, engine: str) -> Runtime | None:
        """An engine with its cached network, if there is one."""
        folder = None if engine_writer(engine) is None else self._cache.get(self._network_name(engine))
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
        return self._cache.staging(self._network_name(engine))

    def remove(self, engine: str) -> None:
        """Removes the network of an engine, and the report."""
        self._cache.remove(self._network_name(engine))
        self._cache.remove(self._report_name())

    def warn_unwritable(self) -> None:
        """Warns if something could not be stored."""
        if self._cache.fault is not None:
            why = f"{self._cache.fault_reason}. {LIMIT}=0 keeps none."
            warnings.warn(f"the engine works, and is not kept for the next call: {why}", stacklevel=3)

    def _network_name(self, engine: str) -> str:
        precision = self.request.precision
        return self._name(engine, precision, self._photos if is_calibrated(engine, precision) else None)

    def _report_name(self) -> str:
        request = self.request
        options = request.engine, request.precision, request.threads, request.batch_size
        return self._name("report", *options, self._photos, _hardware())

    def _name(self, *facts: Any) -> str:
        return hashlib.sha256(json.dumps([self._digest, *facts]).encode()).hexdigest()


def _read_report(folder: Path, channels: int) -> tuple[EngineReport, np.ndarray]:
    facts = json.loads((folder / "report.json").read_text(), parse_constant=_refuse)
    photo = np.load(folder / "photo.npy", allow_pickle=False)
    drift = tuple(Drift(**each) for each in facts.pop("drift"))
    report = EngineReport(**facts, drift=drift)
    str(report), report.line()  # which no report of other types can write
    if photo.ndim != 3 or photo.dtype != "uint8" or not photo.size or photo.shape[-1] != channels:
        raise ValueError(
            f"photo.npy is {photo.dtype} of shape {photo.shape}, and must be a photo of {channels} channels as uint8"
        )
    return report, photo


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"report.json has {word} for a number")


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
    if (folder := chosen_dir(cache, "engines")) is None:
        return None
    try:
        photos = photos_fingerprint(request.images, MAX_PHOTOS)
    except (OSError, TypeError, ValueError):  # which raise again where they are read
        return None
    return EngineCache(request, Cache(folder, limit, is_private=True), photos)


def max_bytes_kept() -> int:
    """The limit of the cache in bytes, by `KERAS_VIT_ENGINES_GB`; 0 keeps nothing.

    Raises:
        ValueError: if it is no number of gigabytes.
    """
    given = os.environ.get(LIMIT) or _DEFAULT_GB
    try:
        most = float(given) * 1e9
    except ValueError:
        most = math.nan
    if not 0 <= most < math.inf:
        raise ValueError(
            f"{LIMIT} must be a number of gigabytes from 0, which keeps nothing, to 1e299.\nReceived: {LIMIT}={given}"
        )
    return int(most)


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
