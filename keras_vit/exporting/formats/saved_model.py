"""The model as TensorFlow Serving takes it: a folder with a version for each export."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, PositiveInt
from keras_vit.config.heads import NAMED_OUTPUTS
from keras_vit.exporting.formats.format import Format, Options
from keras_vit.exporting.report import Runtime
from keras_vit.exporting.spec import MAX_BATCH, MAX_BYTES, MAX_PIXELS, TOP_K, ExportSpec
from keras_vit.pages.cards import Card
from keras_vit.silence import silence

_BYTES = range(2**10, 2**31)  # allowed range: a comparison needs some, and graphs count in int32
_NUMBERS = ("top_k", "max_bytes", "max_pixels", "max_batch")


@dataclasses.dataclass(frozen=True)
class SavedModelOptions(Options):
    """The options of a SavedModel."""

    top_k: PositiveInt = TOP_K
    max_bytes: PositiveInt = MAX_BYTES
    max_pixels: PositiveInt = MAX_PIXELS
    max_batch: PositiveInt = MAX_BATCH
    jit_compile: bool = False
    card: Card | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_bytes not in _BYTES:
            raise ArgumentError(
                f"`max_bytes` must be {_BYTES[0]} to {_BYTES[-1]}.\nReceived: max_bytes={self.max_bytes}."
            )

    def of_spec(self, any_size: bool) -> dict[str, Any]:
        return {name: int(getattr(self, name)) for name in _NUMBERS} | {"jit_compile": self.jit_compile}


class SavedModel(Format):
    """The format; a folder with signatures for photos as files and for pixels. Layers are served unchanged."""

    name, title = "saved_model", "a SavedModel"
    Options = SavedModelOptions

    def write(self, spec: ExportSpec, place: Path) -> None:
        """Writes the folder of one version."""
        from keras_vit.exporting.serving_inputs import write_signatures

        write_signatures(spec, place)

    def open_runtime(self, place: Path) -> Runtime:
        """Opens the folder in a session of TensorFlow 1, as the server does."""
        import tensorflow as tf

        session = tf.compat.v1.Session(graph=tf.Graph())
        with session.graph.as_default(), silence():
            signatures = tf.compat.v1.saved_model.load(session, ["serve"], str(place)).signature_def

        def answers(values: Any, **named: Sequence[str]) -> dict[str, Any]:
            """The outputs in `named`, which lists them by signature."""
            found: dict[str, Any] = {}
            for name, outputs in named.items():
                signature = signatures[name]
                fetched = {key: signature.outputs[key].name for key in outputs if key in signature.outputs}
                (fed,) = signature.inputs.values()
                found |= session.run(fetched, {fed.name: values})
            return found

        def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
            of_head = ("logits", "scores", "numbers", "depths", *NAMED_OUTPUTS)
            wanted: dict[str, tuple[str, ...]] = {"features_pixels": ("features",), "predict_pixels": of_head}
            if signatures.keys().isdisjoint(wanted):
                wanted = {"serving_default": ("embeddings",)}
            return answers(pixels, **{name: outputs for name, outputs in wanted.items() if name in signatures})

        def answer(pixels: np.ndarray) -> dict[str, np.ndarray]:
            names = ("predict_pixels", "features_pixels", "serving_default")
            name = next(name for name in names if name in signatures)
            return answers(pixels, **{name: tuple(signatures[name].outputs)})

        def photos(files: Sequence[bytes]) -> dict[str, np.ndarray]:
            wanted: dict[str, tuple[str, ...]] = {
                "features": ("features", "status"),
                "serving_default": ("scores", "numbers"),
            }
            if "features" not in signatures:
                wanted = {"serving_default": ("depths", "masks", "status", *NAMED_OUTPUTS)}
            return answers(list(files), **wanted)

        takes_files = "image_bytes" in signatures["serving_default"].inputs
        return Runtime(f"tensorflow {tf.__version__}", run, answer, photos if takes_files else None, prepares=True)
