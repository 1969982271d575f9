"""The model as TensorFlow Serving takes it: photos as files, or pixels, to scores and names, or to features.

Signatures: `serving_default` and `features` take `image_bytes` `(B,)`; `predict_pixels` and `features_pixels` take
`pixels`, uint8 `(B, H, W, C)`. A model without a head has features only; one without an image size takes pixels only.
`serving_inputs.STATUSES` are the statuses of bad files. Of a text tower `serving_default` takes `ids`, int32 `(B, T)`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import kernels
from keras_vit.annotations import Tensor
from keras_vit.exporting.model_function import input_spec, pixel_module
from keras_vit.exporting.report import Runtime
from keras_vit.exporting.serving_inputs import (
    STATUSES,
    check_count,
    prepare_files,
    prepare_pixels,
    takes_files,
    target_size,
)
from keras_vit.exporting.spec import ExportSpec
from keras_vit.silence import silence

PRECISIONS: tuple[str, ...] = ("float32", "bfloat16", "float16", "int8")
CALIBRATES: tuple[str, ...] = ()
FOLDS: tuple[str, ...] = ()  # TensorFlow Serving computes the layers unchanged


def write(spec: ExportSpec, place: Path) -> None:
    """Writes the folder of one version.

    Args:
        spec: an `ExportSpec`.
        place: path that does not exist.
    """
    import tensorflow as tf

    module = pixel_module(spec)
    given = input_spec(spec)
    if spec.takes != "ids":
        given = tf.TensorSpec((None, *target_size(spec), spec.channels), tf.float32, "images")
    network = tf.function(module.answers, input_signature=[given], autograph=False, jit_compile=spec.jit_compile)
    kept = tf.Module()
    with kernels.use("portable"):
        kept.weights = list(
            network.get_concrete_function().variables
        )  # without layers, so that no object of Keras is written
    with silence():
        signatures = (_text_signatures if spec.takes == "ids" else _signatures)(spec, network)
        tf.saved_model.save(kept, str(place), signatures=signatures)


def is_own_file(file: Path) -> bool:
    """Never: each export is a new version, and none is replaced."""
    return False


def check_packages(precision: str, opset: int) -> None:
    """Always passes: Keras runs on TensorFlow.

    Args:
        precision: of the file to be.
        opset: of ONNX, nothing here.
    """


def open_runtime(place: Path) -> Runtime:
    """Opens the folder in a session of TensorFlow 1, as the server does.

    Args:
        place: path of the folder.
    """
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
        wanted = {"features_pixels": ("features",), "predict_pixels": ("logits", "scores", "numbers")}
        if signatures.keys().isdisjoint(wanted):
            wanted = {"serving_default": ("embeddings",)}
        return answers(pixels, **{name: outputs for name, outputs in wanted.items() if name in signatures})

    def answer(pixels: np.ndarray) -> dict[str, np.ndarray]:
        names = ("predict_pixels", "features_pixels", "serving_default")
        name = next(name for name in names if name in signatures)
        return answers(pixels, **{name: tuple(signatures[name].outputs)})

    def photos(files: Sequence[bytes]) -> dict[str, np.ndarray]:
        wanted = {"features": ("features", "status"), "serving_default": ("scores", "numbers")}
        return answers(list(files), **wanted)

    return Runtime(
        f"tensorflow {tf.__version__}", run, answer, photos if "features" in signatures else None, prepares=True
    )


def load_snippet(name: str) -> None:
    """Nothing: TensorFlow computes in the precision of the graph."""


def _text_signatures(spec: ExportSpec, network: Any) -> dict[str, Any]:
    import tensorflow as tf

    def embed(ids: Tensor) -> dict[str, Tensor]:
        size = spec.model.config.vocabulary_size
        known = tf.debugging.Assert(
            tf.reduce_all((ids >= 0) & (ids < size)),
            [f"ids must be from 0 to {size - 1}, those of the tokenizer of this model; received", ids],
        )
        with tf.control_dependencies([known]):
            return {"embeddings": network(check_count(ids, spec))["embeddings"]}

    return {"serving_default": tf.function(embed, input_signature=[input_spec(spec)], autograph=False)}


def _signatures(spec: ExportSpec, network: Any) -> dict[str, Any]:
    import tensorflow as tf

    files = tf.TensorSpec((None,), tf.string, "image_bytes")
    pixels = tf.TensorSpec((None, *_pixel_sides(spec), spec.channels), tf.uint8, "pixels")

    def features(image_bytes: Tensor) -> dict[str, Tensor]:
        images, codes = prepare_files(image_bytes, spec)
        return _mask_bad_rows({"features": network(images)["features"]}, codes)

    def features_pixels(pixels: Tensor) -> dict[str, Tensor]:
        return {"features": network(prepare_pixels(pixels, spec))["features"]}

    def names(image_bytes: Tensor) -> dict[str, Tensor]:
        images, codes = prepare_files(image_bytes, spec)
        return _mask_bad_rows(_top_classes(network(images), spec), codes)

    def predict_pixels(pixels: Tensor) -> dict[str, Tensor]:
        found = network(prepare_pixels(pixels, spec))
        return _top_classes(found, spec) | {name: found[name] for name in ("logits",) if name in found}

    functions: dict[str, tuple[Callable[..., dict[str, Tensor]], Any]] = {"features_pixels": (features_pixels, pixels)}
    has_head = spec.model.output_spec.activation is not None
    if has_head:
        functions["predict_pixels"] = (predict_pixels, pixels)
    if takes_files(spec):
        functions["features"] = (features, files)
        functions["serving_default"] = (names if has_head else features, files)
    else:
        functions["serving_default"] = functions["predict_pixels" if has_head else "features_pixels"]
    return {
        name: tf.function(function, input_signature=[given], autograph=False).get_concrete_function()
        for name, (function, given) in functions.items()
    }


def _pixel_sides(spec: ExportSpec) -> tuple[int | None, int | None]:
    """Height and width of `pixels`; `None` where the preprocessing resizes."""
    record = spec.model.preprocessing
    resizes = record.resize != "none" and record.image_size is not None
    return (None, None) if resizes else spec.image_size


def _top_classes(found: Mapping[str, Tensor], spec: ExportSpec) -> dict[str, Tensor]:
    """Scores, and the best classes by number and name."""
    import tensorflow as tf

    if "numbers" in found:
        return {"numbers": found["numbers"]}
    best, classes = tf.math.top_k(found["scores"], spec.top_k)
    labels = tf.gather(tf.constant(spec.labels), classes)
    return {"scores": found["scores"], "classes": classes, "labels": labels, "top_scores": best}


def _mask_bad_rows(answers: Mapping[str, Tensor], codes: Tensor) -> dict[str, Tensor]:
    """The outputs with zeros, -1, NaN or no label in the rows of bad files, and the status of each."""
    import tensorflow as tf

    nothing = {"classes": -1, "labels": "", "numbers": float("nan")}  # 0 would be an answer
    good = tf.equal(codes, 0)[:, None]
    found = {
        name: tf.where(good, rows, tf.constant(nothing.get(name, 0), rows.dtype)) for name, rows in answers.items()
    }
    return found | {"status": tf.gather(tf.constant(list(STATUSES)), codes)}
