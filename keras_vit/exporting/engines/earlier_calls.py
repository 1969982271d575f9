"""What earlier calls of `accelerate` found and made, under digests of all that decides it."""

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
from keras_vit.exporting.engines.engine import EngineReport
from keras_vit.exporting.engines.kept_networks import LIMIT, Keep, KeptNetworks, most_bytes
from keras_vit.exporting.engines.runtimes import is_calibrated, reopened, writer_of
from keras_vit.exporting.export import MOST_PHOTOS
from keras_vit.exporting.report import Drift, Runtime
from keras_vit.exporting.sample_photos import Photos, digest_of_photos
from keras_vit.files import expand_path
from keras_vit.model.image_model import ImageModel
from keras_vit.model.model_digest import digest_of_model, has_own_code
from keras_vit.pages.formatting import printable
from keras_vit.processor import cpu_fingerprint
from keras_vit.weights.download.environment import engines_dir

DEFAULT_CACHE = "default"
_FORMAT = 1  # version of what is kept
_PACKAGES = ("numpy", "tensorflow", "openvino", "nncf", "onnx", "onnxruntime", "tf2onnx")
_PACKAGE = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Request:
    """What a call of `accelerate` asks for; see there."""

    model: ImageModel
    engine: str
    precision: str
    threads: int | None
    batch_size: int
    images: Photos


class EarlierCalls:
    """What is kept of earlier calls for one request.

    Attributes:
        request: which.
    """

    def __init__(self, request: Request, networks: KeptNetworks, photos: str) -> None:
        """Takes the digest of the model as it is now, and of all around it.

        Args:
            request: which.
            networks: where they are kept.
            photos: digest of those of the request.
        """
        self.request, self._networks, self._photos = request, networks, photos
        found = digest_of_model(request.model)
        found.update(json.dumps([_FORMAT, _versions(), _sources(), cpu_fingerprint()]).encode())
        self._digest = found.hexdigest()

    def recall(self) -> tuple[EngineReport, np.ndarray] | None:
        """The report of an earlier call that asked for the same, and a photo `(H, W, C)` that it compared."""
        content = self._networks.note(self._name_of_note())
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            facts = json.loads(arrays["report"].tobytes())
            drift = tuple(Drift(**each) for each in facts.pop("drift"))
            return EngineReport(**facts, drift=drift), arrays["photo"]

    def remember(self, report: EngineReport, photo: np.ndarray) -> None:
        """Keeps a report for `recall`, unless its network could not be kept."""
        if self._networks.fault is not None:
            return
        facts = {**report.summary(), "kept_on": datetime.date.today().isoformat()}
        file = io.BytesIO()
        np.savez(file, report=np.frombuffer(json.dumps(facts).encode(), "uint8"), photo=photo)
        self._networks.write_note(self._name_of_note(), file.getvalue())

    def reopened(self, engine: str) -> Runtime | None:
        """An engine with the network that an earlier call has made for it, if there is one."""
        folder = None if writer_of(engine) is None else self._networks.network(self._name_of_network(engine))
        if folder is None:
            return None
        try:
            return reopened(engine, folder, self.request.threads, self.request.precision)
        except MemoryError:
            raise
        except Exception:  # runtimes raise classes of their own; of what another process has just removed too
            self.forget(engine)
            return None

    def keeping(self, engine: str) -> contextlib.AbstractContextManager[Keep]:
        """Gives what keeps the network of an engine, if nothing is raised inside; TensorFlow has none."""
        return self._networks.keeping(self._name_of_network(engine))

    def forget(self, engine: str) -> None:
        """Removes the network of an engine, and what was found of it."""
        self._networks.forget(self._name_of_network(engine))
        self._networks.forget(self._name_of_note())

    def tell_faults(self) -> None:
        """Warns if something could not be kept."""
        if self._networks.fault is not None:
            warn_of_nothing(self._networks.fault)

    def _name_of_network(self, engine: str) -> str:
        precision = self.request.precision
        return self._name(engine, precision, self._photos if is_calibrated(engine, precision) else None)

    def _name_of_note(self) -> str:
        asked = self.request
        options = asked.engine, asked.precision, asked.threads, asked.batch_size
        return self._name("note", *options, self._photos, _computes_on())

    def _name(self, *facts: Any) -> str:
        return hashlib.sha256(json.dumps([self._digest, *facts]).encode()).hexdigest()


def earlier_calls(request: Request, cache: FilePath | None) -> EarlierCalls | None:
    """Those that a call may look at, and keep its own with; `None` if nothing is kept.

    Args:
        request: what the call asks for.
        cache: folder, by default `engines` in the cache folder; `None` for none.

    Raises:
        ValueError: for a folder without a name, or if `KERAS_VIT_ENGINES_GB` is no number.
    """
    if cache is None or not (most := most_bytes()) or has_own_code(request.model):
        return None
    if not str(cache):
        raise ValueError("`cache` must be a folder, or `None` to keep nothing.\nReceived: cache=''.")
    try:
        photos = digest_of_photos(request.images, MOST_PHOTOS)
    except (OSError, TypeError, ValueError):  # which are told where they are read
        return None
    try:
        networks = KeptNetworks(engines_dir() if cache == DEFAULT_CACHE else expand_path(cache), most)
    except OSError as error:
        warn_of_nothing(error)
        return None
    return EarlierCalls(request, networks, photos)


def warn_of_nothing(error: OSError) -> None:
    """Says in one line that something is not kept, and why."""
    reason = printable(error.strerror or str(error))
    warnings.warn(f"the engine works, and is not kept for the next call: {reason}. {LIMIT}=0 keeps none.", stacklevel=3)


def _computes_on() -> list[Any]:
    """What decides times, and so which engine is the fastest: cores, devices and threads of TensorFlow."""
    import tensorflow as tf

    threads = tf.config.threading.get_intra_op_parallelism_threads(), os.environ.get("TF_NUM_INTRAOP_THREADS")
    return [len(cores()), [device.name for device in tf.config.list_physical_devices()], *threads]


def _versions() -> list[tuple[str, str | None]]:
    """Versions of what converts and computes; `None` of what is not installed."""
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
