"""The files of TensorFlow Serving for a SavedModel: warm-up requests, config, batching parameters; and a model card.

The warm-up requests are in the version's folder. The server answers them before the version takes traffic, so that the
first user does not wait for the initialisation. The other files are in the folder of the versions and may be edited;
the server ignores names that are no numbers.
"""

import dataclasses
import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.config.heads import KEYPOINTS, SEGMENTATION
from keras_vit.config.variants import DEFAULT_IMAGE_SIZE
from keras_vit.exporting.report import ExportReport, drift_table
from keras_vit.exporting.serving_inputs import takes_files
from keras_vit.exporting.spec import ExportSpec
from keras_vit.exporting.text_towers import text_card
from keras_vit.model.resnet import ResNet
from keras_vit.pages.cards import (
    FACTS,
    PREPROCESSING,
    USE,
    Card,
    classes_section,
    facts_section,
    licence_words,
    preprocessing_section,
)
from keras_vit.version import __version__

WARMUP = "assets.extra/tf_serving_warmup_requests"  # the name is the server's
CONFIG = "config.pbtxt"
BATCHING = "batching_parameters.txt"
_BATCH = 4  # photos in the larger request
_LARGEST = 32  # images that are computed together, if `max_batch` allows it
_COMPILED = (1, 2, 4, 8)  # batch sizes for which XLA compiles at start
# The server needs an absolute path, and an exported folder is moved, so this is the path in the server's container.
_CONFIG = """\
# tensorflow_model_server --model_config_file=FILE
# `base_path` is the folder that holds this file, as the server sees it, absolute. Change it if it lies elsewhere.
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""
_BATCHING = """\
# tensorflow_model_server --enable_batching --batching_parameters_file=FILE
# Requests that arrive within a millisecond are computed together. That pays on a GPU; on a CPU first try without.
# A request with more than `max_batch_size` images is refused. Requests of `image_bytes` always fit together.
# Those of `pixels` do only if their images have one height and width. Otherwise the server refuses those that met,
# since padding would change the answers.
max_batch_size {{ value: {largest} }}
batch_timeout_micros {{ value: 1000 }}
max_enqueued_batches {{ value: 100 }}
num_batch_threads {{ value: 2 }}
pad_variable_length_inputs: false
"""
_BEFORE_EXPORT = 'Of the model before it was exported. "Compared" says how far this version is from it.'
_ALLOWED = """\
# XLA would compile for every other number of images while somebody waits, so these are filled up to the next of:
"""
SERVICE = "tensorflow.serving.PredictionService"  # its method `Predict`: PredictRequest to PredictResponse
_PACKAGE = "keras_vit_serving"
_TENSOR, _INT64 = "tensorflow.TensorProto", "google.protobuf.Int64Value"
# {message: {field: (number, type)}}; "map" is from names to tensors, "many" a list of strings.
_MESSAGES = {
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, _INT64),
        "signature_name": (3, "string"),
        "version_label": (4, "string"),
    },
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "map"), "output_filter": (3, "many")},
    "PredictResponse": {"outputs": (1, "map"), "model_spec": (2, "ModelSpec")},
    "PredictLog": {"request": (1, "PredictRequest"), "response": (2, "PredictResponse")},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
}
_ONE_OF = {"version": "version_choice", "version_label": "version_choice", "predict_log": "log_type"}


def write_serving_files(
    spec: ExportSpec, place: FilePath, version_folder: FilePath, photos: Sequence[np.ndarray] | None = None
) -> None:
    """Writes the warm-up requests into a version's folder, and the server's two config files.

    Args:
        spec: an `ExportSpec`.
        place: folder for `config.pbtxt` and `batching_parameters.txt`, made if it is not there.
        version_folder: a SavedModel, finished.
        photos: arrays uint8 `(H, W, C)` of any sizes, or ids `(N, T)`, to warm up with; `None` takes the spec's.
    """
    place, version_folder = Path(place), Path(version_folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / CONFIG).write_text(_CONFIG.format(name=spec.name), encoding="utf-8")
    (place / BATCHING).write_text(_batching_config(spec.jit_compile, spec.max_batch), encoding="utf-8")
    photos = list(spec.calibration_photos[:_BATCH] if photos is None else photos)[:_BATCH]
    sizes = [min(size, spec.max_batch) for size in (_COMPILED if spec.jit_compile else (1, len(photos)))]
    requests = warmup_requests(spec.name, signature_inputs(version_folder), photos, spec.calibration_photos[:1], sizes)
    _write_records(version_folder / WARMUP, requests)


def _batching_config(jit_compile: bool, max_batch: int) -> str:
    if not jit_compile:
        return _BATCHING.format(largest=min(_LARGEST, max_batch))
    sizes = sorted({min(size, max_batch) for size in _COMPILED})
    allowed = "".join(f"allowed_batch_sizes: {size}\n" for size in sizes)
    return _BATCHING.format(largest=sizes[-1]) + _ALLOWED + allowed


def served_card(spec: ExportSpec, report: ExportReport, run_card: Card | None = None) -> Card:
    """The card of a served model's folder, about its newest version.

    Args:
        spec: the `ExportSpec` of the version.
        report: of the export; its path is that of the version.
        run_card: the card of the model's run, if it is from one.
    """
    if spec.takes == "ids":
        return text_card(spec, report, _comparison_section(report))
    answered = spec.model.output_spec.head.name  # classes, labels or numbers
    answered = "classes" if answered == SEGMENTATION else answered
    head = f"{len(spec.labels):,} {answered}" if spec.labels else "no head, so it gives features"
    if spec.of_pixels:
        head = f"{head} of each pixel" if spec.labels else f"a depth of each pixel ({spec.model.unit})"
    elif spec.of_queries:
        queries = f"classes for each of {spec.model.output_spec.shape[1] or 'its'} queries"
        head = f"{spec.model.classes:,} {'heatmaps, one of each point' if answered == KEYPOINTS else queries}"
    height, width = (side or "any" for side in spec.image_size)
    sections = {
        "Model": f"A SavedModel of {spec.model.name}, version {report.path.name}, in {spec.precision}: images of "
        f"{height} x {width} pixels in {spec.channels} channels, {head}. Written by keras_vit {__version__}. "
        "TensorFlow Serving takes this folder; TensorFlow alone loads a version.",
        USE: _usage_section(spec, report),
        "Compared": _comparison_section(report),
        PREPROCESSING: preprocessing_section(dataclasses.asdict(spec.model.preprocessing), "The graph itself"),
        FACTS: facts_section(spec.model.provenance),
        answered.capitalize(): classes_section(spec.labels) if spec.labels else "",
    }
    kind = "resnet" if isinstance(spec.model, ResNet) else "vision-transformer"
    licence = licence_words(spec.model.provenance)
    card = Card(spec.name, "tensorflow", sections, kind, classifies=bool(spec.labels), licence=licence)
    return card if run_card is None else _add_run_sections(card, run_card)


def _add_run_sections(card: Card, run_card: Card) -> Card:
    """Adds results, training, limits, licence and metadata of the run to the card."""
    sections, known = dict(card.sections), dict(run_card.sections)
    sections["Model"] += f"\n\n{known.pop('Model', '')}"
    if "Results" in known:
        known["Results"] += f"\n\n{_BEFORE_EXPORT}"
    for own in (USE, PREPROCESSING, "Classes", "Labels", "Numbers"):
        known.pop(own, None)
    sections |= known
    limits, licence, metadata = run_card.limits, run_card.licence, run_card.metadata
    return dataclasses.replace(card, sections=sections, limits=limits, licence=licence, metadata=metadata)


def _usage_section(spec: ExportSpec, report: ExportReport) -> str:
    version = report.path.name
    sides = ", ".join(str(side or DEFAULT_IMAGE_SIZE) for side in spec.image_size)
    given = f"pixels=tf.zeros((1, {sides}, {spec.channels}), tf.uint8)"
    if takes_files(spec):
        given = 'image_bytes=tf.io.read_file("photo.jpg")[None]'
    return f"""```python
import tensorflow as tf

served = tf.saved_model.load("{version}").signatures["serving_default"]
print(served({given}))
```"""


def _comparison_section(report: ExportReport) -> str:
    if report.runtime is None:
        return "It was not compared with the model that it was written from."
    same = report.top1_agreement
    agreement = "" if same is None else f" The best class is the model's on {same:.1%} of them, which is no accuracy."
    found = f"With the model in float32, on {report.images:,} {report.compared_on}, by {report.runtime}.{agreement}"
    return f"{found}\n\n{drift_table(report.drift)}"


def signature_inputs(version_folder: FilePath) -> dict[str, set[str]]:
    """The names of the inputs of each signature of a SavedModel.

    Args:
        version_folder: the folder with `saved_model.pb`.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((Path(version_folder) / "saved_model.pb").read_bytes())
    signatures = saved.meta_graphs[0].signature_def
    return {name: set(signature.inputs) for name, signature in signatures.items() if signature.inputs}


