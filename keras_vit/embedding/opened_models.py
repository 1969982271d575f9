"""A model opened to answer for photos: an exported file by itself, and any other model in an engine."""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A model that answers.

    Attributes:
        run: from prepared photos `(B, H, W, C)` to float32 arrays by the names of outputs.
        preprocessing: how a photo is prepared.
        image_size: `(H, W)` that the model takes.
        takes: `"images"`, floats as the preprocessing gives them; or `"pixels"`, the same as whole grey levels.
        engine: which software computes, as `"onnxruntime"`.
        software: its name and version.
    """

    run: Callable[[np.ndarray], dict[str, np.ndarray]]
    preprocessing: Preprocessing
    image_size: tuple[int, int]
    takes: str
    engine: str
    software: str

    @property
    def channels(self) -> int:
        """C of the photos."""
        return len(self.preprocessing.mean)

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
) -> OpenedModel:
    """Opens a model.

    Args:
        given: as `Embedder` takes it.
        engine: one of `formats.ENGINES`.
        precision: of the engine; by default float32. A file has its own.
        threads: of the engine.
        weights: of a variant.

    Raises:
        ValueError: for a model that cannot answer for photos of any size, or an engine that cannot be.
        ImportError: if a package is missing.
        ExportError: if the engine does not take the model.
        RuntimeError: in a process that was forked from one that computed by Keras, if the model needs Keras.
    """
    place = expand_path(given)
    if is_exported(given):
        return (_of_onnx if place.suffix == ".onnx" else _of_openvino)(place, engine, precision, threads)
    if place.suffix == ".tflite" or (place.is_dir() and (_versions(place) or (place / "saved_model.pb").exists())):
        raise ArgumentError(
            "an exported file that embeds photos must be one of ONNX or OpenVINO.\n"
            f"Received: {given!r}. Pass the model that it was written from, or export that as .onnx.",
            parameters=("model",),
        )
    check_process()  # first: a fork would wait for ever for the threads of its parent's TensorFlow
    from keras_vit.exporting.engines.accelerate import accelerate
    from keras_vit.runs.named_models import open_named

    model, _ = open_named(given, weights, needs_head=False)
    engine = chosen_engine(model, engine, precision or "float32")
    opened = accelerate(model, engine, precision or "float32", threads)
    size = _checked_size(given, opened.input_shape[1:3], opened.preprocessing)
    return OpenedModel(opened.outputs, opened.preprocessing, size, "images", engine, opened.report.runtime)


def is_exported(given: str) -> bool:
    """Whether a model is an exported file, which its own software opens."""
    return expand_path(given).suffix in (".onnx", ".xml")


def chosen_engine(model: Any, engine: str, precision: str) -> str:
    """The engine that `"auto"` stands for, which no timing decides: so all workers have the same one.

    It is TensorFlow with an accelerator, for bfloat16, for what Keras quantised, and where ONNX Runtime is missing.
    """
    from keras_vit.exporting.engines.runtimes import check_available
    from keras_vit.model.image_model import has_accelerator
    from keras_vit.model.precision import is_quantized

    if engine != "auto":
        return engine
    try:
        check_available("onnxruntime", precision, None, is_quantized(model))
    except (ValueError, ImportError):
        return "tensorflow"
    return "tensorflow" if has_accelerator() else "onnxruntime"


def _of_onnx(place: Path, engine: str, precision: str | None, threads: int | None) -> OpenedModel:
    _check_engine(place, engine, "onnxruntime")
    _check_there(place)
    session = open_session(place, threads)
    record, size = _facts_of_file(place, session.facts, precision)
    return OpenedModel(session.runtime.run, record, size, session.takes, "onnxruntime", session.runtime.name)


def _of_openvino(place: Path, engine: str, precision: str | None, threads: int | None) -> OpenedModel:
    _check_engine(place, engine, "openvino")
    _check_there(place)
    from keras_vit.exporting.formats import openvino

    record, size = _facts_of_file(place, openvino.facts_of(place), precision)
    runtime = openvino.open_runtime(place, threads)
    return OpenedModel(runtime.run, record, size, "pixels", "openvino", runtime.name)


def _check_there(place: Path) -> None:
    if not place.is_file():
        raise with_parameters(
            FileNotFoundError(f"`model` must be a file that is there.\nReceived: model={str(place)!r}."), "model"
        )


def _check_engine(place: Path, engine: str, its_own: str) -> None:
    if engine not in ("auto", its_own):
        raise ArgumentError(
            f"a file is opened by its own software, {its_own}.\n"
            f'Received: engine="{engine}", model={str(place)!r}. Pass the model that it was written from.',
            parameters=("model", "engine"),
        )


def _facts_of_file(place: Path, facts: dict[str, Any], precision: str | None) -> tuple[Preprocessing, tuple[int, int]]:
    """How a file wants its photos prepared, and their size."""
    said = facts.get("preprocessing")
    if not isinstance(said, dict):
        raise ArgumentError(
            "an exported file must be one that keras_vit wrote, which says how photos are prepared for it.\n"
            f"Received: model={str(place)!r}, which does not say it.",
            parameters=("model",),
        )
    if precision not in (None, facts.get("precision")):
        raise ArgumentError(
            f"a file has the precision that it was written in, {facts.get('precision')}.\n"
            f'Received: precision="{precision}", model={str(place)!r}.',
            parameters=("model", "precision"),
        )
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in said.items()}
    record = Preprocessing(**fields)
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


def _versions(place: Path) -> bool:
    """Whether a folder holds versions of a SavedModel, as an export writes them."""
    return any(re.fullmatch(r"\d+", entry.name) and (entry / "saved_model.pb").exists() for entry in place.iterdir())
