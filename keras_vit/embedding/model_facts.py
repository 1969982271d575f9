"""What a job needs to know of its model before it begins; and a file for workers that should not import Keras."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError
from keras_vit.embedding.opened_models import chosen_engine, is_exported, open_model

ENGINE_FILE = "keras_vit-engine.onnx"


def prepare(
    model: str,
    weights: str | None,
    outputs: str,
    engine: str,
    precision: str | None,
    threads: int,
    folder: str,
    say: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Opens a model once, and gives facts for the manifest, ready for JSON.

    Args:
        model: as `Embedder` takes it.
        weights: of a variant.
        outputs: one of `OUTPUTS`.
        engine: one of `formats.ENGINES`.
        precision: of the engine.
        threads: of the engine.
        folder: an empty one, where the file of ONNX Runtime is written.
        say: called with a line before that is written.

    Raises:
        ValueError, ImportError, ExportError: as `open_model`.
    """
    given, file = model, None
    if not is_exported(model):
        engine = _written(model, weights, engine, precision or "float32", Path(folder), say)
        file = ENGINE_FILE if engine == "onnxruntime" else None
    if file is not None:
        opened = open_model(str(Path(folder, file)), threads=threads)
    else:
        of_process = engine in ("tensorflow", "xla")  # whose threads are the environment's
        opened = open_model(given, engine, precision, None if of_process else threads, weights)
    dtype = "float32" if opened.takes == "images" else "uint8"
    found = opened.run(np.zeros((1, *opened.image_size, opened.channels), dtype))
    if outputs not in found:
        raise ArgumentError(
            f"`outputs` must be one of those that the model has, {', '.join(found)}.\n"
            f"Received: outputs={outputs!r}, model={model!r}.",
            parameters=("outputs", "model"),
        )
    record = dataclasses.asdict(opened.preprocessing)
    return {
        "width": int(found[outputs].shape[1]),
        "engine": opened.engine,
        "precision": precision if is_exported(model) else precision or "float32",
        "preprocessing": record,
        "preprocessing_sha256": hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest(),
        "software": opened.software,
        "file": file,
    }


def _written(
    model: str, weights: str | None, engine: str, precision: str, folder: Path, say: Callable[[str], Any]
) -> str:
    """The engine; for ONNX Runtime its file is written, and where it does not take the model TensorFlow computes."""
    from keras_vit.exporting.engines.accelerate import write_engine
    from keras_vit.exporting.report import ExportError
    from keras_vit.runs.named_models import open_named

    built, _ = open_named(model, weights, needs_head=False)
    chosen = chosen_engine(built, engine, precision)
    if chosen == "onnxruntime":
        say("converting the model once; this takes a while ...")
        try:
            write_engine(built, folder / ENGINE_FILE, precision)
        except ExportError:
            if engine != "auto":
                raise
            return "tensorflow"
    return chosen