def warmup_requests(
    name: str,
    signatures: Mapping[str, set[str]],
    photos: Sequence[np.ndarray],
    pixels: np.ndarray,
    sizes: Sequence[int] = (1,),
) -> list:
    """A `PredictionLog` with one image for each signature, and with more for the default one.

    Args:
        name: of the served model.
        signatures: as `signature_inputs` gives them.
        photos: arrays uint8 `(H, W, C)` of any sizes, which become JPEGs; or ids `(T,)`.
        pixels: uint8 `(B, H, W, C)`, for signatures that take pixels.
        sizes: batch sizes of the requests for the default signature.
    """
    import tensorflow as tf

    is_text = {"ids"} in signatures.values()
    files = np.stack(photos) if is_text else np.array([_jpeg(photo) for photo in photos], object)
    logs = []
    for signature, inputs in sorted(signatures.items()):
        given = [{"pixels": pixels}] if inputs == {"pixels"} else []
        if inputs == {"ids"}:
            given = [{"ids": np.resize(files, (size, *files.shape[1:]))} for size in sorted(set(sizes))]
        if inputs == {"image_bytes"}:
            wanted = sorted(set(sizes)) if signature == "serving_default" else (1,)
            given = [{"image_bytes": np.resize(files, size)} for size in wanted]
        for arrays in given:
            log = serving_messages().PredictionLog()
            request = log.predict_log.request
            request.model_spec.name, request.model_spec.signature_name = name, signature
            for key, array in arrays.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
            logs.append(log)
    return logs


