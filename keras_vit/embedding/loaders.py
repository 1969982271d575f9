"""Opens the model of an `Embedder` or a job: an exported file by its own software, any other model in an engine."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_process, with_parameters
from keras_vit.exporting.onnx_session import open_session
from keras_vit.files import expand_path
from keras_vit.images.numpy_pipeline import preprocess, resize_to_levels
from keras_vit.images.preprocessing import Preprocessing

OUTPUTS = ("features", "scores", "logits")
ENGINE_FILE = "keras_vit-engine.onnx"


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model that computes outputs of photos."""

    run: Callable[[np.ndarray], dict[str, np.ndarray]]  # from prepared `(B, H, W, C)` to float32 by names of outputs
    preprocessing: Preprocessing
    image_size: tuple[int, int]  # (H, W) that the model takes
    takes: str  # "images", floats as the preprocessing gives them; or "pixels", the same as whole grey levels
    engine: str  # as "onnxruntime"
    software: str  # its name and version

    @property
    def channels(self) -> int:
        """C of the photos."""
        return len(self.preprocessing.mean)

    def rows(self, images: np.ndarray, outputs: str, model: str) -> np.ndarray:
        """The outputs of prepared photos; raises for those that the model, as it was given, does not have."""
        found = self.run(images)
        if outputs not in found:
            raise ArgumentError(
                f"`outputs` must be one of those that the model has, {', '.join(found)}.\n"
                f"Received: outputs={outputs!r}, model={model!r}."
            )
        return found[outputs]

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        """A photo as `run` takes it, of uint8 `(H, W, C)`."""
        if self.takes == "images":
            return preprocess(pixels, self.preprocessing)
        channels = self.channels
        levels = dataclasses.replace(self.preprocessing, mean=(0.0,) * channels, std=(1 / 255,) * channels)
        return resize_to_levels(pixels, levels)


def open_model(
    given: str,
    engine: str = "auto",
    precision: str | None = None,
    threads: int | None = None,
    weights: str | None = None,
) -> LoadedModel:
    """Opens a model; arguments as `Embedder` takes them.

    Raises:
        ValueError: for a model that cannot answer for photos of any size, or an engine that cannot be.
        ImportError: if a package is missing.
        ExportError: if the engine does not take the model.
        RuntimeError: in a process that was forked from one that computed by Keras, if the model needs Keras.
    """
    place = expand_path(given)
    if is_exported(given):
        check_engine(given, engine)
        return _load_file(place, precision, threads)
    if place.suffix == ".tflite" or (place.is_dir() and (_has_versions(place) or (place / "saved_model.pb").exists())):
        raise ArgumentError(
            "an exported file that embeds photos must be one of ONNX or OpenVINO.\n"
            f"Received: {given!r}. Pass the model that it was written from, or export that as .onnx.",
            parameters=("model",),
        )
    check_process()  # first: a fork would wait for ever for the threads of its parent's TensorFlow
    from keras_vit.exporting.engines.accelerate import accelerate
    from keras_vit.runs.load import load_any

    model, _ = load_any(given, weights, needs_head=False)
    engine = choose_engine(model, engine, precision or "float32")
    opened = accelerate(model, engine, precision or "float32", threads)
    size = _checked_size(given, opened.input_shape[1:3], opened.preprocessing)
    return LoadedModel(opened.outputs, opened.preprocessing, size, "images", engine, opened.report.runtime)


def is_exported(given: str) -> bool:
    """Whether a model is an exported file, which its own software opens."""
    return expand_path(given).suffix in (".onnx", ".xml")


def choose_engine(model: Any, engine: str, precision: str) -> str:
    """The engine that `"auto"` stands for, which no timing decides: so all workers have the same one.

    It is TensorFlow with an accelerator, for bfloat16, for what Keras quantised, and where ONNX Runtime is missing.
    """
    from keras_vit.exporting.engines.runtimes import check_available
    from keras_vit.model.image_model import has_accelerator
    from keras_vit.model.layer_access import is_quantized

    if engine != "auto":
        return engine
    try:
        check_available("onnxruntime", precision, None, is_quantized(model))
    except (ValueError, ImportError):
        return "tensorflow"
    return "tensorflow" if has_accelerator() else "onnxruntime"


def _load_file(place: Path, precision: str | None, threads: int | None) -> LoadedModel:
    if not place.is_file():
        raise with_parameters(
            FileNotFoundError(f"`model` must be a file that is there.\nReceived: model={str(place)!r}."), "model"
        )
    if place.suffix == ".onnx":
        session = open_session(place, threads)
        record, size = _file_facts(place, session.metadata, precision)
        return LoadedModel(session.runtime.run, record, size, session.takes, "onnxruntime", session.runtime.name)
    from keras_vit.exporting.formats.openvino import OpenVINO, read_metadata

    record, size = _file_facts(place, read_metadata(place), precision)
    runtime = OpenVINO().open_runtime(place, threads)
    return LoadedModel(runtime.run, record, size, "pixels", "openvino", runtime.name)


def check_engine(model: str, engine: str) -> None:
    """Raises if a model is an exported file, and the engine another than its own software."""
    its_own = {".onnx": "onnxruntime", ".xml": "openvino"}.get(expand_path(model).suffix, engine)
    if engine not in ("auto", its_own):
        raise ArgumentError(
            f"a file is opened by its own software, {its_own}.\n"
            f'Received: engine="{engine}", model={model!r}. Pass the model that it was written from.'
        )


def _file_facts(place: Path, facts: dict[str, Any], precision: str | None) -> tuple[Preprocessing, tuple[int, int]]:
    """The preprocessing of a file, and its image size."""
    fields = facts.get("preprocessing")
    if not isinstance(fields, dict):
        raise ArgumentError(
            "an exported file must be one that keras_vit wrote, which says how photos are prepared for it.\n"
            f"Received: model={str(place)!r}, which does not say it."
        )
    if precision not in (None, facts.get("precision")):
        raise ArgumentError(
            f"a file has the precision that it was written in, {facts.get('precision')}.\n"
            f'Received: precision="{precision}", model={str(place)!r}.'
        )
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    record = Preprocessing(**values)
    return record, _checked_size(str(place), tuple(facts.get("image_size") or (None, None)), record)


def _checked_size(given: str, size: tuple[Any, ...], record: Preprocessing) -> tuple[int, int]:
    """The size of the model's images, which photos of any size become by its preprocessing."""
    if None in size and record.resize != "none":
        size = record.image_size or size
    if None in size:
        raise ArgumentError(
            "photos of all sizes are brought to one, so the model must have a size.\n"
            f"Received: {given!r}, which takes any. Give it one by `keras_vit.with_input_shape`, and save that.",
            parameters=("model",),
        )
    return size[0], size[1]


def _has_versions(place: Path) -> bool:
    """Whether a folder holds versions of a SavedModel, as an export writes them."""
    return any(re.fullmatch(r"\d+", entry.name) and (entry / "saved_model.pb").exists() for entry in place.iterdir())


def prepare(
    model: str, weights: str | None, outputs: str, engine: str, precision: str | None, threads: int, folder: str
) -> dict[str, Any]:
    """Opens a model once, and gives facts for the manifest, ready for JSON.

    Arguments are as `Embedder` takes them; the file of ONNX Runtime is written into `folder`. Raises as `open_model`.
    """
    given, file = model, None
    if not is_exported(model):
        requested, engine = engine, engine_of(model, weights, engine, precision or "float32")
        if engine == "onnxruntime":
            from keras_vit.exporting.engines.accelerate import write_engine
            from keras_vit.exporting.report import ExportError

            try:
                write_engine(_built(model, weights), Path(folder, ENGINE_FILE), precision or "float32")
                file = ENGINE_FILE
            except ExportError:
                if requested != "auto":
                    raise
                engine = "tensorflow"
    if file is not None:
        opened = open_model(str(Path(folder, file)), threads=threads)
    else:
        of_process = engine in ("tensorflow", "xla")  # whose threads are the environment's
        opened = open_model(given, engine, precision, None if of_process else threads, weights)
    dtype = "float32" if opened.takes == "images" else "uint8"
    rows = opened.rows(np.zeros((1, *opened.image_size, opened.channels), dtype), outputs, model)
    record = dataclasses.asdict(opened.preprocessing)
    return {
        "width": int(rows.shape[1]),
        "engine": opened.engine,
        "precision": precision if is_exported(model) else precision or "float32",
        "preprocessing": record,
        "preprocessing_sha256": hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest(),
        "software": opened.software,
        "file": file,
    }


@functools.lru_cache(1)
def _built(model: str, weights: str | None) -> Any:
    from keras_vit.runs.load import load_any

    return load_any(model, weights, needs_head=False)[0]


def engine_of(model: str, weights: str | None, engine: str, precision: str) -> str:
    """The engine of a model that is no exported file, as `choose_engine`; a process builds the model once."""
    return choose_engine(_built(model, weights), engine, precision)