def read_warmup_requests(version_folder: FilePath) -> list:
    """The requests of a version's folder, `PredictRequest` messages; none where there is no such file.

    Args:
        version_folder: the folder with `saved_model.pb`.
    """
    import tensorflow as tf

    file = Path(version_folder) / WARMUP
    records = tf.data.TFRecordDataset(str(file)).as_numpy_iterator() if file.exists() else ()
    return [serving_messages().PredictionLog.FromString(record).predict_log.request for record in records]


def _jpeg(photo: np.ndarray) -> bytes:
    """A JPEG of the first three channels."""
    import tensorflow as tf

    return tf.io.encode_jpeg(photo[..., : 3 if photo.shape[-1] >= 3 else 1], quality=90).numpy()


def _write_records(file: Path, messages: Iterable[Any]) -> None:
    import tensorflow as tf

    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for message in messages:
            writer.write(message.SerializeToString(deterministic=True))


@functools.cache
def serving_messages() -> types.SimpleNamespace:
    """The classes `ModelSpec`, `PredictRequest`, `PredictResponse`, `PredictLog` and `PredictionLog`.

    Raises:
        ImportError: without TensorFlow, whose `TensorProto` they hold.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
    from tensorflow.core.framework import tensor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="keras_vit/serving.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name, tensor_pb2.DESCRIPTOR.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return types.SimpleNamespace(**{name: message_factory.GetMessageClass(kind) for name, kind in found.items()})


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    field = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING)
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, _TENSOR)
        kind = f"{_PACKAGE}.{message.name}.{entry.name}"
        field.label = Field.LABEL_REPEATED
    if kind == "many":
        field.label = Field.LABEL_REPEATED
    elif kind != "string":
        field.type = Field.TYPE_MESSAGE
        field.type_name = f".{kind if '.' in kind else f'{_PACKAGE}.{kind}'}"
    if name in _ONE_OF:
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONE_OF[name])
        field.oneof_index = 0
